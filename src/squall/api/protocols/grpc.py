"""The author's gRPC API: responses, streams, `.proto` files, and the verbs of `self.client.grpc`.

Nothing here does I/O or imports protobuf: replies are decoded when they are read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypedDict, TypeVar, Unpack
from urllib.parse import unquote

import msgspec

from squall.api.arguments import URL, Headers, Protobuf
from squall.api.errors import StatusError
from squall.api.http import HTTPHeaders, ResponseHead
from squall.api.results import CallResult

M = TypeVar("M", bound="Decodable", covariant=True)

STATUSES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND"),
    *("ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"),
    *("ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"),
    "UNAUTHENTICATED",
)
"""The names of the statuses; the place of a name is its number."""
_UNKNOWN, INTERNAL = 2, 13
# What a status of HTTP means where a proxy or another server answered (gRPC,
# http-grpc-status-mapping.md).
_OF_HTTP = {400: 13, 401: 16, 403: 7, 404: 12, 429: 14, 502: 14, 503: 14, 504: 14}

Pairs = tuple[tuple[bytes, bytes], ...]


class Decodable(Protocol):
    """A class of messages, as protoc generates it."""

    @classmethod
    def FromString(cls: type[M], s: bytes, /) -> M: ...


class ReplyDecoder(Protocol):
    """The call behind a response: where it went, and how to read its replies."""

    @property
    def address(self) -> str: ...

    @property
    def accepted(self) -> frozenset[int]: ...

    def decoded(self, reply: bytes) -> Any: ...


class GRPCTimings(NamedTuple):
    """Times in seconds. The first three are 0 on a reused connection and not in `total_s`."""

    dns_s: float
    """Name lookup."""
    connect_s: float
    """TCP connect."""
    tls_s: float
    """TLS handshake."""
    first_byte_s: float
    """From sending the request to the first byte of the answer."""
    total_s: float
    """From sending the request to the status that ends the answer."""


class GRPCResponse(CallResult, msgspec.Struct, eq=False, gc=False):
    """One answered call: its replies and the status that ended it. Stamps are `time.perf_counter`
    readings."""

    protocol: ClassVar[str] = "grpc"

    code: int
    """The number of the status: 0 is OK."""
    raw_replies: Sequence[bytes]
    """The replies as received, without their length."""
    head: ResponseHead
    raw_trailers: Pairs
    source: ReplyDecoder
    started: float
    first_byte: float
    ended: float
    # When each reply of a stream arrived; a single reply arrives with its status.
    stamps: Sequence[float] = ()
    setup: tuple[float, float, float] | None = None
    answered: bool = True
    exchanges: int = 1
    # What is wrong with the messages, which no server says.
    fault: str = ""
    # The request, for `--once`.
    shown: bytes = b""

    @property
    def ok(self) -> bool:
        """Whether the status is OK."""
        return not self.code

    @property
    def status(self) -> str:
        """The name of the status, like "NOT_FOUND"."""
        return STATUSES[self.code]

    @property
    def message(self) -> str:
        """What the server says about the status; empty for most that are OK."""
        return self.fault or status_of(self.head, self.raw_trailers)[1]

    @property
    def reply(self) -> Any:
        """The first reply as a message, of the type that the method declares. Raises a
        `StatusError` if there is none."""
        self.raise_for_status()
        return self.source.decoded(self.raw_replies[0])

    @property
    def replies(self) -> list[Any]:
        """All replies as messages."""
        return [self.source.decoded(each) for each in self.raw_replies]

    def reply_as(self, kind: type[M]) -> M:
        """The first reply as a message of this class."""
        self.raise_for_status()
        return kind.FromString(self.raw_replies[0])

    @property
    def metadata(self) -> HTTPHeaders:
        """What the server sent before the first reply; names are case-insensitive."""
        return self.head.headers

    @property
    def trailers(self) -> HTTPHeaders:
        """What the server sent with the status."""
        pairs = [(a.decode("latin-1"), b.decode("latin-1")) for a, b in self.raw_trailers]
        return HTTPHeaders(pairs) if pairs else self.head.headers

    @property
    def url(self) -> str:
        """The address of the method."""
        return self.source.address

    @property
    def request(self) -> str:
        """Like "GRPC http://shop.test/shop.Shop/Buy"."""
        return f"GRPC {self.source.address}"

    @property
    def timings(self) -> GRPCTimings:
        """How long name lookup, connect, TLS, the first byte and the whole answer took."""
        return GRPCTimings(
            *(self.setup or (0.0, 0.0, 0.0)),
            first_byte_s=self.first_byte - self.started,
            total_s=self.ended - self.started,
        )

    @property
    def first_message_s(self) -> float:
        """Seconds from the request to the first reply; 0 without one."""
        if self.stamps:
            return self.stamps[0] - self.started
        return self.ended - self.started if self.raw_replies else 0.0

    @property
    def gaps(self) -> list[float]:
        """Seconds between each reply of a stream and the next one."""
        return [after - before for before, after in pairwise(self.stamps)]

    @property
    def failure(self) -> str:
        """Why the call counts as failed: the name of a status that was not expected."""
        if self.code in self.source.accepted:
            return ""
        return f"{self.status}: {self.fault}" if self.fault else self.status

    @property
    def text(self) -> str:
        """What an error shows of the answer."""
        return f"{self.status}: {self.message}" if self.message else self.status

    @property
    def status_code(self) -> int:
        """The status of HTTP, 200 from every gRPC server; `code` is that of gRPC."""
        return self.head.status

    def raise_for_status(self) -> None:
        """Raises a `StatusError`, which stops the iteration, unless there is a reply."""
        if self.code or not self.raw_replies:
            raise StatusError(self.status if self.code else "OK without a reply", self)

    def __repr__(self) -> str:
        return f"<GRPCResponse {self.status}, {len(self.raw_replies)} replies, {self.url}>"


def status_of(head: ResponseHead, trailers: Pairs) -> tuple[int, str]:
    """(Number, text) of the status that ended an answer; of a status of HTTP, if no gRPC server
    answered."""
    if trailers and head.status == 200:
        return _status_in(trailers)
    if head.status != 200:
        return _OF_HTTP.get(head.status, _UNKNOWN), f"HTTP status {head.status}"
    # Without a reply the first head may be the only one.
    found = tuple((a.lower().encode(), b.encode("latin-1")) for a, b in head.headers.items())
    if not head.headers.get("content-type", "").startswith("application/grpc"):
        return _UNKNOWN, "the answer is not one of a gRPC server"
    return _status_in(found)


@lru_cache(256)
def _status_in(pairs: Pairs) -> tuple[int, str]:
    found = dict(pairs)
    number = found.get(b"grpc-status", b"")
    text = unquote(found.get(b"grpc-message", b"").decode("latin-1"))
    if not number.isdigit():
        return _UNKNOWN, "the server sent no status"
    code = int(number)
    if code >= len(STATUSES):
        return _UNKNOWN, f"status {code}"
    return code, text


class GRPCOptions(TypedDict, total=False):
    """The keywords of `unary`, `stream` and `open`."""

    metadata: Headers | Mapping[str, str | bytes] | None
    """Sent before the first message; the name of a value of bytes ends with `-bin`."""
    timeout: str | float | None
    """Limit for the whole call, instead of that of the step. The server learns it as the deadline
    (`grpc-timeout`). `open` has none unless it is given."""
    compression: Literal["gzip", "deflate"] | None
    """Compresses every message that is sent."""
    expect: Sequence[str]
    """Names of the statuses that are no failure; `["OK"]` by default."""


class GRPCStream(Protocol):
    """An open stream in both directions."""

    @property
    def sent(self) -> int:
        """Messages sent."""
        ...

    @property
    def received(self) -> int:
        """Replies that arrived."""
        ...

    async def send(self, message: Protobuf) -> None:
        """Sends a message; waits only while the server takes no more."""
        ...

    async def receive(self, *, timeout: str | float | None = None) -> Any:  # noqa: ASYNC109
        """The next reply as a message; None after the last one. `timeout` defaults to the limit of
        the step."""
        ...

    async def ask(self, message: Protobuf, *, timeout: str | float | None = None) -> Any:  # noqa: ASYNC109
        """Sends a message and returns the next reply."""
        ...

    async def finish(self) -> GRPCResponse:
        """Says that no further message comes, and waits for the status. Its `replies` are those
        that were not received."""
        ...

    def __aiter__(self) -> AsyncIterator[Any]: ...


class GRPCVerbs(Protocol):
    """`self.client.grpc`: calls of gRPC methods over HTTP/2.

    The URL names the method: `http://host:port/package.Service/Method`; `https://`, `grpcs://` and
    `grpc://` are understood, too. A call returns its response whatever the status, which counts as
    a failure unless it is expected; it raises `TransportError` if there is no status.
    """

    async def unary(
        self, url: URL, message: Protobuf, **options: Unpack[GRPCOptions]
    ) -> GRPCResponse:
        """Sends one message and returns the response with its reply."""
        ...

    async def stream(
        self,
        url: URL,
        messages: Protobuf | Iterable[Protobuf],
        **options: Unpack[GRPCOptions],
    ) -> GRPCResponse:
        """Sends one message, or all of a list, and returns all replies: a stream of the server, of
        the client, or of both."""
        ...

    def open(
        self, url: URL, **options: Unpack[GRPCOptions]
    ) -> AbstractAsyncContextManager[GRPCStream]:
        """Opens a stream to send and receive on: `async with self.client.grpc.open(url) as stream`.
        A stream that is not finished at the end of the block is cancelled."""
        ...
