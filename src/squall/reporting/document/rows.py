"""Rows of the results document: latencies, histograms, windows and errors of a step.

Buckets are written sparsely as [index, count] pairs, so that documents can be merged
and compared later without loss.
"""

from __future__ import annotations

from typing import Any

from squall.reporting.text.errors_block import FailureGroup
from squall.stats.histogram import KIND, UNIT, Histogram, Packed, buckets_of
from squall.stats.totals.step_rows import RowStats
from squall.stats.totals.windows import RowWindow, Series

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
# Relative error of a bucket's middle, rounded up from 1/128.
_ERROR = 0.008


def row_entry(row: RowStats, rated_s: float, failures: list[FailureGroup]) -> dict[str, Any]:
    return {
        "name": row.name,
        "protocol": row.protocol,
        **_counts(row, rated_s),
        "statuses": row.statuses,
        **_times(row),
        "first_byte_ms": histogram_summary(row.first_byte),
        "errors": [_error(failure) for failure in failures],
        "outcomes": _outcomes(row),
        **_histograms(row),
        "first_byte_histogram": optional_histogram(row.first_byte),
        "windows": _windows(row.windows),
    }


def iteration_entry(row: RowStats, rated_s: float) -> dict[str, Any]:
    return {
        **_counts(row, rated_s),
        **_times(row),
        "outcomes": _outcomes(row),
        **_histograms(row),
        "windows": _windows(row.windows),
    }


def histogram_summary(histogram: Histogram | None) -> dict[str, float] | None:
    """In milliseconds; None without samples."""
    if histogram is None or not histogram.count:
        return None
    quantiles = histogram.quantiles(list(_QUANTILES.values()))
    return {
        "min": _ms(histogram.min_s),
        "mean": _ms(histogram.mean),
        **{name: _ms(value) for name, value in zip(_QUANTILES, quantiles, strict=True)},
        "max": _ms(histogram.max_s),
    }


def _counts(row: RowStats, rated_s: float) -> dict[str, Any]:
    return {
        "started": row.started,
        "count": row.count,
        "ok": row.ok,
        "failed": row.failed,
        "interrupted": row.interrupted,
        "unknown": max(row.in_flight, 0),
        "rps": round(row.count / rated_s, 3),
    }


def _times(row: RowStats) -> dict[str, Any]:
    """`latency_ms` is the response time where a row has one, otherwise the service time."""
    return {
        "latency_ms": histogram_summary(row.latency),
        "service_ms": histogram_summary(row.service),
    }


def _histograms(row: RowStats) -> dict[str, Any]:
    return {
        "histogram": histogram_entry(row.latency),
        "service_histogram": histogram_entry(row.service) if row.has_response else None,
    }


def _outcomes(row: RowStats) -> list[dict[str, Any]]:
    return [
        {
            "key": each.key,
            "ok": each.ok,
            "count": each.count,
            "exchanges": each.exchanges,
            "raised": each.raised,
            "statuses": {str(status): count for status, count in sorted(each.statuses.items())},
        }
        for each in row.outcomes.values()
    ]


def optional_histogram(histogram: Histogram | None) -> dict[str, Any] | None:
    """None without samples."""
    return histogram_entry(histogram) if histogram is not None and histogram.count else None


def histogram_entry(histogram: Histogram) -> dict[str, Any]:
    data = histogram.to_data()
    return {
        "kind": KIND,
        "unit": UNIT,
        "error": _ERROR,
        "count": data.count,
        # Rounded to a nanosecond, so that a rebuilt summary shows the same digits as the run.
        "sum_ms": round(data.sum_s * 1e3, 6),
        "min_ms": round(data.min_s * 1e3, 6),
        "max_ms": round(data.max_s * 1e3, 6),
        "buckets": buckets_of(data),
    }


def _windows(series: Series[RowWindow]) -> dict[str, Any]:
    packed = [window.latency for window in series]
    return {
        "start_s": 0,
        "every_s": series.width_s,
        "count": [window.count for window in series],
        "failed": [window.failed for window in series],
        "p50": [_quantile(part, 0.5) for part in packed],
        "p95": [_quantile(part, 0.95) for part in packed],
        "p99": [_quantile(part, 0.99) for part in packed],
        "buckets": [buckets_of(part.to_data()) for part in packed],
    }


def _quantile(part: Packed, q: float) -> float | None:
    return _ms(part.quantile(q)) if part.count else None


def _error(failure: FailureGroup) -> dict[str, Any]:
    first = failure.first
    sample = None
    if first is not None and (first.request or first.status or first.body):
        sample = {"request": first.request, "status": first.status or None, "body": first.body}
    return {
        "reason": failure.reason,
        "count": failure.count,
        "first_at_s": None if first is None else round(first.at_s, 3),
        "location": (first.location or None) if first is not None else None,
        "locations": locations_of(failure),
        "sample": sample,
        "traceback": None if first is None else first.traceback,
    }


def locations_of(failure: FailureGroup) -> list[str]:
    """The author's lines that failed this way, the earliest first."""
    return list(dict.fromkeys(sample.location for sample in failure.samples if sample.location))


def _ms(seconds: float) -> float:
    # Rounded to 0.1 us: below the resolution of any bucket, and the files are shorter.
    return round(seconds * 1e3, 4)
