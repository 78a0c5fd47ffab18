"""Counters of a log, and a timer for its syncs."""

from __future__ import annotations

from dataclasses import dataclass

from squall.runtime.interfaces import Clock


@dataclass(slots=True)
class WalCounters:
    """Counts what a log has written and how long its syncs took, since the start."""

    records: int = 0
    blocks: int = 0
    bytes: int = 0
    syncs: int = 0
    slow_syncs: int = 0
    sync_s: float = 0.0
    longest_sync_s: float = 0.0
    rolls: int = 0
    full: int = 0


class SyncTimer:
    """Times the disk calls that end in a sync, one at a time."""

    def __init__(self, clock: Clock, counters: WalCounters, slow_s: float) -> None:
        self._now = clock.now
        self._counters = counters
        self._slow_s = slow_s
        self._since: float | None = None

    def age_s(self) -> float:
        """Seconds since the running disk call began; 0 if none is running."""
        return 0.0 if self._since is None else self._now() - self._since

    # No context manager: every commit times its sync.

    def begin(self) -> None:
        self._since = self._now()

    def end(self) -> None:
        took = self.age_s()
        self._since = None
        counters = self._counters
        counters.syncs += 1
        counters.sync_s += took
        if took > counters.longest_sync_s:
            counters.longest_sync_s = took
        if took > self._slow_s:
            counters.slow_syncs += 1
