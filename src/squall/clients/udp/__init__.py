"""The UDP client: datagrams on a connected socket of each user.

`client` has the verbs, `endpoint` the socket.
"""

from squall.clients.udp.client import UDPClient

__all__ = ["UDPClient"]
