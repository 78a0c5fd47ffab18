"""Reads how busy this machine is: its processors and its memory."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

_STAT = Path("/proc/stat")
_MEMORY = Path("/proc/meminfo")


class MachineUsage(NamedTuple):
    """Shares from 0 to 1; None: this system does not say."""

    cpu: float | None = None
    memory: float | None = None


class UsageMeter:
    """Measures the processors between one reading and the next."""

    def __init__(self, stat: Path = _STAT, memory: Path = _MEMORY) -> None:
        self._stat = stat
        self._memory = memory
        self._last: tuple[int, int] | None = None

    def read(self) -> MachineUsage:
        return MachineUsage(self._cpu(), self._memory_used())

    def _cpu(self) -> float | None:
        now = _cpu_times(self._stat)
        before, self._last = self._last, now
        if now is None or before is None or now[1] <= before[1]:
            return None
        share = (now[0] - before[0]) / (now[1] - before[1])
        return round(min(max(share, 0.0), 1.0), 3)

    def _memory_used(self) -> float | None:
        found: dict[str, int] = {}
        for line in _lines(self._memory):
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = int(value.split()[0])
        total, available = found.get("MemTotal"), found.get("MemAvailable")
        if not total or available is None:
            return None
        return round(1.0 - available / total, 3)


def _cpu_times(path: Path) -> tuple[int, int] | None:
    """Busy and total time of all processors, in ticks since the start of the machine."""
    words = next(iter(_lines(path)), "").split()
    if len(words) < 6 or words[0] != "cpu":
        return None
    # The last two, guest times, are part of user and nice.
    times = [int(word) for word in words[1:9]]
    idle = times[3] + times[4]
    return sum(times) - idle, sum(times)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
