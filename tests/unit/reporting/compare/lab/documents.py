"""Results documents as a service under load writes them, made from random numbers.

Latencies are lognormal. The whole service is slower or faster for a few seconds at a
time (neighbours resemble each other), now and then it has a bad second, and one run
differs from the next by about 1 %. The numbers of a real service on a shared machine
look like this; independent samples would flatter any judgement.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from squall.reporting.document.model import typed
from squall.reporting.document.read import ResultsFile
from squall.stats.histogram import BUCKETS, bucket_indices
from squall.stats.reports import RequestsDelta

STEPS = {"login": 0.012, "cart": 0.030, "pay": 0.080}
"""Median latencies in seconds."""


def service_run(
    seed: int,
    *,
    seconds: int = 60,
    rate: int = 100,
    slower: dict[str, float] | None = None,
    failing: dict[str, float] | None = None,
    run_noise: float = 0.01,
    **changed: Any,
) -> ResultsFile:
    rng = np.random.default_rng(seed)
    run_factor = np.exp(rng.normal(0, run_noise))
    steps = [
        _step(
            rng,
            name,
            median * run_factor * (slower or {}).get(name, 1.0),
            seconds,
            rate,
            (failing or {}).get(name, 0.001),
        )
        for name, median in STEPS.items()
    ]
    document = _document(steps, seconds, rate) | changed
    return ResultsFile(f"{seed}.json", document, typed(document))


def written(read: ResultsFile, path: Path) -> str:
    from squall.reporting.document.build import encode_document

    path.write_bytes(encode_document(read.document))
    return str(path)


def _weather(rng: np.random.Generator, seconds: int) -> Any:
    """A factor per second: waves of 3 %, each a good half of the one before, and bad seconds."""
    waves = np.zeros(seconds)
    for second in range(1, seconds):
        waves[second] = 0.6 * waves[second - 1] + rng.normal(0, 0.03 * np.sqrt(1 - 0.36))
    return np.exp(waves) * np.where(rng.random(seconds) < 0.02, 1.3, 1.0)


def _step(
    rng: np.random.Generator, name: str, median: float, seconds: int, rate: int, failing: float
) -> dict[str, Any]:
    counts = rng.poisson(rate, seconds)
    failed = rng.binomial(counts, failing)
    weather = _weather(rng, seconds)
    total = int(counts.sum())
    windows = np.repeat(np.arange(seconds), counts)
    latencies = median * weather[windows] * np.exp(rng.normal(0, 0.4, total))
    keys, amounts = np.unique(windows * BUCKETS + bucket_indices(latencies), return_counts=True)
    buckets: list[list[tuple[int, int]]] = [[] for _ in range(seconds)]
    for key, amount in zip(keys.tolist(), amounts.tolist(), strict=True):
        buckets[key // BUCKETS].append((key % BUCKETS, amount))
    none: list[float | None] = [None] * seconds
    return {
        **_counts(total, int(failed.sum())),
        "name": name,
        "protocol": "http",
        "rps": total / seconds,
        "windows": {
            "every_s": 1,
            "count": counts.tolist(),
            "failed": failed.tolist(),
            **{"p50": none, "p95": none, "p99": none},
            "buckets": buckets,
        },
    }


def _counts(total: int, failed: int) -> dict[str, Any]:
    histogram = {
        **{"kind": "log2-64", "unit": "us", "count": 0, "buckets": []},
        **{"sum_ms": 0.0, "min_ms": 0.0, "max_ms": 0.0},
    }
    return {
        **{"started": total, "count": total, "ok": total - failed, "failed": failed},
        **{"interrupted": 0, "rps": 0.0, "histogram": histogram},
        "windows": {
            "every_s": 1,
            **{key: [] for key in ("count", "failed", "p50", "p95", "p99", "buckets")},
        },
    }


def _document(steps: list[dict[str, Any]], seconds: int, rate: int) -> dict[str, Any]:
    host = {"cores": 2, "os": "Linux 6.1", "memory_mb": 7900}
    windows = ("users", "busy", "planned", "made", "late", "dropped")
    return {
        "schema": "squall.results/1",
        **{"status": "completed", "passed": True, "exit_code": 0, "aborted_by": None},
        "verdict": {"state": "VALID", "reasons": []},
        "run": {
            **{"id": "01J9Z4", "file": "shop.py", "squall": "0.1.0", "python": "3.11.7"},
            **{"command": [], "git": None, "seed": 0, "tags": {}, "warmup_s": 0.0},
            "host": host,
        },
        **{"started_at": "2026-11-15T20:01:24.113Z", "elapsed_s": float(seconds)},
        "workflows": [
            {
                **{"name": "Shop", "status": "completed", "error": None, "is_test": True},
                **{"shape": "", "cores": [0], "vus": 1, "busy_max": 1, "started_at_s": 0.0},
                **{"elapsed_s": seconds + 0.3, "measured_s": float(seconds)},
                "profile": {
                    **{"model": "open", "vus": 1, "max_vus": 100, "duration_s": float(seconds)},
                    **{"iterations": None, "rate_per_s": float(rate), "stages": []},
                    **{"think_s": None, "pacing_s": None, "grace_s": 10.0},
                },
                "starts": dict.fromkeys(
                    ("planned", "made", "late", "late_max_ms", "dropped", "interrupted"), 0
                ),
                "requests": dict.fromkeys(RequestsDelta.__struct_fields__, 0),
                "iteration": _counts(0, 0),
                **{"steps": steps, "hook_errors": []},
                "windows": {"every_s": 1, **{key: [] for key in windows}},
            }
        ],
        **{"checks": [], "metrics": [], "thresholds": [], "notes": []},
        "generator": {
            **{"parent_cpu": 0.0, "processes": []},
            "windows": {"every_s": 1, "cpu": [], "cpu_max": [], "loop_lag_p99_ms": []},
        },
    }
