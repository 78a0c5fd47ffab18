"""What connections of all protocols have in common: how they are opened, limited and closed."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol


class LiveExchange(Protocol):
    """What may wait for an answer. `future` is set while it does; the sweep of a share ends it with
    `fail` when its time is up."""

    future: Any
    started: float
    timeout_s: float
    spent_s: float

    def fail(self, reason: str, now: float) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class DialedConnection(LiveExchange, Protocol):
    """A connection as `dial` sees it, which opens it. Over TCP it is an `asyncio.Protocol`."""

    setup: tuple[float, float, float] | None
    """Seconds for name, TCP and TLS; set once it is open."""

    @property
    def transport(self) -> asyncio.Transport:
        """None before `connection_made` and after `connection_lost`."""
        ...

    @property
    def counters(self) -> Any:
        """The `HTTPCounters` of its protocol."""
        ...
