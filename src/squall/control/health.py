"""What to do with a node, from three signals that say different things of it.

*Live*: it is heard. *Ready*: it may take new work. *Progress*: what it has is being done,
counted in executed actions, never in finished workflows, so that a long test is no standstill.
A node that is busy is not dead, and one that answers may still do nothing.

The worst rule wins: evict, drain, hold, investigate, route. What looks the same on most nodes
is no fault of one: while more than half of at least four stand still, none is drained. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

import msgspec


class Progress(enum.Enum):
    IDLE = "idle"
    """Nothing is asked of it."""
    MOVING = "moving"
    STALLED = "stalled"
    """Nothing was executed for a while."""
    STUCK = "stuck"
    """Nothing was executed for long."""


class Decision(enum.IntEnum):
    """The higher one wins."""

    ROUTE = 0
    INVESTIGATE = 1
    """New work goes elsewhere while there is an elsewhere."""
    HOLD = 2
    """No new work."""
    DRAIN = 3
    """No new work; what it has may end."""
    EVICT = 4
    """What it has is given to others, by whatever makes that safe."""


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True):
    stalled_s: float = 30.0
    stuck_s: float = 120.0
    """The time after which a job without an action is stuck."""
    guard_share: float = 0.5
    guard_nodes_min: int = 4


def decision(*, live: bool, ready: bool, progress: Progress) -> Decision:
    if not live:
        return Decision.EVICT
    if progress is Progress.STUCK:
        return Decision.DRAIN
    if not ready:
        return Decision.HOLD
    return Decision.INVESTIGATE if progress is Progress.STALLED else Decision.ROUTE


def progress_of(*, busy: bool, still_s: float, settings: HealthSettings) -> Progress:
    """`busy`: load is planned on it; `still_s`: since it last executed something."""
    if not busy:
        return Progress.IDLE
    if still_s >= settings.stuck_s:
        return Progress.STUCK
    return Progress.STALLED if still_s >= settings.stalled_s else Progress.MOVING


def is_systemic(still: Collection[str], nodes: int, settings: HealthSettings) -> bool:
    """So many stand still together that it is not the nodes: the target, or the network."""
    return nodes >= settings.guard_nodes_min and len(still) > settings.guard_share * nodes
