"""Cases of the histogram that a person would check by hand."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from squall.stats.histogram import (
    BUCKETS,
    Histogram,
    Packed,
    bucket_index,
    buckets_of,
    data_quantile,
)
from squall.stats.reports import HistogramData


def test_an_empty_histogram_reads_zero() -> None:
    histogram = Histogram()
    assert histogram.quantile(0.99) == histogram.mean == histogram.max_s == 0.0
    assert histogram.to_data() == HistogramData()
    assert data_quantile(HistogramData(), 0.5) == Packed().quantile(0.5) == 0.0


def test_nearest_rank_of_ten_values() -> None:
    histogram = Histogram.from_seconds(index / 1000 for index in range(1, 11))
    assert histogram.quantile(0.5) == pytest.approx(0.005, rel=0.008)
    assert histogram.quantile(0.51) == pytest.approx(0.006, rel=0.008)
    assert histogram.quantile(0.9) == pytest.approx(0.009, rel=0.008)
    assert histogram.quantile(0.91) == 0.010


def test_values_outside_the_range_go_to_the_first_and_last_bucket() -> None:
    histogram = Histogram.from_seconds([0.0, -1.0, 1e-9, 1e6])
    data = histogram.to_data()
    assert buckets_of(data) == [(0, 3), (BUCKETS - 1, 1)]
    assert (histogram.min_s, histogram.max_s) == (-1.0, 1e6)


def test_one_microsecond_opens_the_table() -> None:
    assert bucket_index(1e-6) == 0
    assert bucket_index(2e-6) == 64
    assert bucket_index(0.001024) == 640


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_no_number_is_refused_and_changes_nothing(bad: float) -> None:
    histogram = Histogram.from_seconds([0.5])
    with pytest.raises(ValueError, match="finite"):
        histogram.add_seconds(array("d", [0.1, bad]))
    with pytest.raises(ValueError, match="finite"):
        histogram.add_one(bad)
    assert histogram == Histogram.from_seconds([0.5])


def test_numpy_arrays_are_folded_too() -> None:
    histogram = Histogram()
    histogram.add_seconds(np.array([0.25, 0.5]))
    histogram.add_seconds(np.zeros(0))
    assert (histogram.count, histogram.sum_s) == (2, 0.75)


@pytest.mark.parametrize("q", [-0.1, 1.1, 99.0])
def test_a_quantile_outside_zero_to_one_is_a_mistake(q: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        Histogram.from_seconds([1.0]).quantile(q)


def test_clear_leaves_nothing_behind() -> None:
    histogram = Histogram.from_seconds([1.0, 2.0])
    histogram.clear()
    assert histogram == Histogram()
    histogram.add_one(3.0)
    assert (histogram.min_s, histogram.max_s) == (3.0, 3.0)


def test_a_copy_lives_its_own_life() -> None:
    histogram = Histogram.from_seconds([1.0])
    twin = histogram.copy()
    histogram.add_one(2.0)
    assert twin == Histogram.from_seconds([1.0])


def test_packed_histograms_that_share_buckets_do_not_share_changes() -> None:
    data = Histogram.from_seconds([1.0]).to_data()
    first, second = Packed(), Packed()
    first.merge_data(data)
    second.merge(first)
    second.merge_data(data)
    assert (first.count, second.count) == (1, 2)
    assert first.to_data() == data
