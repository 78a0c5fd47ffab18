"""One second of a run as the page's charts need it: few and short keys, because hours are kept.

Times are milliseconds. A number without samples is null, which a chart draws as a gap.
"""

from __future__ import annotations

from typing import Any

from squall.stats.snapshot import RowSnapshot, Snapshot, WorkflowSnapshot

_DIGITS = 4


def point_of(snapshot: Snapshot) -> dict[str, Any]:
    """t: seconds of the run; cpu: share of a core; w: the workflows."""
    return {
        "t": round(snapshot.elapsed_s, 1),
        "cpu": _short(snapshot.cpu),
        "lag": _ms(snapshot.lag_p99_s),
        "v": snapshot.verdict,
        "w": {each.name: _workflow(each) for each in snapshot.workflows},
    }


def _workflow(each: WorkflowSnapshot) -> dict[str, Any]:
    """r: rate made; g: rate planned; q: p50, p95, p99; f: failed per second; u: users."""
    known = each.samples_now > 0
    return {
        "r": _short(each.rate_now_per_s),
        "g": None if each.target_per_s is None else _short(each.target_per_s),
        "q": _quantiles(each.p50_now_s, each.p95_now_s, each.p99_now_s) if known else None,
        "f": _short(each.failed_now_share * each.executions_now_per_s),
        "u": each.users,
        "rows": {row.name: _row(row) for row in each.rows},
    }


def _row(row: RowSnapshot) -> dict[str, Any]:
    """b: the latencies in bands, for the heat map."""
    known = row.samples_now > 0
    return {
        "r": _short(row.rate_now_per_s),
        "f": row.failed_now,
        "q": _quantiles(row.p50_now_s, row.p95_now_s, row.p99_now_s) if known else None,
        "b": row.bands_now,
    }


def _quantiles(*seconds: float) -> list[float]:
    return [_ms(each) for each in seconds]


def _ms(seconds: float) -> float:
    return _short(seconds * 1e3)


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
