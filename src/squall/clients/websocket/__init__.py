"""The WebSocket client (RFC 6455): own frames, sessions of one user.

`client` has the verbs, `session` is what an author holds, `connection` is the protocol on the wire
and turns the server's close code into a reason, `frames` encodes and decodes bytes.
"""

from squall.clients.websocket.client import WebsocketClient

__all__ = ["WebsocketClient"]
