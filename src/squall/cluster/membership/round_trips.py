"""The round trip to a member or a datacenter: a smoothed estimate with its deviation.

The median of the last three samples removes a single late answer; mean and deviation follow it as
TCP's do. Time limits and scores take the upper bound, mean plus deviation: a far datacenter whose
answers vary is no better than one that is always as far as its worst answers.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

MEDIAN_OF = 3
MEAN_GAIN = 1 / 8
DEVIATION_GAIN = 1 / 4
"""Both of RFC 6298."""


@dataclass(slots=True)
class RoundTripEstimate:
    mean_ms: float = 0.0
    deviation_ms: float = 0.0
    samples: int = 0
    _recent: deque[float] = field(default_factory=lambda: deque[float](maxlen=MEDIAN_OF))

    def add(self, sample_ms: float) -> None:
        """Adds one measured round trip; ignores a value that cannot be one."""
        if not math.isfinite(sample_ms) or sample_ms < 0:
            return
        self._recent.append(sample_ms)
        self.samples += 1
        value = median(self._recent)
        if self.samples == 1:
            self.mean_ms, self.deviation_ms = value, value / 2
            return
        error = value - self.mean_ms
        self.deviation_ms += DEVIATION_GAIN * (abs(error) - self.deviation_ms)
        self.mean_ms += MEAN_GAIN * error

    @property
    def upper_ms(self) -> float:
        return self.mean_ms + self.deviation_ms
