"""Converts Squall's histogram to the exponential one of Prometheus and OpenTelemetry.

With scale 5 a bucket is 2.2 % wide: bucket i covers (b**i, b**(i+1)] with b = 2**(1/32). The whole
count of a Squall bucket, 0.8 to 1.6 % wide, goes into the bucket that contains its middle.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from squall.stats.histogram import bucket_middle_s, buckets_of
from squall.stats.reports import HistogramData

SCALE = 5
_PER_DOUBLING = 1 << SCALE


class Exponential(NamedTuple):
    """Counts of consecutive buckets, beginning with bucket `offset`."""

    offset: int
    counts: list[int]


def exponential(data: HistogramData) -> Exponential:
    found: dict[int, int] = {}
    for index, count in buckets_of(data):
        at = math.ceil(math.log2(bucket_middle_s(index)) * _PER_DOUBLING) - 1
        found[at] = found.get(at, 0) + count
    if not found:
        return Exponential(0, [])
    first, last = min(found), max(found)
    return Exponential(first, [found.get(at, 0) for at in range(first, last + 1)])
