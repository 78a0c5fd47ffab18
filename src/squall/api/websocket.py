"""The author's WebSocket API: messages, sessions, and the verbs of `self.client.websocket`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypedDict, Unpack

import msgspec

from squall.api.arguments import URL, Auth, Cookies, Data, Headers, Params
from squall.api.results import CallResult

Message = str | bytes | Data
"""What `send` and `ask` take: text, bytes, or a dict or list that is sent as JSON text."""


class WebsocketTimings(NamedTuple):
    """Times in seconds. The first four are 0 unless this call opened the session; they are not in
    `total_s`."""

    dns_s: float
    """Name lookup."""
    connect_s: float
    """TCP connect."""
    tls_s: float
    """TLS handshake."""
    upgrade_s: float
    """The request that turns the connection into a WebSocket."""
    total_s: float
    """From sending the message to the last byte of the answer."""


class WebsocketResponse(CallResult, msgspec.Struct, eq=False, gc=False):
    """One message from the server. Stamps are `time.perf_counter` readings: `started` is when the
    message that it answers was sent (`ask`, `ping`) or when the wait for it began (`receive`)."""

    protocol: ClassVar[str] = "websocket"

    body: bytes
    """The content as received."""
    is_text: bool
    """Whether the server sent it as text."""
    url: str
    """The address of the session."""
    started: float
    ended: float
    setup: tuple[float, float, float, float] | None = None
    answered: bool = True
    # Requests behind this message: 1 for the answer to `ask`.
    exchanges: int = 0

    @property
    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 are replaced."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """The content as JSON. Raises a `ValueError` that says where it is malformed."""
        return msgspec.json.decode(self.body)

    @property
    def timings(self) -> WebsocketTimings:
        """How long name lookup, connect, TLS, the upgrade and the exchange took."""
        return WebsocketTimings(
            *(self.setup or (0.0, 0.0, 0.0, 0.0)), total_s=self.ended - self.started
        )

    @property
    def failure(self) -> str:
        """Why the call counts as failed; empty, because a session that fails raises."""
        return ""

    def __repr__(self) -> str:
        return f"<WebsocketResponse {len(self.body)} B, {self.url}>"


class SessionOptions(TypedDict, total=False):
    """The keywords of `open` and `ask`."""

    headers: Headers | None
    """Headers of the request that opens the session."""
    params: Params | None
    """Query parameters, added to the query of the URL."""
    cookies: Cookies | None
    """Cookies of that request, added to those of the user."""
    auth: Auth | None
    """Credentials; they replace an `Authorization` header."""
    path: Mapping[str, str | float] | None
    """Values for the `{name}` parts of the URL; they are percent-encoded."""
    protocols: Sequence[str]
    """Subprotocols to offer; the server's choice is `session.subprotocol`."""
    mask: Literal["kept", "fresh"]
    """`"fresh"` makes a new mask for every frame, as RFC 6455 wants. `"kept"` (default) masks a
    message that is sent again only once; a server cannot tell."""
    timeout: str | float | None
    """Limit for opening, and for each wait for a message, instead of that of the step."""


class WebsocketSession(Protocol):
    """An open WebSocket. Messages that nobody waits for are kept until they are received."""

    @property
    def subprotocol(self) -> str:
        """What the server chose of `protocols`; empty if nothing."""
        ...

    @property
    def close_code(self) -> int:
        """The code with which the server closed, 0 before; 1005 if it gave none."""
        ...

    @property
    def close_reason(self) -> str:
        """The text that came with the code."""
        ...

    @property
    def sent(self) -> int:
        """Messages sent in this session."""
        ...

    @property
    def received(self) -> int:
        """Messages received in this session."""
        ...

    async def ask(
        self,
        message: Message,
        *,
        until: Callable[[WebsocketResponse], bool] | None = None,
        timeout: str | float | None = None,  # noqa: ASYNC109
    ) -> WebsocketResponse:
        """Sends a message and returns the next one from the server; with `until` the first one for
        which it returns True."""
        ...

    async def send(self, message: Message) -> None:
        """Sends a message and waits for nothing."""
        ...

    async def receive(self, *, timeout: str | float | None = None) -> WebsocketResponse:  # noqa: ASYNC109
        """The next message from the server; its latency is the time waited."""
        ...

    async def ping(self, *, timeout: str | float | None = None) -> WebsocketResponse:  # noqa: ASYNC109
        """Sends a ping and waits for its pong."""
        ...

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Says goodbye and waits for the server's goodbye, a second at most."""
        ...


class WebsocketVerbs(Protocol):
    """`self.client.websocket`: sessions of this user.

    A session that fails raises `TransportError`: it cannot be opened, no message comes in time,
    the server closes it or breaks the protocol.
    """

    def open(
        self, url: URL, **options: Unpack[SessionOptions]
    ) -> AbstractAsyncContextManager[WebsocketSession]:
        """Opens a session: `async with self.client.websocket.open(url) as session`. It is closed at
        the end of the block."""
        ...

    async def ask(
        self, url: URL, message: Message, **options: Unpack[SessionOptions]
    ) -> WebsocketResponse:
        """Sends a message and returns the next one from the server. The session stays open for the
        next call with the same URL and options."""
        ...
