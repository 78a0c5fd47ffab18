"""Compares the wall clocks of the managers of a group, and reports one that is wrong.

Every note of a manager carries its wall clock. A bad clock decides nothing and refuses nothing:
deadlines and durations use the group clock (R10). But people see wall times, so the managers
report a clock that is far from the others, and stamp jobs by the middle of their clocks.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from squall.runtime.log import Log

CLOCK_OFF_S = 0.5
"""Clocks that are synchronized over a network differ by less; a note takes less time too."""
SAMPLE_S = 5.0
"""A note that waited makes its sender's clock look late, so the newest of the readings within
this time counts: that of the note that waited least."""


class WallClocks:
    """The wall clocks of the managers that sent a note lately, compared with this manager's."""

    def __init__(self, node: str, log: Log) -> None:
        self._node = node
        self._log = log
        # By manager: when a note arrived, and how far its clock was ahead of this one's.
        self._samples: dict[str, deque[tuple[float, float]]] = {}
        self._off: set[str] = set()

    def heard(self, node: str, ahead_s: float, now: float) -> None:
        self._samples.setdefault(node, deque()).append((now, ahead_s))
        self._forget(now)

    def offsets(self, now: float) -> dict[str, float]:
        """Returns how many seconds each known clock, this one included, is ahead of the median."""
        self._forget(now)
        ahead = {node: max(each for _, each in seen) for node, seen in self._samples.items()}
        ahead[self._node] = 0.0
        middle = median(ahead.values())
        return {node: value - middle for node, value in ahead.items()}

    def off(self, now: float) -> dict[str, float]:
        """The clocks that are far from the median. Of two clocks nobody knows which is wrong:
        both are reported, each half of their difference away."""
        return {node: each for node, each in self.offsets(now).items() if abs(each) > CLOCK_OFF_S}

    def corrected(self, wall_s: float, now: float) -> float:
        """The wall time to show to people: this manager's, or the median if this one is off."""
        return wall_s - self.off(now).get(self._node, 0.0)

    def report(self, now: float) -> None:
        """Logs each clock once when it is found to be wrong, and once when it is right again."""
        off = self.off(now)
        for node in sorted(off.keys() - self._off):
            self._log.warning("clock_off", manager=node, ahead_s=round(off[node], 3))
        for node in sorted(self._off - off.keys()):
            self._log.info("clock_on_time", manager=node)
        self._off = set(off)

    def _forget(self, now: float) -> None:
        for node, seen in list(self._samples.items()):
            while seen and now - seen[0][0] > SAMPLE_S:
                seen.popleft()
            if not seen:
                del self._samples[node]
