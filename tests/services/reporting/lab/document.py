"""A results document made by hand: two workflows, thirty seconds, known numbers."""

from __future__ import annotations

from typing import Any

from squall.stats.histogram import Histogram, buckets_of

SECONDS = 30
QUIET_SECOND = 12
"""Has fewer samples than a percentile needs."""
LATE_SECONDS = (5, 6, 7)
NASTY = "</script><script>document.title='broken'</script><img src=http://evil.example/x>"


def report_document() -> dict[str, Any]:
    shop = _workflow(
        "Shop", "open", [_row("login", 8.0), _row("pay", 90.0, failed=1), _row(NASTY, 20.0)]
    )
    shop["steps"][1]["errors"] = [
        _error("503 Service Unavailable", {"request": "/pay", "status": 503, "body": NASTY}, None),
        _error("KeyError: 'id'", None, f"Traceback\n  {NASTY}"),
    ]
    browse = _workflow("Browse", "closed", [_row("home", 30.0)])
    return {
        "schema": "squall.results/1",
        "status": "completed",
        "passed": False,
        "exit_code": 99,
        "verdict": {"state": "DEGRADED", "reasons": ["loop lag p99 47 ms: the generator was late"]},
        "run": {
            "id": "01J9Z4",
            "file": "shop.py",
            "squall": "0.1.0",
            "python": "3.11.7",
            "command": ["run", "shop.py"],
            "git": None,
            "seed": 1,
            "tags": {},
            "warmup_s": 0.0,
            "host": {"cores": 2, "os": "Linux 6.1", "memory_mb": 7900},
        },
        "started_at": "2026-11-15T20:01:24.113Z",
        "elapsed_s": float(SECONDS),
        "aborted_by": None,
        "workflows": [shop, browse],
        "checks": [{"workflow": "Shop", "name": NASTY, "passed": 9, "failed": 1}],
        "metrics": [],
        "thresholds": [_threshold("pay.p(99) < 80ms", 104.0), _threshold("errors < 1%", 0.5, "%")],
        "generator": {
            "parent_cpu": 0.02,
            "processes": [{"index": 0, "pid": 1, "died": None}],
            "windows": {
                "start_s": 0,
                "every_s": 1,
                "cpu": [0.5] * SECONDS,
                "cpu_max": [0.6] * SECONDS,
                "loop_lag_p99_ms": [45.0 if s in LATE_SECONDS else 2.0 for s in range(SECONDS)],
            },
        },
        "losses": [],
        "notes": [],
    }


def _workflow(name: str, model: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    is_open = model == "open"
    iteration = _row("iteration", 120.0)
    for key in ("name", "protocol", "statuses", "first_byte_ms", "errors"):
        del iteration[key]
    counts = iteration["windows"]["count"]
    return {
        "name": name,
        "status": "completed",
        "error": None,
        "is_test": True,
        "shape": " -> ".join(step["name"] for step in steps),
        "cores": [0],
        "vus": 10,
        "busy_max": 9,
        "started_at_s": 0.0,
        "elapsed_s": float(SECONDS),
        "measured_s": float(SECONDS),
        "profile": {
            "model": model,
            "vus": 10,
            "max_vus": 100,
            "duration_s": float(SECONDS),
            "iterations": None,
            "rate_per_s": 40.0 if is_open else None,
            "stages": [],
            "think_s": None,
            "pacing_s": None,
            "grace_s": 10.0,
        },
        "starts": {
            "planned": sum(counts),
            "made": sum(counts),
            "late": 0,
            "late_max_ms": 0.0,
            "dropped": 0,
            "interrupted": 0,
        },
        "requests": dict.fromkeys(
            (
                *("sent", "answered", "failed", "redirects", "reconnects"),
                *("connections", "other_calls", "bytes_sent", "bytes_received"),
            ),
            0,
        ),
        "dns_ms": None,
        "connect_ms": None,
        "tls_ms": None,
        "iteration": iteration,
        "steps": steps,
        "hook_errors": [],
        "windows": {
            "start_s": 0,
            "every_s": 1,
            "users": [10] * SECONDS,
            "busy": [9] * SECONDS,
            "planned": counts,
            "made": counts,
            "late": [0] * SECONDS,
            "dropped": [0] * SECONDS,
        },
    }


def _row(name: str, middle_ms: float, *, failed: int = 0) -> dict[str, Any]:
    counts = [5 if second == QUIET_SECOND else 40 for second in range(SECONDS)]
    windows = [
        Histogram.from_seconds([middle_ms * (0.8 + 0.01 * n) / 1e3 for n in range(count)])
        for count in counts
    ]
    whole = Histogram()
    for window in windows:
        whole.merge_data(window.to_data())
    quantiles = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
    times = {
        "min": whole.min_s * 1e3,
        "mean": whole.mean * 1e3,
        **{key: whole.quantile(q) * 1e3 for key, q in quantiles.items()},
        "max": whole.max_s * 1e3,
    }
    service = Histogram.from_seconds([middle_ms * 0.7 / 1e3] * whole.count)
    total = sum(counts)
    return {
        "name": name,
        "protocol": "http",
        "started": total,
        "count": total,
        "ok": total - failed * SECONDS,
        "failed": failed * SECONDS,
        "interrupted": 0,
        "rps": total / SECONDS,
        "statuses": {"200": total},
        "latency_ms": times,
        "service_ms": times,
        "first_byte_ms": None,
        "errors": [],
        "histogram": _histogram(whole),
        "service_histogram": _histogram(service),
        "windows": {
            "start_s": 0,
            "every_s": 1,
            "count": counts,
            "failed": [failed] * SECONDS,
            **{
                key: [window.quantile(quantiles[key]) * 1e3 for window in windows]
                for key in ("p50", "p95", "p99")
            },
            "buckets": [_pairs(window) for window in windows],
        },
    }


def _histogram(histogram: Histogram) -> dict[str, Any]:
    return {
        "kind": "log2-64",
        "unit": "us",
        "error": 0.008,
        "count": histogram.count,
        "sum_ms": histogram.sum_s * 1e3,
        "min_ms": histogram.min_s * 1e3,
        "max_ms": histogram.max_s * 1e3,
        "buckets": _pairs(histogram),
    }


def _pairs(histogram: Histogram) -> list[list[int]]:
    data = histogram.to_data()
    return [[index, count] for index, count in buckets_of(data)]


def _error(reason: str, sample: dict[str, Any] | None, traceback: str | None) -> dict[str, Any]:
    return {
        "reason": reason,
        "count": 3,
        "first_at_s": 4.0,
        "location": None,
        "sample": sample,
        "traceback": traceback,
    }


def _threshold(expression: str, value: float, unit: str = "ms") -> dict[str, Any]:
    return {
        "expression": expression,
        "value": value,
        "unit": unit,
        "samples": 1165,
        "passed": unit == "%",
        "first_failed_at_s": None,
        "note": "",
        "workflow": "Shop",
        "builtin": False,
    }
