"""A settings struct that exists is valid; a bad value is refused by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from squall.cluster.control.settings import AdmissionSettings, RateSettings


@pytest.mark.parametrize(
    ("struct", "bad", "named"),
    [
        (AdmissionSettings, {"shared_max": 0}, "shared_max is 0"),
        (AdmissionSettings, {"data_max": 6000}, "the limits nest"),
        (AdmissionSettings, {"telemetry_max": -1}, "the limits nest"),
        (AdmissionSettings, {"control_max": 0}, "control_max is 0"),
        (AdmissionSettings, {"control_waiting_per_source_max": 0}, "per_source_max is 0"),
        (AdmissionSettings, {"control_waiting_max": 10}, "control_waiting_max is 10"),
        (AdmissionSettings, {"warn_at": (0.9, 0.8)}, "must rise"),
        (AdmissionSettings, {"warn_at": (0.0,)}, "warn_at"),
        (AdmissionSettings, {"retry_after_max_s": 0.01}, "retry_after_max_s is 0.01"),
        (AdmissionSettings, {"service_time_weight": 2}, "service_time_weight"),
        (RateSettings, {"burst": 0.5, "per_s": 1}, "burst is 0.5"),
        (RateSettings, {"burst": 5, "per_s": 0}, "per_s is 0"),
    ],
)
def test_a_bad_value_is_refused_with_its_name(
    struct: type[msgspec.Struct], bad: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        struct(**bad)


def test_settings_are_read_from_plain_data() -> None:
    assert msgspec.convert({"shared_max": 9000}, AdmissionSettings).shared_max == 9000
    with pytest.raises(msgspec.ValidationError, match="shared_max is 0"):
        msgspec.convert({"shared_max": 0}, AdmissionSettings)
