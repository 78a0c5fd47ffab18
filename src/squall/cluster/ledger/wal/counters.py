"""Counters of a log, and a timer for its syncs."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

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
    """Context manager that times one disk call ending in a sync; only one may be active."""

    def __init__(self, clock: Clock, counters: WalCounters, slow_s: float) -> None:
        self._clock = clock
        self._counters = counters
        self._slow_s = slow_s
        self._since: float | None = None

    def age_s(self) -> float:
        """Seconds since the running disk call began; 0 if none is running."""
        return 0.0 if self._since is None else self._clock.now() - self._since

    def __enter__(self) -> None:
        self._since = self._clock.now()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        took = self.age_s()
        self._since = None
        counters = self._counters
        counters.syncs += 1
        counters.sync_s += took
        counters.longest_sync_s = max(counters.longest_sync_s, took)
        counters.slow_syncs += took > self._slow_s
