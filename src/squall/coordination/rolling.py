"""Figures over the last cycles of one member: percentiles, counts in a window, contention.

Fixed memory: a ring of 100 durations, and the moments of at most a few dozen changes. It
reads no clock.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable

import msgspec

from squall.coordination.timing import BEATS_PER_LEASE, LOCAL_LIMIT

RING = 100
CONTENTION_PAUSE_S = 30.0
FLAPPING_ADVICE = "raise lease_ttl or min_epoch_duration; look at the network and at crashes"


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """How one member has fared since its start; percentiles are over the last 100. The same is in
    the metrics for Prometheus."""

    heartbeats_sent: int
    heartbeats_failed: int
    heartbeat_p99_s: float
    elections_stood: int
    elections_seen: int
    """Whose length this member saw: from the end of one coordinator to the next."""
    election_p99_s: float
    leader_changes: int
    promotions: int
    demotions: dict[str, int]
    """By reason."""
    renewals: int
    fencing_rejections: int
    epoch_drift_events: int
    contention_events: int
    """All of them; at most one in 30 s is told."""


class Ring:
    """The last 100 values; about 800 bytes."""

    def __init__(self, size: int = RING) -> None:
        self._values = array("d", bytes(8 * size))
        self._next = 0
        self.count = 0

    def add(self, value: float) -> None:
        self._values[self._next] = value
        self._next = (self._next + 1) % len(self._values)
        self.count += 1

    def percentile(self, share: float) -> float:
        """Nearest rank; 0.0 without values."""
        held = min(self.count, len(self._values))
        if not held:
            return 0.0
        ordered = sorted(self._values[:held])
        return ordered[max(math.ceil(share * held), 1) - 1]


class Changes:
    """Whether something changes too often: more than `most` times in `window_s`."""

    def __init__(self, most: int = 5, window_s: float = 600.0) -> None:
        self._most = most
        self.window_s = window_s
        self._moments: deque[float] = deque()

    def note(self, now: float) -> int | None:
        """Counts one change; the number in the window if it is too many, and then begins a
        new window, so that one burst is told once."""
        self._moments.append(now)
        while self._moments and now - self._moments[0] > self.window_s:
            self._moments.popleft()
        count = len(self._moments)
        if count <= self._most:
            return None
        self._moments.clear()
        return count


class Contention:
    """Whether the heartbeat falls behind, told at most once in 30 s."""

    def __init__(self, threshold: float, interval: float) -> None:
        self._threshold = threshold
        self.expected = interval
        self._told_at = -math.inf
        self.suppressed = 0
        self.events = 0
        self.on_event: Callable[[], object] = lambda: None
        """Called for each of them, also for those that are not told."""

    def cycle(
        self, duration_s: float, late_s: float, lease_left: float | None, now: float
    ) -> float | None:
        """The ratio to tell: of a cycle that took too long or began too late, or of a lease
        renewed with less than a third of it left (`lease_left` is a part of 1). For a lease it
        is what has passed of it by the part that passes between two renewals."""
        worst_s = max(duration_s, late_s)
        ratio = worst_s / self.expected
        late_renewal = lease_left is not None and lease_left < 1.0 / 3.0
        if math.isinf(self._threshold):
            return None
        if ratio <= self._threshold and not late_renewal:
            return None
        if lease_left is not None:
            # What is left is counted from the four fifths that its holder uses.
            ratio = max(ratio, (LOCAL_LIMIT - lease_left) * BEATS_PER_LEASE)
        self.events += 1
        self.on_event()
        if now - self._told_at < CONTENTION_PAUSE_S:
            self.suppressed += 1
            return None
        self._told_at = now
        return ratio
