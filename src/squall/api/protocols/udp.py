"""The author's UDP API: responses, and the verbs of `self.client.udp`."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import msgspec

from squall.api.arguments import URL, Data
from squall.api.protocols.response import ProtocolResponse


class UDPResponse(ProtocolResponse, eq=False, gc=False):
    """A datagram of the server, or that none came in time."""

    protocol: ClassVar[str] = "udp"

    body: bytes = b""
    """The content of the datagram."""
    lost: bool = False
    """Whether no datagram came in time; the response is failed then."""

    @property
    def text(self) -> str:
        """The content as text; what is not UTF-8 is replaced."""
        return self.error or self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The content as JSON. Raises a `ValueError` that says where it is malformed."""
        return msgspec.json.decode(self.body)


class UDPVerbs(Protocol):
    """`self.client.udp`: datagrams on a socket of this user, `udp://host:port`.

    A datagram that does not come in time is a failed response, and the iteration goes on. A verb
    raises `TransportError` if the machine of the server reports that nothing listens there.
    """

    async def exchange(
        self,
        url: URL,
        data: Data,
        *,
        reply: bool = True,
        timeout: str | float = "1s",  # noqa: ASYNC109
    ) -> UDPResponse:
        """Sends a datagram and returns the answer. With `reply=False` it waits for none."""
        ...

    async def send(self, url: URL, data: Data) -> UDPResponse:
        """Sends a datagram and waits for nothing."""
        ...

    async def receive(
        self,
        url: URL,
        *,
        timeout: str | float = "1s",  # noqa: ASYNC109
    ) -> UDPResponse:
        """Waits for a datagram; the latency is the time waited."""
        ...
