"""The client for server-sent events over HTTP/1.1.

`client` has the verb and the reconnects, `connection` is one request with its stream, and
`event_parser` turns bytes into events.
"""

from squall.clients.sse.client import SSEClient

__all__ = ["SSEClient"]
