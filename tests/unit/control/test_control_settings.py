"""A settings struct that exists is valid; a bad value is refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from squall.control.settings import (
    AdmissionSettings,
    BreakerSettings,
    Jitter,
    RateSettings,
    RetryBudgetSettings,
    RetryPolicy,
)


@pytest.mark.parametrize(
    ("struct", "bad", "named"),
    [
        (AdmissionSettings, {"shared_max": 0}, "shared_max is 0"),
        (AdmissionSettings, {"data_max": 2000}, "the limits nest"),
        (AdmissionSettings, {"telemetry_max": -1}, "the limits nest"),
        (AdmissionSettings, {"control_max": 0}, "control_max is 0"),
        (AdmissionSettings, {"control_waiting_per_source_max": 0}, "per_source_max is 0"),
        (AdmissionSettings, {"control_waiting_max": 10}, "control_waiting_max is 10"),
        (AdmissionSettings, {"warn_at": (0.9, 0.8)}, "must rise"),
        (AdmissionSettings, {"warn_at": (0.0,)}, "warn_at"),
        (AdmissionSettings, {"retry_after_max_s": 0.01}, "retry_after_max_s is 0.01"),
        (AdmissionSettings, {"service_time_weight": 2}, "service_time_weight"),
        (RetryPolicy, {"max_attempts": 0}, "max_attempts is 0"),
        (RetryPolicy, {"base_s": 0}, "base_s is 0"),
        (RetryPolicy, {"cap_s": 0.1}, "cap_s is 0.1"),
        (RetryPolicy, {"attempt_timeout_s": -1}, "attempt_timeout_s is -1"),
        (RetryBudgetSettings, {"ratio": 1.5}, "ratio is 1.5"),
        (RetryBudgetSettings, {"burst": 0}, "burst is 0"),
        (RateSettings, {"burst": 0.5, "per_s": 1}, "burst is 0.5"),
        (RateSettings, {"burst": 5, "per_s": 0}, "per_s is 0"),
        (BreakerSettings, {"failures_to_open": 0}, "failures_to_open is 0"),
        (BreakerSettings, {"open_s": float("inf")}, "open_s is inf"),
        (BreakerSettings, {"probes_max": 0}, "probes_max is 0"),
    ],
)
def test_a_bad_value_is_refused_with_its_name(
    struct: type[msgspec.Struct], bad: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        struct(**bad)


def test_settings_are_read_from_plain_data() -> None:
    policy = msgspec.convert({"max_attempts": 5, "jitter": "equal"}, RetryPolicy)
    assert (policy.max_attempts, policy.jitter) == (5, Jitter.EQUAL)
    with pytest.raises(msgspec.ValidationError, match="shared_max is 0"):
        msgspec.convert({"shared_max": 0}, AdmissionSettings)
