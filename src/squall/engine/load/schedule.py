"""When iterations start (open models) and how many users run (closed models), by share.

Open: let I(t) be the integral of the rate from 0 to t. Start i (0, 1, 2 ...) is planned
for the moment at which I rises above i, rounded down to the 1 ms grid; starts exist for
all i < I(duration), so 500/s for 300 s are exactly 150,000 and none falls into a pause.
Share k of n takes the starts with i mod n = k: the shares together are exactly the whole
plan without communication, and a later attempt at a share continues its residue.

Closed ramps: user j belongs to share j mod n. On the way up from a to b, user j joins
when the line passes j; on the way down it leaves there. So the first user of a ramp runs
from the beginning and the last one is there before the stage ends.

Pure arithmetic on the time since the run began; nothing here reads a clock.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from squall.stats.manifest import Profile, Stage

_GRID_PER_S = 1000
# Rounding slack of the grid, in grid cells: far above the error of the arithmetic
# (1e-8 cells after a day), far below anything that could be seen.
_CELL_SLACK = 1e-6
# Starts computed in one go; at 5,000/s a few times a second, some 50 us each.
_CHUNK_STARTS = 1024

_Floats = npt.NDArray[np.float64]


def with_rate(profile: Profile, rate_per_s: float) -> Profile:
    """The profile of an open model whose rate an operator set."""
    return msgspec.structs.replace(profile, model="open", rate_per_s=rate_per_s, stages=())


class StartSchedule:
    """The planned starts of one share of an open model, to be taken as time passes."""

    def __init__(
        self, profile: Profile, share: int = 0, shares: int = 1, *, start_at_s: float = 0.0
    ) -> None:
        """With `start_at_s`, only the starts planned at or after that moment."""
        if not profile.is_open:
            raise ValueError(f"a {profile.model} model has no planned starts")
        _check_share(share, shares)
        self._plan = _StartPlan(profile)
        self._share = share
        self._shares = shares
        # The indices of this share's starts in the whole plan.
        self._of_share = range(share, self._plan.total, shares)
        first_cell = math.ceil(start_at_s * _GRID_PER_S - _CELL_SLACK)
        self._first = bisect_left(self._of_share, first_cell, key=self._plan.cell)
        self._loaded = self._first
        self._chunk: list[float] = []
        self._at = 0
        self._next_s = math.inf
        self._load()

    @property
    def total(self) -> int:
        """How many starts this schedule gives from its beginning to its end."""
        return len(self._of_share) - self._first

    def next_time(self) -> float:
        """When the next start is planned; infinity when there is none."""
        return self._next_s

    def take(self, now_s: float) -> list[float]:
        """The planned times up to and including now that were not taken yet, in order."""
        if self._next_s > now_s:
            return []
        taken: list[float] = []
        while self._chunk and self._next_s <= now_s:
            end = bisect_right(self._chunk, now_s, self._at)
            taken += self._chunk[self._at : end]
            if end < len(self._chunk):
                self._at = end
                self._next_s = self._chunk[end]
            else:
                self._load()
        return taken

    def planned_until(self, now_s: float) -> int:
        """How many of `total` are planned up to and including now, taken or not."""
        cell = math.floor(now_s * _GRID_PER_S + _CELL_SLACK)
        return max(bisect_right(self._of_share, cell, key=self._plan.cell) - self._first, 0)

    def _load(self) -> None:
        indices = self._of_share[self._loaded : self._loaded + _CHUNK_STARTS]
        self._loaded += len(indices)
        cells = self._plan.cells(np.array(indices, np.float64))
        self._chunk = (cells / _GRID_PER_S).tolist()
        self._at = 0
        self._next_s = self._chunk[0] if self._chunk else math.inf


class UserSchedule:
    """How many users of one share exist at a time; constant models never change."""

    def __init__(self, profile: Profile, share: int = 0, shares: int = 1) -> None:
        _check_share(share, shares)
        first = len(range(share, profile.vus, shares))
        self._times_s: list[float] = [-math.inf]
        self._counts: list[int] = [first]
        start_s, level = 0.0, profile.vus
        for stage in profile.stages if profile.model == "ramp" else ():
            self._add_stage(start_s, level, stage, share, shares)
            start_s += stage.duration_s
            level = int(stage.target)

    def target(self, now_s: float) -> int:
        return self._counts[bisect_right(self._times_s, now_s) - 1]

    def next_change(self, now_s: float) -> float:
        """The first moment after now at which `target` differs; infinity when there is none."""
        at = bisect_right(self._times_s, now_s)
        return self._times_s[at] if at < len(self._times_s) else math.inf

    def _add_stage(self, start_s: float, level: int, stage: Stage, share: int, n: int) -> None:
        target = int(stage.target)
        if target > level:
            slope_s = stage.duration_s / (target - level)
            for user in range(_first_at_least(level, share, n), target, n):
                self._change(start_s + (user - level) * slope_s, +1)
        elif target < level:
            slope_s = stage.duration_s / (level - target)
            leaving = range(_first_at_least(target, share, n), level, n)
            for user in reversed(leaving):
                # The last user leaves exactly at the stage's end, without a rounding error.
                after_s = stage.duration_s if user == target else (level - user) * slope_s
                self._change(start_s + after_s, -1)

    def _change(self, time_s: float, by: int) -> None:
        count = self._counts[-1] + by
        if self._times_s[-1] < time_s:
            self._times_s.append(time_s)
            self._counts.append(count)
        else:
            self._counts[-1] = count
            # The level returned within one moment, so nothing changed.
            if len(self._counts) > 1 and self._counts[-2] == count:
                self._times_s.pop()
                self._counts.pop()


class _StartPlan:
    """The whole plan of an open model: index of a start to its cell of the grid."""

    def __init__(self, profile: Profile) -> None:
        if profile.model == "open":
            points = [(0.0, profile.rate_per_s), (profile.duration_s, profile.rate_per_s)]
        else:
            points = [(0.0, profile.rate_per_s)]
            for stage in profile.stages:
                points.append((points[-1][0] + stage.duration_s, stage.target))
        pieces = [
            (t0, t1, r0, r1, _snapped((r0 + r1) / 2 * (t1 - t0)))
            for (t0, r0), (t1, r1) in pairwise(points)
            if t1 > t0
        ]
        sums = [_snapped(math.fsum(piece[4] for piece in pieces[:n])) for n in range(len(pieces))]
        integral = _snapped(math.fsum(piece[4] for piece in pieces))
        self.total = math.ceil(integral)
        columns: _Floats = np.array(pieces, np.float64).T
        self._t0: _Floats = columns[0]
        self._t1: _Floats = columns[1]
        self._r0: _Floats = columns[2]
        self._r1: _Floats = columns[3]
        self._area: _Floats = columns[4]
        self._sum = np.array(sums, np.float64)
        self._slope: _Floats = (self._r1 - self._r0) / (self._t1 - self._t0)
        self._last_cell = math.ceil(profile.duration_s * _GRID_PER_S - _CELL_SLACK) - 1

    def cell(self, index: int) -> int:
        return int(self.cells(np.array([index], np.float64))[0])

    def cells(self, indices: _Floats) -> _Floats:
        """Where I rises above each index, in whole grid cells."""
        # "right" finds the last piece that begins at the index: the one after a pause.
        piece = np.searchsorted(self._sum, indices, side="right") - 1
        done = indices - self._sum[piece]
        slope = self._slope[piece]
        # Solved from the lower end of each line. From the higher end, a ramp down to 0
        # would lose half of the digits where the rate vanishes.
        rising = slope >= 0
        area = np.where(rising, done, np.maximum(self._area[piece] - done, 0.0))
        low_rate = np.where(rising, self._r0[piece], self._r1[piece])
        root: _Floats = np.sqrt(low_rate * low_rate + 2.0 * np.abs(slope) * area)
        below = low_rate + root
        # Nothing done on a line that begins at rate 0 is 0 / 0, and means "at its end".
        away_s = np.divide(2.0 * area, below, out=np.zeros_like(area), where=below > 0)
        time_s = np.where(rising, self._t0[piece] + away_s, self._t1[piece] - away_s)
        cells = np.floor(time_s * _GRID_PER_S + _CELL_SLACK)
        return np.clip(cells, 0, self._last_cell)


def _snapped(area: float) -> float:
    """A sum of floats that is a whole number but for rounding, made whole."""
    whole = round(area)
    return float(whole) if math.isclose(area, whole, rel_tol=1e-12, abs_tol=1e-9) else area


def _first_at_least(low: int, share: int, shares: int) -> int:
    return low + (share - low) % shares


def _check_share(share: int, shares: int) -> None:
    if not 0 <= share < shares:
        raise ValueError(f"share {share} of {shares}")
