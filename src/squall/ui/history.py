"""The data of plots: the last minutes second by second, and the whole run coarsely.

Both are bounded, so a run of six hours needs no more memory than one of ten minutes. When
the whole run has more points than the limit, neighbours are joined: rates by their mean,
percentiles by the higher one, because a plot must not hide a peak.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

LIMIT = 400
"""Two values per column on a terminal of 200 columns."""


class Point(NamedTuple):
    """One second, or several joined ones."""

    rate: float = 0.0
    failed: float = 0.0
    target: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    users: float = 0.0


class History:
    """One workflow or one of its steps over time."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.recent: deque[Point] = deque(maxlen=limit)
        self.whole: list[Point] = []
        # The number of seconds that each point of `whole` covers.
        self.width = 1
        self.count = 0
        self._limit = limit
        self._part: Point | None = None
        self._in_part = 0

    def add(self, point: Point) -> None:
        self.count += 1
        self.recent.append(point)
        self._part = point if self._part is None else _joined(self._part, point, self._in_part)
        self._in_part += 1
        if self._in_part < self.width:
            return
        self.whole.append(self._part)
        self._part, self._in_part = None, 0
        if len(self.whole) >= self._limit:
            pairs = zip(self.whole[::2], self.whole[1::2], strict=False)
            self.whole = [_joined(first, second, 1) for first, second in pairs]
            self.width *= 2

    @property
    def every(self) -> list[Point]:
        """The whole run up to now; the last point may cover less time than the others."""
        return self.whole if self._part is None else [*self.whole, self._part]


def _joined(first: Point, second: Point, weight: int) -> Point:
    """Joins two points; `first` covers `weight` times as much time as `second`."""

    def mean(before: float, after: float) -> float:
        return (before * weight + after) / (weight + 1)

    target = second.target if first.target is None else first.target
    if first.target is not None and second.target is not None:
        target = mean(first.target, second.target)
    return Point(
        rate=mean(first.rate, second.rate),
        failed=mean(first.failed, second.failed),
        target=target,
        p50=_higher(first.p50, second.p50),
        p95=_higher(first.p95, second.p95),
        p99=_higher(first.p99, second.p99),
        users=max(first.users, second.users),
    )


def _higher(first: float | None, second: float | None) -> float | None:
    if first is None or second is None:
        return second if first is None else first
    return max(first, second)
