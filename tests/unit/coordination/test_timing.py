"""Which timings and options are refused, and that each refusal says what would be right."""

from __future__ import annotations

from typing import get_type_hints

import msgspec
import pytest

from squall.coordination.errors import ConfigurationError
from squall.coordination.options import Options, OptionValues, check_options
from squall.coordination.signals.wait_limits import check_timeout, default_timeout
from squall.coordination.stores.memory.store import CAPABILITIES
from squall.coordination.timing import PROFILES, Timing, check_timing, timing_of

AFAR = msgspec.structs.replace(CAPABILITIES, cross_process=True, cross_host=True)


@pytest.mark.parametrize("name", [name for name in PROFILES if name != "fast"])
def test_the_profiles_are_accepted_and_dead_after_is_exact(name: str) -> None:
    timing = PROFILES[name]
    check_timing(timing, environment="production")
    assert timing.dead_after == timing.heartbeat_ttl + timing.max_warnings * timing.monitor_interval


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"heartbeat_interval": 10.0, "heartbeat_ttl": 5.0, "lease_ttl": 30.0}, "heartbeat_ttl"),
        ({"heartbeat_ttl": 14.0, "dead_after": 44.0}, "heartbeat_ttl"),
        (
            {
                "heartbeat_interval": 60.0,
                "heartbeat_ttl": 180.0,
                "lease_ttl": 180.0,
                "dead_after": 210.0,
            },
            "heartbeat_interval",
        ),
        ({"heartbeat_interval": 1.0, "lease_ttl": 3.0}, "heartbeat_interval"),
        ({"lease_ttl": 12.0}, "lease_ttl"),
        ({"min_epoch_duration": 5.0}, "min_epoch_duration"),
        ({"monitor_interval": 4.0}, "monitor_interval"),
        ({"monitor_interval": 31.0, "dead_after": 190.0}, "monitor_interval"),
    ],
)
def test_a_pace_that_only_a_test_may_have(change: dict[str, float], option: str) -> None:
    timing = msgspec.structs.replace(Timing(), **change)
    with pytest.raises(ConfigurationError) as refused:
        check_timing(timing, environment="staging")
    text = str(refused.value)
    assert text.startswith(f"{option} is {change[option]!r}: ")
    assert f"{option}=" in text
    check_timing(timing, environment="staging", unsafe_timings=True)
    with pytest.raises(ConfigurationError, match="unsafe_timings"):
        check_timing(timing, environment="production", unsafe_timings=True)


@pytest.mark.parametrize(
    ("change", "option"),
    [
        ({"dead_after": 60.0}, "dead_after"),
        ({"dead_after": 119.0}, "dead_after"),
        ({"retention": 130.0}, "retention"),
        ({"min_epoch_duration": 400.0}, "min_epoch_duration"),
        ({"max_warnings": 0}, "max_warnings"),
        ({"lease_ttl": 9.0}, "lease_ttl"),
        ({"heartbeat_interval": float("nan")}, "heartbeat_interval"),
        ({"heartbeat_ttl": -1.0}, "heartbeat_ttl"),
    ],
)
def test_relations_that_nothing_lifts(change: dict[str, float], option: str) -> None:
    timing = msgspec.structs.replace(Timing(), **change)
    for unsafe in (False, True):
        with pytest.raises(ConfigurationError, match=f"^{option} is "):
            check_timing(timing, environment=None, unsafe_timings=unsafe)


def test_an_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="profile is 'quick': use one of normal, small"):
        timing_of("quick")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"environment": "production", "skip_cold_start": True}, "skip_cold_start is True"),
        ({"secret": None}, "secret is None"),
    ],
)
def test_options_that_are_refused(options: dict[str, object], text: str) -> None:
    made = Options(**({"secret": "x" * 64} | options))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=text):
        check_options(made, Timing(), AFAR)


def test_a_window_of_nothing_is_refused_in_production() -> None:
    timing = msgspec.structs.replace(Timing(), cold_start_observation_window=0.0)
    with pytest.raises(ConfigurationError, match="cold_start_observation_window is 0"):
        check_options(Options(environment="production", secret="x" * 64), timing, AFAR)
    check_options(Options(environment="production", secret="x" * 64), timing, CAPABILITIES)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("inf"), float("nan")])
def test_every_wait_ends(timeout_s: float) -> None:
    with pytest.raises(ConfigurationError, match="timeout_s is"):
        check_timeout(timeout_s, max_timeout=3600.0)


def test_limits_of_waits() -> None:
    with pytest.raises(ConfigurationError, match="below expected_duration"):
        check_timeout(60.0, max_timeout=3600.0, expected_duration=300.0)
    with pytest.raises(ConfigurationError, match="above max_timeout"):
        check_timeout(86_400.0, max_timeout=3600.0)
    check_timeout(86_400.0, max_timeout=3600.0, planned=True)


def test_the_default_limit_follows_the_environment_and_the_variable() -> None:
    assert default_timeout("development", None) == 300.0
    assert default_timeout("production", None) == 1800.0
    assert default_timeout(None, None) == 600.0
    assert default_timeout("production", "300000") == 300.0
    for text in ("0", "-5", "soon", "1.5"):
        with pytest.raises(ConfigurationError, match=f"BLOCKING_TIMEOUT is '{text}'"):
            default_timeout(None, text)


def test_every_option_is_known_to_type_checkers_as_it_is() -> None:
    assert get_type_hints(OptionValues) == get_type_hints(Options)
