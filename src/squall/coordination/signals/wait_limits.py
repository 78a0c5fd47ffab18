"""Time limits of blocking waits: the defaults, and which limits are refused. Pure.

An explicit limit comes first, then the planned or expected duration, then what was measured for
the type of task, then `BLOCKING_TIMEOUT`, then the environment. No wait is without a limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from squall.coordination.errors import ConfigurationError
from squall.coordination.timing import Environment
from squall.coordination.value_rules import wrong

BY_ENVIRONMENT: dict[Environment | None, float] = {
    "development": 300.0,
    "staging": 900.0,
    "production": 1800.0,
    None: 600.0,
}
ADAPTIVE_LOW_S, ADAPTIVE_HIGH_S = 300.0, 3600.0
# Below 20 samples the 95th percentile is the maximum.
SAMPLES_NEEDED = 20
SAMPLES_KEPT = 200


def default_timeout(environment: Environment | None, blocking_timeout_ms: str | None) -> float:
    """`blocking_timeout_ms` is the text of the environment variable, None if it is not set."""
    if blocking_timeout_ms is None:
        return BY_ENVIRONMENT[environment]
    if not blocking_timeout_ms.isdigit() or int(blocking_timeout_ms) <= 0:
        raise ConfigurationError(
            f"BLOCKING_TIMEOUT is {blocking_timeout_ms!r}: it must be a positive whole number of"
            " milliseconds; use BLOCKING_TIMEOUT=900000"
        )
    return int(blocking_timeout_ms) / 1000.0


def check_timeout(
    timeout_s: float,
    *,
    max_timeout: float,
    expected_duration: float | None = None,
    planned: bool = False,
) -> None:
    if not math.isfinite(timeout_s) or timeout_s <= 0.0:
        wrong("timeout_s", timeout_s, "it must be positive and finite: every wait ends", "600.0")
    if expected_duration is not None and timeout_s < expected_duration:
        wrong(
            "timeout_s",
            timeout_s,
            f"it must not be below expected_duration ({expected_duration:g})",
            f"{2.0 * expected_duration:g}",
        )
    if timeout_s > max_timeout and not planned:
        wrong(
            "timeout_s",
            timeout_s,
            f"it must not be above max_timeout ({max_timeout:g}) without a planned duration",
            f"{max_timeout:g}",
        )


def adaptive_timeout(samples: Sequence[float], default_s: float) -> float:
    """Twice the 95th percentile of finished waits of one task type, within 300 .. 3600 s."""
    if len(samples) < SAMPLES_NEEDED:
        return default_s
    ordered = sorted(samples)
    p95 = ordered[math.ceil(0.95 * len(ordered)) - 1]
    return min(max(2.0 * p95, ADAPTIVE_LOW_S), ADAPTIVE_HIGH_S)


def planned_timeout(duration_s: float) -> float:
    """The limit for work of a known length: twice as long, but at most an hour more."""
    return max(300.0, min(2.0 * duration_s, duration_s + 3600.0))
