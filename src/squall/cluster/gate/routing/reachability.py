"""Whether the managers of a datacenter answer this gate's probes.

    UNKNOWN ──answer──► REACHABLE ──5 misses──► SUSPECTED ──30 s──► UNREACHABLE
                            ▲                        │                    │
                            └────────answer──────────┴────────────────────┘

A miss is one probe that no known manager of the datacenter answered. Any answer, also a late one
and one of a manager that does not lead, proves that the datacenter is reachable.

If half of the datacenters, and at least two, become suspected together, the gate's own network is
the likely cause. Then none of them is called unreachable for up to a minute, and none gets new
jobs. A gate whose process stood still does not count that time: it could not hear anything.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

from squall.cluster.gate.routing.settings import RoutingSettings

STOOD_STILL_S = 3.0
"""A gap between two checks that is longer was a standstill of this process: checks come with every
probe round, every two seconds at most."""


class Reachability(enum.Enum):
    UNKNOWN = "unknown"
    """No manager has answered yet, and too few probes were missed to say more."""
    REACHABLE = "reachable"
    SUSPECTED = "suspected"
    UNREACHABLE = "unreachable"


@dataclass(slots=True)
class Reach:
    """What this gate knows of the links to one datacenter.

    Invariants: `misses` is 0 while REACHABLE after an answer; `suspected_at` is finite exactly in
    SUSPECTED and UNREACHABLE; `heard_at` never falls."""

    state: Reachability = Reachability.UNKNOWN
    misses: int = 0
    # When any manager last answered; -infinity: never.
    heard_at: float = -math.inf
    suspected_at: float = math.inf
    # When the first probe was sent: what a datacenter that never answered is measured from.
    asked_at: float = math.inf

    def answered(self, now: float) -> None:
        self.state = Reachability.REACHABLE
        self.misses = 0
        self.heard_at = max(self.heard_at, now)
        self.suspected_at = math.inf

    def missed(self, asked_at: float, now: float, settings: RoutingSettings) -> None:
        """Counts a probe, sent at `asked_at`, that got no answer."""
        if asked_at < self.heard_at:
            # An answer to a later probe has arrived since: this one was lost alone.
            return
        if now - asked_at > settings.probe_timeout_s + STOOD_STILL_S:
            # This process stood still while it waited.
            return
        self.misses += 1
        undecided = self.state in (Reachability.UNKNOWN, Reachability.REACHABLE)
        if undecided and self.misses >= settings.misses_max:
            self.state = Reachability.SUSPECTED
            self.suspected_at = now

    def silent_s(self, now: float) -> float:
        """Seconds without an answer, from the first probe on."""
        since = self.heard_at if math.isfinite(self.heard_at) else self.asked_at
        return max(now - since, 0.0) if math.isfinite(since) else 0.0


class CorrelationGuard:
    """Declares datacenters unreachable, unless most of them fell silent together."""

    def __init__(self, settings: RoutingSettings) -> None:
        self._settings = settings
        self._checked_at: float | None = None
        # Since when the guard holds datacenters back; infinity: it does not.
        self._holds_since = math.inf
        self.held: frozenset[str] = frozenset()
        """The datacenters that are suspected together."""

    @property
    def holds(self) -> bool:
        return bool(self.held)

    def check(self, reaches: Mapping[str, Reach], now: float) -> list[str]:
        """Moves suspected datacenters to unreachable; returns these. Call it with every round."""
        self._forgive_standstill(reaches, now)
        settings = self._settings
        suspected = {
            name: reach for name, reach in reaches.items() if reach.state is Reachability.SUSPECTED
        }
        together = self._together(suspected, len(reaches))
        if not together:
            self._holds_since = math.inf
        elif math.isinf(self._holds_since):
            self._holds_since = now
        over = now - self._holds_since >= settings.guard_hold_s
        self.held = frozenset() if over else together
        fallen = [
            name
            for name, reach in suspected.items()
            if now - reach.suspected_at >= settings.unreachable_s and name not in self.held
        ]
        for name in fallen:
            reaches[name].state = Reachability.UNREACHABLE
        return sorted(fallen)

    def _together(self, suspected: Mapping[str, Reach], known: int) -> frozenset[str]:
        """The largest set that became suspected within the window, if it is large enough."""
        settings = self._settings
        best: frozenset[str] = frozenset()
        for first in suspected.values():
            until = first.suspected_at + settings.guard_window_s
            found = frozenset(
                name
                for name, reach in suspected.items()
                if first.suspected_at <= reach.suspected_at <= until
            )
            best = max(best, found, key=len)
        enough = len(best) >= 2 and len(best) >= settings.guard_share * known
        return best if enough else frozenset()

    def _forgive_standstill(self, reaches: Mapping[str, Reach], now: float) -> None:
        before, self._checked_at = self._checked_at, now
        gap_s = now - before if before is not None else 0.0
        if gap_s <= STOOD_STILL_S:
            return
        if math.isfinite(self._holds_since):
            self._holds_since += gap_s
        for reach in reaches.values():
            reach.misses = 0
            if reach.state is Reachability.SUSPECTED:
                reach.suspected_at += gap_s
