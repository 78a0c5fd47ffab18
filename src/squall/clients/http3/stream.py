"""A stream: one exchange of an HTTP/3 connection, from its request to its end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from squall.api.errors import TransportError
from squall.api.http import HTTP3Response, ResponseHead

if TYPE_CHECKING:
    from squall.clients.http.request import Request
    from squall.clients.http3.connection import HTTP3Connection


class HTTP3Stream:
    """The state of one exchange. It is in the `live` set of its share, whose sweep ends exchanges
    that take too long; `future` is None after its end."""

    __slots__ = (
        "connection",
        "first_byte",
        "future",
        "head",
        "id",
        "parts",
        "size",
        "source",
        "spent_s",
        "started",
        "timeout_s",
        "trailers",
    )

    def __init__(
        self,
        connection: HTTP3Connection,
        future: asyncio.Future[HTTP3Response],
        source: Request,
        timeout_s: float,
        spent_s: float,
    ) -> None:
        self.connection = connection
        self.future: asyncio.Future[HTTP3Response] | None = future
        self.source = source
        self.timeout_s = timeout_s
        self.spent_s = spent_s
        self.id = -1
        self.started = 0.0
        # Set by the final head; interim responses leave it None.
        self.head: ResponseHead | None = None
        self.first_byte = 0.0
        self.parts: list[bytes] = []
        self.size = 0
        self.trailers: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def has_no_body(self) -> bool:
        """Whether the length in the head is that of a body that is not sent (RFC 9110, 8.6)."""
        assert self.head is not None
        return self.source.method == "HEAD" or self.head.status in (204, 304)

    def leave(self, error: TransportError) -> bool:
        """Ends the exchange without an answer; false if the call has been cancelled already."""
        future, self.future = self.future, None
        if future is None or future.done():
            return False
        future.set_exception(error)
        return True

    def fail(self, reason: str, now: float) -> None:
        """Ends the exchange from our side."""
        self.connection.cancel(self)
        error = TransportError(reason, started=self.started, ended=now)
        self.connection.counters.failed += self.leave(error)

    def abandon(self) -> None:
        """Leaves the exchange of a cancelled task. Does nothing if it had ended."""
        if self.future is not None:
            self.future = None
            self.connection.counters.cancelled += 1
            self.connection.cancel(self)

    # In `live` a stream closes with its connection.

    def close(self) -> None:
        self.connection.close()

    def abort(self) -> None:
        self.connection.abort()
