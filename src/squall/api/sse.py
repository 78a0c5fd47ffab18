"""The author's API for server-sent events: the events, and the verb of `self.client.sse`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Protocol, TypedDict, Unpack

import msgspec

from squall.api.arguments import URL, Auth, Cookies, Headers, Params
from squall.api.results import CallResult


class SSEEvent(NamedTuple):
    """One event of a stream."""

    event: str
    """Its type; `"message"` if the server gave none."""
    data: str
    """Its lines of data, joined by line breaks."""
    id: str
    """The last id that the server sent; a reconnect names it."""
    at: float
    """When its last byte arrived: a `time.perf_counter` reading."""

    def json(self) -> Any:
        """The data as JSON. Raises a `ValueError` that says where it is malformed."""
        return msgspec.json.decode(self.data)


class SSEResponse(CallResult, msgspec.Struct, eq=False):
    """The events of one `listen`. Stamps are `time.perf_counter` readings: `started` is when the
    first request was sent, `ended` when the last event arrived."""

    protocol: ClassVar[str] = "sse"

    events: list[SSEEvent]
    """In the order received."""
    url: str
    """The absolute address of the stream."""
    started: float
    ended: float
    connections: int = 1
    """1, and one more for each reconnect."""
    answered: bool = True
    exchanges: int = 1

    @property
    def first_event_s(self) -> float:
        """Seconds from the request to the first event; 0 without events."""
        return self.events[0].at - self.started if self.events else 0.0

    @property
    def gaps(self) -> list[float]:
        """Seconds between each event and the next one."""
        return [after.at - before.at for before, after in pairwise(self.events)]

    @property
    def failure(self) -> str:
        """Why the call counts as failed; empty, because a stream that fails raises."""
        return ""

    def __repr__(self) -> str:
        return f"<SSEResponse {len(self.events)} events, {self.url}>"


class ListenOptions(TypedDict, total=False):
    """The keywords of `listen`."""

    events: int | None
    """How many events to wait for."""
    until: Callable[[SSEEvent], bool] | None
    """Ends with the first event for which it returns True."""
    reconnect: bool
    """Whether to connect again when the server ends the stream before that; True by default."""
    timeout: str | float | None
    """Limit for the whole call. Without `events` and `until` it says how long to listen."""
    headers: Headers | None
    """Headers of the request."""
    params: Params | None
    """Query parameters, added to the query of the URL."""
    cookies: Cookies | None
    """Cookies of this request, added to those of the user."""
    auth: Auth | None
    """Credentials; they replace an `Authorization` header."""
    path: Mapping[str, str | float] | None
    """Values for the `{name}` parts of the URL; they are percent-encoded."""


class SSEVerbs(Protocol):
    """`self.client.sse`: streams of server-sent events over HTTP/1.1.

    Every call has a connection of its own, which is closed at its end.
    """

    async def listen(self, url: URL, **options: Unpack[ListenOptions]) -> SSEResponse:
        """Opens a stream and returns its events: after `events` of them, at the one that `until`
        waits for, or after `timeout` if neither is given. Raises `TransportError` if they do not
        come in time, or if the answer is no event stream."""
        ...
