"""What must hold of every histogram, whatever the samples are."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from squall.stats.histogram import (
    BUCKETS,
    RELATIVE_ERROR,
    Histogram,
    Packed,
    bucket_bounds_s,
    bucket_index,
    bucket_indices,
    bucket_middle_s,
    buckets_of,
    data_quantile,
    filled_buckets,
    merged,
    rank_of,
)
from squall.stats.reports import HistogramData

HOUR_S = 3600.0
US_S = 1e-6

# Uniform in the logarithm: every decade from 1 us to 1 h is tried as often as the others.
latencies = st.floats(math.log(US_S), math.log(HOUR_S)).map(
    lambda x: min(max(math.exp(x), US_S), HOUR_S)
)
any_finite = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e9)
samples = st.lists(latencies, max_size=60)
some_samples = st.lists(latencies, min_size=1, max_size=200)
quantiles = st.floats(0, 1)


@given(samples, samples)
def test_merging_equals_the_histogram_of_all_samples(left: list[float], right: list[float]) -> None:
    whole = Histogram.from_seconds(left + right)
    one_way = merged([Histogram.from_seconds(left), Histogram.from_seconds(right)])
    other_way = merged([Histogram.from_seconds(right), Histogram.from_seconds(left)])
    assert one_way == whole
    assert other_way == whole


@given(samples, samples, samples)
def test_merging_does_not_depend_on_grouping(
    a: list[float], b: list[float], c: list[float]
) -> None:
    ha, hb, hc = (Histogram.from_seconds(values) for values in (a, b, c))
    assert merged([merged([ha, hb]), hc]) == merged([ha, merged([hb, hc])])


@given(samples, samples)
def test_sparse_and_packed_forms_merge_like_full_ones(
    left: list[float], right: list[float]
) -> None:
    parts = [Histogram.from_seconds(left).to_data(), Histogram.from_seconds(right).to_data()]
    packed = Packed()
    for part in parts:
        packed.merge_data(part)
    twin = Packed()
    twin.merge(packed)
    whole = Histogram.from_seconds(left + right)
    assert merged(parts) == whole
    assert merged([packed]) == whole
    assert Histogram.from_data(twin.to_data()) == whole


@given(some_samples, quantiles)
def test_a_quantile_is_within_one_percent_of_the_exact_one(values: list[float], q: float) -> None:
    exact = sorted(values)[rank_of(q, len(values)) - 1]
    histogram = Histogram.from_seconds(values)
    assert histogram.quantile(q) == pytest.approx(exact, rel=0.01)
    assert data_quantile(histogram.to_data(), q) == histogram.quantile(q)
    assert min(values) <= histogram.quantile(q) <= max(values)


@given(some_samples)
def test_the_ends_are_exact(values: list[float]) -> None:
    histogram = Histogram.from_seconds(values)
    assert histogram.quantile(0) == histogram.min_s == min(values)
    assert histogram.quantile(1) == histogram.max_s == max(values)
    assert histogram.mean == pytest.approx(sum(values) / len(values))


@given(some_samples, quantiles, quantiles)
def test_quantiles_never_fall_as_q_grows(values: list[float], a: float, b: float) -> None:
    low, high = Histogram.from_seconds(values).quantiles(sorted((a, b)))
    assert low <= high


@given(st.integers(1, 10**9), st.integers(0, 10_000))
@example(100, 700)  # 0.07 * 100 is 7.000000000000001
@example(1_000_000, 9_990)
def test_the_rank_is_exact_for_percentiles_people_write(count: int, hundredths: int) -> None:
    """Integer arithmetic is the judge: ceil(q * n) must not be off by a rounded product."""
    exact = max(-(-hundredths * count // 10_000), 1)
    assert rank_of(hundredths / 10_000, count) == exact


@given(st.lists(any_finite, max_size=60))
def test_every_value_is_counted_in_the_bucket_python_integers_say(values: list[float]) -> None:
    histogram = Histogram.from_seconds(values)
    expected = Counter(bucket_index(value) for value in values)
    data = histogram.to_data()
    assert dict(buckets_of(data)) == dict(expected)
    assert histogram.count == len(values) == sum(count for _, count in buckets_of(data))
    assert list(filled_buckets(data)) == sorted(filled_buckets(data))


@given(st.lists(any_finite, min_size=1, max_size=60))
def test_numpy_and_python_integers_give_the_same_index(values: list[float]) -> None:
    array_index = bucket_indices(np.array(values, dtype=np.float64))
    assert array_index.tolist() == [bucket_index(value) for value in values]


@given(latencies)
def test_a_value_lies_in_its_bucket_and_near_its_middle(value: float) -> None:
    index = bucket_index(value)
    low, high = bucket_bounds_s(index)
    # The bounds in seconds are rounded once more than the microseconds that were compared.
    assert low * (1 - 1e-15) <= value <= high * (1 + 1e-15)
    assert abs(bucket_middle_s(index) - value) <= value * RELATIVE_ERROR * (1 + 1e-12)


@given(st.lists(any_finite, max_size=60))
def test_one_at_a_time_equals_all_at_once(values: list[float]) -> None:
    single = Histogram()
    for value in values:
        single.add_one(value)
    assert single.to_data().index == Histogram.from_seconds(values).to_data().index
    assert single.to_data().counts == Histogram.from_seconds(values).to_data().counts


@given(samples)
def test_a_report_carries_it_unchanged(values: list[float]) -> None:
    histogram = Histogram.from_seconds(values)
    wire = msgspec.msgpack.encode(histogram.to_data())
    data = msgspec.msgpack.decode(wire, type=HistogramData)
    assert data == histogram.to_data()
    assert Histogram.from_data(data) == histogram


def test_bucket_edges_match_the_bits_of_whole_powers() -> None:
    """The upper edge of one bucket is the first value of the next, over the whole table."""
    for index in range(BUCKETS):
        exponent, mantissa = divmod(index, 64)
        edge_us = math.ldexp(1 + mantissa / 64, exponent)
        bits = np.array([edge_us]).view(np.int64)[0] >> 46
        assert int(bits) - (1023 << 6) == index
    edges = [bucket_bounds_s(index)[0] for index in range(BUCKETS)]
    assert edges == sorted(set(edges))
    assert bisect_left(edges, HOUR_S) < BUCKETS, "one hour must lie inside the table"


def test_an_array_can_grow_again_after_it_was_folded() -> None:
    values = array("d", [0.001, 0.002])
    histogram = Histogram()
    histogram.add_seconds(values)
    values.append(0.003)
    del values[:]
    histogram.add_seconds(values)
    assert histogram.count == 2
