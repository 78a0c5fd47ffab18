"""Statistics over the last cycles of one member: percentiles, change rate, contention.

Memory is bounded: a ring of 100 durations, and the times of a few dozen changes. Callers pass the
time in; nothing here reads a clock.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Callable

import msgspec

from squall.coordination.timing import BEATS_PER_LEASE, LOCAL_LIMIT

RING = 100
# At most one contention event in this time; every one is counted.
CONTENTION_PAUSE_S = 30.0
FLAPPING_ADVICE = "raise lease_ttl or min_epoch_duration; check the network and crashes"


class MemberStats(msgspec.Struct, frozen=True, kw_only=True):
    """What one member counted since its start; percentiles are over the last 100 values. The
    Prometheus metrics contain the same."""

    heartbeats_sent: int
    heartbeats_failed: int
    heartbeat_p99_s: float
    elections_stood: int
    elections_seen: int
    """Elections whose duration this member saw: from the end of one leader to the next."""
    election_p99_s: float
    leader_changes: int
    promotions: int
    demotions: dict[str, int]
    """By reason."""
    renewals: int
    fencing_rejections: int
    epoch_drift_events: int
    contention_events: int
    """All of them; at most one in 30 s becomes an event."""


class RecentValues:
    """Keeps the last 100 values, in about 800 bytes."""

    def __init__(self, size: int = RING) -> None:
        self._values = array("d", bytes(8 * size))
        self._next = 0
        self.count = 0

    def add(self, value: float) -> None:
        self._values[self._next] = value
        self._next = (self._next + 1) % len(self._values)
        self.count += 1

    def percentile(self, share: float) -> float:
        """By nearest rank; 0.0 without values."""
        held = min(self.count, len(self._values))
        if not held:
            return 0.0
        ordered = sorted(self._values[:held])
        return ordered[max(math.ceil(share * held), 1) - 1]


class ChangeRate:
    """Detects that something changes more than `most` times in `window_s`."""

    def __init__(self, most: int = 5, window_s: float = 600.0) -> None:
        self._most = most
        self.window_s = window_s
        self._moments: deque[float] = deque()

    def note(self, now: float) -> int | None:
        """Counts one change. Returns the number in the window if it is too high, and starts a new
        window, so that one burst is reported once."""
        self._moments.append(now)
        while self._moments and now - self._moments[0] > self.window_s:
            self._moments.popleft()
        count = len(self._moments)
        if count <= self._most:
            return None
        self._moments.clear()
        return count


class ContentionDetector:
    """Detects that heartbeats or renewals fall behind; reports at most once in 30 s."""

    def __init__(self, threshold: float, interval: float) -> None:
        self._threshold = threshold
        self.expected = interval
        self._reported_at = -math.inf
        self.suppressed = 0
        self.events = 0
        # Called for every one, also for those that are not reported.
        self.on_event: Callable[[], object] = lambda: None

    def cycle(
        self, duration_s: float, late_s: float, lease_left: float | None, now: float
    ) -> float | None:
        """The ratio to report, or None: of a cycle that took too long or began too late to the
        interval, or of a lease that was renewed with less than a third left (`lease_left` is a
        fraction). For a lease it is the elapsed part by the part between two renewals."""
        worst_s = max(duration_s, late_s)
        ratio = worst_s / self.expected
        late_renewal = lease_left is not None and lease_left < 1.0 / 3.0
        if math.isinf(self._threshold):
            return None
        if ratio <= self._threshold and not late_renewal:
            return None
        if lease_left is not None:
            # `lease_left` counts from the local limit, the four fifths that its holder uses.
            ratio = max(ratio, (LOCAL_LIMIT - lease_left) * BEATS_PER_LEASE)
        self.events += 1
        self.on_event()
        if now - self._reported_at < CONTENTION_PAUSE_S:
            self.suppressed += 1
            return None
        self._reported_at = now
        return ratio
