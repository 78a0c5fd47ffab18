"""Extends the deadline of a worker's operation, if the worker asks and makes progress.

The first grant is half of the base deadline, each later one half of the grant before, down
to a minimum. There are five at most, so all of them together stay below one more base
deadline. A worker that made no progress since its last grant gets nothing. The last grant but
one carries a warning. A worker that asks after the last grant is exhausted: a grace period
begins, and the operation is ended neither before it is over nor before the deadline.

One `Extensions` object serves one operation of one worker. Pure: times are readings of the
owner's clock; answers carry durations.
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
    """Number of grants left when the warning is sent."""
    grace_s: float = 10.0
    """Counted from the first request after the last grant."""


DEFAULTS = ExtensionSettings()


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one request for more time."""

    granted_s: float = 0.0
    left: int = 0
    denial: Denial = ""
    is_warning: bool = False
    grace_left_s: float = 0.0
    """After the last grant: the time before the operation may be ended."""

    @property
    def is_granted(self) -> bool:
        return not self.denial


@dataclass(slots=True)
class Extensions:
    """The grants of one operation whose deadline is `base_s` after `began`."""

    began: float
    base_s: float
    settings: ExtensionSettings = DEFAULTS
    count: int = 0
    total_s: float = 0.0
    progress: int = -1
    """The worker's progress at its last grant; a count that only rises."""
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
        """The operation may be ended from here on."""
        if self.exhausted_at is None:
            return self.deadline
        return max(self.deadline, self.exhausted_at + self.settings.grace_s)
