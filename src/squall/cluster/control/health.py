"""Decides what to do with a node, from three signals.

*Live*: the manager hears it. *Ready*: it may take new work. *Progress*: it executes actions;
finished workflows do not count, or a long test would look like a standstill. A busy node
is not dead, and a node that answers may still do nothing.

The worst rule wins: evict, drain, hold, investigate, route. A standstill of most nodes is
not the fault of one: while more than half of at least four nodes stand still, the manager
drains none of them. Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

import msgspec


class Progress(enum.Enum):
    IDLE = "idle"
    """It has no work."""
    MOVING = "moving"
    STALLED = "stalled"
    """It has work and executed nothing for `stalled_s`."""
    STUCK = "stuck"
    """It has work and executed nothing for `stuck_s`."""


class Decision(enum.IntEnum):
    """The higher one wins."""

    ROUTE = 0
    INVESTIGATE = 1
    """New work goes to other nodes as long as there are any."""
    HOLD = 2
    """No new work."""
    DRAIN = 3
    """No new work; the work it has may end."""
    EVICT = 4
    """Its work goes to other nodes once its lease has ended."""


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True):
    stalled_s: float = 30.0
    stuck_s: float = 120.0
    """After this time without an action a job is stuck."""
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
    """`busy`: load is planned on the node; `still_s`: time since it executed an action."""
    if not busy:
        return Progress.IDLE
    if still_s >= settings.stuck_s:
        return Progress.STUCK
    return Progress.STALLED if still_s >= settings.stalled_s else Progress.MOVING


def is_systemic(still: Collection[str], nodes: int, settings: HealthSettings) -> bool:
    """So many nodes stand still together that the cause is the target or the network."""
    return nodes >= settings.guard_nodes_min and len(still) > settings.guard_share * nodes
