"""How much longer a worker may take for something that has a deadline, if it asks.

Never by itself: a worker that needs longer says how far it is. The first grant is half of
the base deadline, each later one half of the one before, down to a least one; five at most,
so that all of them together stay below one more base deadline. Who has not moved on since
its last grant gets nothing. With the last but one comes a warning, once. Whoever asks after
the last is exhausted: a time of grace begins, and nothing is ended before it is over, nor
before the deadline.

One tracker for each worker and operation; a new operation begins with a new one. Pure: times
are readings of the owner's clock, and what is told to others are durations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

Denial = Literal["", "no progress", "no extension left", "too late"]


class ExtensionSettings(msgspec.Struct, frozen=True, kw_only=True):
    least_s: float = 1.0
    extensions_max: int = 5
    warns_at: int = 1
    """Extensions that are left when the warning comes."""
    grace_s: float = 10.0
    """From the first request that is denied for their number."""


DEFAULTS = ExtensionSettings()


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """What an asker is told."""

    granted_s: float = 0.0
    left: int = 0
    denial: Denial = ""
    is_warning: bool = False
    grace_left_s: float = 0.0
    """Exhausted: until it is ended at the earliest."""

    @property
    def is_granted(self) -> bool:
        return not self.denial


@dataclass(slots=True)
class Extensions:
    """One operation that is to be over `base_s` after `began`."""

    began: float
    base_s: float
    settings: ExtensionSettings = DEFAULTS
    count: int = 0
    total_s: float = 0.0
    progress: int = -1
    """How far it was at its last grant, as a count that only rises."""
    exhausted_at: float | None = None
    warned: bool = False

    def ask(self, progress: int, now: float) -> Extension:
        left = self.settings.extensions_max - self.count
        if now >= self.ends_at:
            return Extension(left=left, denial="too late")
        if left <= 0:
            if self.exhausted_at is None:
                self.exhausted_at = now
            grace_left_s = max(self.ends_at - now, 0.0)
            return Extension(denial="no extension left", grace_left_s=grace_left_s)
        if progress <= self.progress:
            return Extension(left=left, denial="no progress")
        self.count += 1
        self.progress = progress
        granted_s = max(self.settings.least_s, self.base_s / 2**self.count)
        self.total_s += granted_s
        is_warning = left - 1 <= self.settings.warns_at and not self.warned
        self.warned = self.warned or is_warning
        return Extension(granted_s=granted_s, left=left - 1, is_warning=is_warning)

    @property
    def deadline(self) -> float:
        return self.began + self.base_s + self.total_s

    @property
    def ends_at(self) -> float:
        """Not ended before this moment."""
        if self.exhausted_at is None:
            return self.deadline
        return max(self.deadline, self.exhausted_at + self.settings.grace_s)
