"""The author's TCP API: framing, responses, and the verbs of `self.client.tcp`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import msgspec

from squall.api.arguments import URL, Data
from squall.api.protocols.response import ProtocolResponse


@dataclass(frozen=True)
class LengthPrefix:
    """Frames that begin with their length: `until=LengthPrefix(4)`."""

    size: int = 4
    """Bytes of the length."""
    order: Literal["big", "little"] = "big"
    includes_itself: bool = False
    """Whether the length counts its own bytes."""

    def pack(self, content: bytes) -> bytes:
        """The content behind its length."""
        length = len(content) + (self.size if self.includes_itself else 0)
        return length.to_bytes(self.size, self.order) + content


Until = bytes | int | LengthPrefix
"""Where an answer ends: a delimiter such as `b"\\n"`, a number of bytes, or a length before it."""


class TCPResponse(ProtocolResponse, eq=False, gc=False):
    """What a server sent."""

    protocol: ClassVar[str] = "tcp"

    body: bytes = b""
    """The bytes received, with their delimiter, without a length before them."""

    @property
    def text(self) -> str:
        """The bytes as text; what is not UTF-8 is replaced."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The bytes as JSON. Raises a `ValueError` that says where they are malformed."""
        return msgspec.json.decode(self.body)


class TCPVerbs(Protocol):
    """`self.client.tcp`: bytes on a connection of this user, `tcp://host:port` or `tls://host:port`.

    A verb raises `TransportError` if the server cannot be reached, closes the connection or does
    not answer in time.
    """

    async def exchange(
        self,
        url: URL,
        data: Data,
        *,
        until: Until | None = None,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> TCPResponse:
        """Sends bytes and returns the answer: up to `until`, or what comes first without it."""
        ...

    async def send(
        self,
        url: URL,
        data: Data,
        *,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> TCPResponse:
        """Sends bytes and waits for no answer."""
        ...

    async def receive(
        self,
        url: URL,
        *,
        until: Until | None = None,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> TCPResponse:
        """Waits for bytes of the server, such as a greeting; the latency is the time waited."""
        ...

    async def expect(
        self,
        url: URL,
        expected: Data,
        *,
        until: Until | None = None,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> TCPResponse:
        """Receives bytes; the response is failed unless they contain what is expected."""
        ...
