"""Cores of jobs that this gate sent to a datacenter and that its reports do not count yet.

A report is up to a probe old. Without this count, all jobs of two seconds would go to the same
datacenter, which looked empty.
"""

from __future__ import annotations

import math


class UnreportedCores:
    """The parts under way to one datacenter."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        # By part (job and try): its cores, and when the datacenter accepted it (infinity: not yet).
        self._parts: dict[str, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def cores(self) -> int:
        return sum(cores for cores, _ in self._parts.values())

    def dispatched(self, part: str, cores: int) -> None:
        """Harmless to repeat: a new primary calls it for every part without an answer."""
        self._parts.setdefault(part, (cores, math.inf))

    def accepted(self, part: str, now: float) -> None:
        if part in self._parts:
            cores, before = self._parts[part]
            self._parts[part] = (cores, min(before, now))

    def over(self, part: str) -> None:
        """Removes a part that was refused or cancelled, or that ended: it takes no core."""
        self._parts.pop(part, None)

    def reported(self, asked_at: float) -> None:
        """Removes the parts that a report counts: those placed before `asked_at`, when the gate
        asked for it."""
        counted = [
            part
            for part, (_, accepted_at) in self._parts.items()
            if accepted_at + self._settle_s <= asked_at
        ]
        for part in counted:
            del self._parts[part]
