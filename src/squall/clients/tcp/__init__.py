"""The TCP client: bytes with a delimiter, of a length, or behind their length.

`client` has the verbs, `connection` the bytes on the wire and where an answer ends.
"""

from squall.clients.tcp.client import TCPClient

__all__ = ["TCPClient"]
