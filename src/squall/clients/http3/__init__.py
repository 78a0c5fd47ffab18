"""The HTTP/3 client (RFC 9114) on the package `qh3`, which speaks QUIC and encodes headers.

`client` has the verbs, `connections` is the policy and opens connections, `connection` moves
datagrams and delivers responses, `headers` translates requests and heads.
"""

from squall.clients.http3.client import HTTP3Client
from squall.clients.http3.connections import HTTP3Shared

__all__ = ["HTTP3Client", "HTTP3Shared"]
