"""What the signals ask of the member that they belong to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from squall.coordination.stores.interface import Check


@dataclass(frozen=True)
class MemberContext:
    """Questions that only the member can answer, and calls that it offers to its signals."""

    alive: Callable[[], Check | None]
    """The check that binds a write to this boot: it fails once the boot was declared dead. None
    while the member is not registered."""
    isolated: Callable[[], bool]
    """Whether the member may have been replaced without knowing it."""
    boot: Callable[[], int]
    known_epoch: Callable[[], int]
    """The highest epoch of a leader that the member has seen."""
    max_clock_skew: float
    beat: Callable[[], Awaitable[object]]
    """Sends one more heartbeat now."""
    stale_order: Callable[[int, int], None]
    """Called with its epoch and the known one for each order that is refused as stale."""
