"""Squall's histogram, "log2-64": 64 buckets for each power of two of microseconds.

A value's bucket is the exponent and the first six mantissa bits of its length in
microseconds, read from the bits of the double, so every machine and every process
computes the same index and histograms merge by adding counts. 2,048 buckets reach
from 1 us to 2**32 us (71 minutes); smaller values share bucket 0 and larger ones the
last. A bucket is represented by its middle, at most 1/128 (0.8 %) from any value in it.

Count, sum, minimum and maximum are exact. Percentiles are only ever read from merged
buckets; nothing here averages percentiles or drops a sample. Only this module and the
judgement of `squall compare` import numpy.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterable, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from squall.stats.reports import HistogramData

KIND = "log2-64"
UNIT = "us"
BUCKETS = 2048
RELATIVE_ERROR = 1 / 128

Floats: TypeAlias = "array[float] | NDArray[np.float64]"

_MANTISSA_BITS = 6
_BAND_BUCKETS = 1 << (_MANTISSA_BITS - 1)
_SHIFT = 52 - _MANTISSA_BITS
_BIAS = 1023 << _MANTISSA_BITS
_LAST = BUCKETS - 1
_US_PER_S = 1e6
# 0.07 * 100 is 7.000000000000001 in floats; without this factor its rank would be 8.
_RANK_SLACK = 1 - 1e-12

_WIDTHS = ((1 << 8, "<u1"), (1 << 16, "<u2"), (1 << 32, "<u4"), (1 << 63, "<u8"))
_OF_WIDTH = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}
# From this many histograms on, one pass over all is faster than one pass for each.
_MANY = 16

# `map` with these runs in C, because thousands of histograms are added each second.
_COUNT, _SUM_S = attrgetter("count"), attrgetter("sum_s")
_MIN_S, _MAX_S = attrgetter("min_s"), attrgetter("max_s")
_INDEX, _COUNTS = attrgetter("index"), attrgetter("counts")

_DOUBLE = struct.Struct("<d")
_INT64 = struct.Struct("<q")


def bucket_index(seconds: float) -> int:
    """The bucket of one value, computed with Python integers only."""
    bits: int = _INT64.unpack(_DOUBLE.pack(seconds * _US_PER_S))[0]
    return min(max((bits >> _SHIFT) - _BIAS, 0), _LAST)


def bucket_indices(seconds: NDArray[np.float64]) -> NDArray[np.int64]:
    """The buckets of many values; equal to `bucket_index` of each."""
    bits = (seconds * _US_PER_S).view(np.int64)
    index = (bits >> _SHIFT) - _BIAS
    return np.clip(index, 0, _LAST, out=index)


def bucket_bounds_s(index: int) -> tuple[float, float]:
    """Inclusive lower and exclusive upper bound of a bucket, in seconds."""
    return _edge_us(index) / _US_PER_S, _edge_us(index + 1) / _US_PER_S


@cache
def bucket_middle_s(index: int) -> float:
    """The value that represents the bucket."""
    return (_edge_us(index) + _edge_us(index + 1)) / 2 / _US_PER_S


def rank_of(q: float, count: int) -> int:
    """Nearest rank: the smallest k in 1..count with at least q * count values up to the k-th."""
    return min(max(math.ceil(q * count * _RANK_SLACK), 1), count)


def make_data(
    count: int,
    sum_s: float,
    min_s: float,
    max_s: float,
    index: Sequence[int] | NDArray[Any],
    counts: Sequence[int] | NDArray[Any],
) -> HistogramData:
    """Makes the sparse form from filled buckets in ascending order."""
    packed = np.asarray(counts, dtype=np.int64)
    most = int(packed.max()) if packed.size else 0
    width = next(kind for limit, kind in _WIDTHS if most < limit)
    return HistogramData(
        count,
        sum_s,
        min_s,
        max_s,
        np.asarray(index, dtype="<u2").tobytes(),
        packed.astype(width).tobytes(),
    )


def filled_buckets(data: HistogramData) -> NDArray[np.uint16]:
    """The numbers of the filled buckets, ascending."""
    return np.frombuffer(data.index, dtype="<u2")


def bucket_counts(data: HistogramData) -> NDArray[Any]:
    """The counts of the filled buckets, in their order."""
    size = len(data.index) // 2
    kind = _OF_WIDTH.get(len(data.counts) // size if size else 1)
    if kind is None:
        raise ValueError(f"{len(data.counts)} bytes cannot be the counts of {size} buckets")
    return np.frombuffer(data.counts, dtype=kind)


def buckets_of(data: HistogramData) -> list[tuple[int, int]]:
    """Number and count of each filled bucket."""
    pairs = zip(filled_buckets(data).tolist(), bucket_counts(data).tolist(), strict=True)
    return list(pairs)


def summed(parts: Iterable[HistogramData]) -> HistogramData:
    """Adds sparse histograms into one."""
    nonempty = [part for part in parts if part.count]
    if not nonempty:
        return HistogramData()
    if len(nonempty) == 1:
        return nonempty[0]
    table = np.zeros(BUCKETS, dtype=np.int64)
    # A second of one share seldom has more than 255 in a bucket. Such narrow histograms are
    # joined first: an array for each would cost more than the addition.
    narrow = [part for part in nonempty if 2 * len(part.counts) == len(part.index)]
    apart = nonempty
    if len(narrow) >= _MANY:
        index = np.frombuffer(b"".join(map(_INDEX, narrow)), dtype="<u2")
        counts = np.frombuffer(b"".join(map(_COUNTS, narrow)), dtype="<u1")
        # `bincount` adds floats; counts stay far below 2**53, so the sums are exact.
        table += np.bincount(index, counts, minlength=BUCKETS).astype(np.int64)
        apart = [part for part in nonempty if 2 * len(part.counts) != len(part.index)]
    for part in apart:
        table[filled_buckets(part)] += bucket_counts(part)
    filled = np.flatnonzero(table)
    return make_data(
        sum(map(_COUNT, nonempty)),
        sum(map(_SUM_S, nonempty)),
        min(map(_MIN_S, nonempty)),
        max(map(_MAX_S, nonempty)),
        filled,
        table[filled],
    )


def data_quantile(data: HistogramData, q: float) -> float:
    """`Histogram.quantile` of the sparse form; 0.0 without samples."""
    if data.count == 0:
        return 0.0
    rank = _checked_rank(q, data.count)
    if rank == 1:
        return data.min_s
    if rank == data.count:
        return data.max_s
    if 2 * len(data.counts) == len(data.index):
        # One byte per bucket, the usual case: high quantiles are a few steps from the top.
        place, above = len(data.counts), data.count - rank
        while place and above >= 0:
            place -= 1
            above -= data.counts[place]
        index = int.from_bytes(data.index[2 * place : 2 * place + 2], "little")
        return min(max(bucket_middle_s(index), data.min_s), data.max_s)
    seen = 0
    for index, count in buckets_of(data):
        seen += count
        if seen >= rank:
            return min(max(bucket_middle_s(index), data.min_s), data.max_s)
    return data.max_s


class Histogram:
    """Counts per bucket with exact count, sum, minimum and maximum, all in seconds."""

    __slots__ = ("count", "counts", "max_s", "min_s", "sum_s")

    counts: NDArray[np.int64]
    count: int
    sum_s: float
    min_s: float
    max_s: float

    def __init__(self) -> None:
        self.counts = np.zeros(BUCKETS, dtype=np.int64)
        self.count = 0
        self.sum_s = 0.0
        self.min_s = 0.0
        self.max_s = 0.0

    @classmethod
    def from_data(cls, data: HistogramData) -> Histogram:
        histogram = cls()
        histogram.merge_data(data)
        return histogram

    @classmethod
    def from_seconds(cls, values: Iterable[float]) -> Histogram:
        histogram = cls()
        histogram.add_seconds(array("d", values))
        return histogram

    def add_seconds(self, values: Floats) -> None:
        """Adds many samples at once. The array is only read, and not kept.

        Raises ValueError, having changed nothing, if a value is not finite.
        """
        samples = np.frombuffer(values, dtype=np.float64)
        size = samples.size
        if size == 0:
            return
        total = float(samples.sum())
        if not math.isfinite(total):
            raise ValueError("a histogram takes finite numbers only")
        self._note(size, total, float(samples.min()), float(samples.max()))
        self.counts += np.bincount(bucket_indices(samples), minlength=BUCKETS)

    def add_one(self, seconds: float) -> None:
        if not math.isfinite(seconds):
            raise ValueError("a histogram takes finite numbers only")
        self._note(1, seconds, seconds, seconds)
        self.counts[bucket_index(seconds)] += 1

    def merge(self, other: Histogram) -> None:
        if other.count == 0:
            return
        self._note(other.count, other.sum_s, other.min_s, other.max_s)
        self.counts += other.counts

    def merge_data(self, data: HistogramData) -> None:
        """Adds a sparse histogram from a report."""
        if data.count == 0:
            return
        self._note(data.count, data.sum_s, data.min_s, data.max_s)
        # Indices are unique; with repeated ones, indexed addition would lose counts.
        self.counts[filled_buckets(data)] += bucket_counts(data)

    def to_data(self) -> HistogramData:
        filled = np.flatnonzero(self.counts)
        counts = self.counts[filled]
        return make_data(self.count, self.sum_s, self.min_s, self.max_s, filled, counts)

    def clear(self) -> None:
        self.counts.fill(0)
        self.count = 0
        self.sum_s = self.min_s = self.max_s = 0.0

    @property
    def mean(self) -> float:
        """In seconds; exact but for rounding; 0.0 without samples."""
        return self.sum_s / self.count if self.count else 0.0

    def quantile(self, q: float) -> float:
        """The value of nearest rank `ceil(q * count)` in seconds; 0.0 without samples.

        The lowest and the highest rank give the exact minimum and maximum.
        """
        return self.quantiles((q,))[0]

    def quantiles(self, qs: Sequence[float]) -> list[float]:
        """Several quantiles with one pass over the buckets."""
        if self.count == 0:
            return [0.0] * len(qs)
        ranks = [_checked_rank(q, self.count) for q in qs]
        found: list[int] = np.searchsorted(np.cumsum(self.counts), ranks).tolist()
        return [self._value(rank, index) for rank, index in zip(ranks, found, strict=True)]

    def bands(self) -> tuple[int, ...]:
        """Counts in halves of powers of two, for a heat map: band, count, band, count ...

        Band 2n begins at 2**n microseconds, band 2n + 1 at 1.5 times that. Empty ones are left out.
        """
        if self.count == 0:
            return ()
        sums = self.counts.reshape(-1, _BAND_BUCKETS).sum(axis=1)
        filled = np.flatnonzero(sums)
        return tuple(np.column_stack((filled, sums[filled])).ravel().tolist())

    def copy(self) -> Histogram:
        twin = Histogram()
        twin.merge(self)
        return twin

    def __eq__(self, other: object) -> bool:
        """Same samples as far as a histogram can tell (sums may differ by rounding)."""
        if not isinstance(other, Histogram):
            return NotImplemented
        return (
            self.count == other.count
            and self.min_s == other.min_s
            and self.max_s == other.max_s
            and math.isclose(self.sum_s, other.sum_s, rel_tol=1e-9, abs_tol=1e-12)
            and bool(np.array_equal(self.counts, other.counts))
        )

    def __repr__(self) -> str:
        return f"Histogram(count={self.count}, min_s={self.min_s:g}, max_s={self.max_s:g})"

    def _value(self, rank: int, index: int) -> float:
        if rank == 1:
            return self.min_s
        if rank == self.count:
            return self.max_s
        return min(max(bucket_middle_s(index), self.min_s), self.max_s)

    def _note(self, count: int, sum_s: float, min_s: float, max_s: float) -> None:
        if self.count == 0:
            self.min_s = min_s
            self.max_s = max_s
        else:
            if min_s < self.min_s:
                self.min_s = min_s
            if max_s > self.max_s:
                self.max_s = max_s
        self.count += count
        self.sum_s += sum_s


class Packed:
    """A histogram in under a kilobyte, for the samples of a window.

    It can be merged and read but not filled with samples. Thousands are kept, so the
    buckets are two short typed arrays and not a full table.
    """

    __slots__ = ("_counts", "_index", "count", "max_s", "min_s", "sum_s")

    count: int
    sum_s: float
    min_s: float
    max_s: float

    def __init__(self) -> None:
        self.count = 0
        self.sum_s = self.min_s = self.max_s = 0.0
        self._index: NDArray[np.uint16] = _NO_INDEX
        self._counts: NDArray[np.uint32] = _NO_COUNTS

    @classmethod
    def from_data(cls, data: HistogramData) -> Packed:
        packed = cls()
        packed.merge_data(data)
        return packed

    def merge_data(self, data: HistogramData) -> None:
        if data.count == 0:
            return
        self._absorb(filled_buckets(data), bucket_counts(data).astype(np.uint32))
        self._note(data.count, data.sum_s, data.min_s, data.max_s)

    def merge(self, other: Packed) -> None:
        if other.count == 0:
            return
        self._absorb(other._index, other._counts)
        self._note(other.count, other.sum_s, other.min_s, other.max_s)

    def pour_into(self, histogram: Histogram) -> None:
        """Adds these samples to a full histogram."""
        if self.count == 0:
            return
        histogram._note(self.count, self.sum_s, self.min_s, self.max_s)  # pyright: ignore[reportPrivateUsage]
        histogram.counts[self._index] += self._counts

    def to_data(self) -> HistogramData:
        return make_data(self.count, self.sum_s, self.min_s, self.max_s, self._index, self._counts)

    def quantile(self, q: float) -> float:
        return data_quantile(self.to_data(), q)

    def _absorb(self, index: NDArray[np.uint16], counts: NDArray[np.uint32]) -> None:
        if self.count == 0:
            # The arrays are never written to, so both histograms may hold them.
            self._index, self._counts = index, counts
            return
        table = np.zeros(BUCKETS, dtype=np.uint32)
        table[self._index] = self._counts
        table[index] += counts
        filled = np.flatnonzero(table)
        self._index = filled.astype(np.uint16)
        self._counts = table[filled]

    def _note(self, count: int, sum_s: float, min_s: float, max_s: float) -> None:
        self.min_s = min(self.min_s, min_s) if self.count else min_s
        self.max_s = max(self.max_s, max_s) if self.count else max_s
        self.count += count
        self.sum_s += sum_s


_NO_INDEX: NDArray[np.uint16] = np.zeros(0, dtype=np.uint16)
_NO_COUNTS: NDArray[np.uint32] = np.zeros(0, dtype=np.uint32)


def merged(parts: Iterable[Histogram | Packed | HistogramData]) -> Histogram:
    """Adds all parts into a new histogram."""
    whole = Histogram()
    for part in parts:
        if isinstance(part, Histogram):
            whole.merge(part)
        elif isinstance(part, Packed):
            part.pour_into(whole)
        else:
            whole.merge_data(part)
    return whole


def _checked_rank(q: float, count: int) -> int:
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"a quantile lies between 0 and 1, not at {q}")
    return rank_of(q, count)


def _edge_us(index: int) -> float:
    exponent, mantissa = divmod(index, 1 << _MANTISSA_BITS)
    return math.ldexp(1 + mantissa / (1 << _MANTISSA_BITS), exponent)
