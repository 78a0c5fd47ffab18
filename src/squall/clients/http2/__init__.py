"""The HTTP/2 client (RFC 9113): own frames and header blocks, many exchanges on one connection.

`client` has the verbs, and `negotiated` those of `self.client.http` where the server chooses the
version. `connections` is the policy. `connection` and `stream` are the protocol: `connection`
refills the windows from which the server sends, `bodies` respects those of the server.
`header_states` and `header_blocks` translate headers. Needs the package `hpack`.
"""

from squall.clients.http2.client import HTTP2Client
from squall.clients.http2.connections import HTTP2Shared
from squall.clients.http2.negotiated import NegotiatingClient

__all__ = ["HTTP2Client", "HTTP2Shared", "NegotiatingClient"]
