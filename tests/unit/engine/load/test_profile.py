from __future__ import annotations

from typing import Any

import pytest

from squall.api.errors import ConfigError
from squall.engine.load.profile import describe, resolve_profile
from squall.engine.run_options import ProfileFlags
from squall.stats.manifest import Profile, Stage


def resolve(attributes: dict[str, Any] | None = None, **flags: Any) -> Profile:
    return resolve_profile(attributes or {}, ProfileFlags(**flags), is_test=True)


def refused(attributes: dict[str, Any], **flags: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(attributes, **flags)
    return str(caught.value)


RAMP = {"stages": ["30s:100", "2m:100", "10s:0"]}
PEAK = {"stages": ["1m:50/s", "5m:1000/s", "1m:0/s"]}


def test_nothing_said_is_one_user_for_a_minute() -> None:
    assert resolve() == Profile(model="closed", vus=1, max_vus=1, duration_s=60.0)


def test_users_and_duration_are_a_closed_model() -> None:
    profile = resolve({"vus": 50, "duration": "10s"})
    assert (profile.model, profile.vus, profile.max_vus) == ("closed", 50, 50)
    assert profile.duration_s == 10.0


def test_iterations_are_shared_and_duration_bounds_them() -> None:
    profile = resolve({"vus": 20, "iterations": 10_000, "duration": "5m"})
    assert (profile.model, profile.vus, profile.iterations) == ("iterations", 20, 10_000)
    assert profile.duration_s == 300.0


def test_stages_of_users_ramp_from_zero_and_last_as_long_as_they_add_up_to() -> None:
    profile = resolve(RAMP)
    assert (profile.model, profile.vus, profile.max_vus) == ("ramp", 0, 100)
    assert profile.duration_s == 160.0
    assert profile.stages == (Stage(30.0, 100.0), Stage(120.0, 100.0), Stage(10.0, 0.0))


def test_stages_of_users_ramp_from_vus_when_given() -> None:
    profile = resolve({"vus": 150, **RAMP})
    assert (profile.vus, profile.max_vus) == (150, 150)


def test_a_ramp_down_to_zero_from_vus_is_load() -> None:
    assert resolve({"vus": 5, "stages": ["10s:0"]}).max_vus == 5


def test_a_rate_is_an_open_model_with_users_for_ten_seconds_of_it() -> None:
    profile = resolve({"rate": "500/s", "duration": "5m"})
    assert (profile.model, profile.rate_per_s, profile.duration_s) == ("open", 500.0, 300.0)
    assert profile.max_vus == 5000
    assert profile.is_open


@pytest.mark.parametrize(
    ("rate", "max_vus"), [("1/s", 100), ("10/s", 100), ("10.1/s", 101), ("30/m", 100)]
)
def test_an_open_model_may_always_grow_to_a_hundred_users(rate: str, max_vus: int) -> None:
    assert resolve({"rate": rate}).max_vus == max_vus


def test_the_authors_max_vus_counts() -> None:
    assert resolve({"rate": "500/s", "max_vus": 50}).max_vus == 50


def test_vus_with_rate_are_the_users_ready_at_the_start() -> None:
    profile = resolve({"rate": "5/s", "vus": 300})
    assert (profile.vus, profile.max_vus) == (300, 300)


def test_stages_with_a_rate_are_an_open_ramp_sized_for_its_peak() -> None:
    profile = resolve(PEAK)
    assert (profile.model, profile.vus, profile.max_vus) == ("open-ramp", 1, 10_000)
    assert profile.duration_s == 420.0
    assert profile.stages[1] == Stage(300.0, 1000.0)


def test_think_pacing_and_grace_are_read() -> None:
    profile = resolve({"think": "1s..3s", "pacing": "5s", "grace": "0s"})
    assert (profile.think_s, profile.pacing_s, profile.grace_s) == ((1.0, 3.0), 5.0, 0.0)


def test_none_counts_as_not_set() -> None:
    assert resolve({"vus": 3, "rate": None, "stages": None}).model == "closed"


# Flags


def test_a_rate_flag_over_users_is_open_for_the_files_time_with_its_users_ready() -> None:
    profile = resolve({"vus": 40, "duration": "4s"}, rate="300/s")
    assert (profile.model, profile.rate_per_s) == ("open", 300.0)
    assert (profile.vus, profile.duration_s) == (40, 4.0)


def test_a_rate_flag_over_stages_lasts_as_long_as_the_stages() -> None:
    assert resolve(RAMP, rate=5).duration_s == 160.0


def test_users_and_duration_flags_replace_any_model() -> None:
    for attributes in ({"rate": "500/s", "max_vus": 9}, RAMP, PEAK, {"iterations": 5}):
        profile = resolve(attributes, vus=50, duration="1m")
        assert profile == Profile(model="closed", vus=50, max_vus=50, duration_s=60.0)


def test_a_users_flag_alone_makes_users_for_the_files_time() -> None:
    assert describe(resolve({"rate": "500/s", "duration": "2m"}, vus=5)) == "5 users for 2m"
    assert describe(resolve(RAMP, vus=5)) == "5 users for 2m40s"


def test_a_users_flag_over_iterations_says_who_shares_them() -> None:
    profile = resolve({"iterations": 100, "vus": 2}, vus=5)
    assert (profile.model, profile.vus, profile.iterations) == ("iterations", 5, 100)


def test_a_duration_flag_alone_keeps_the_files_model() -> None:
    assert resolve({"rate": "5/s", "duration": "1h"}, duration="3s") == resolve(
        {"rate": "5/s", "duration": "3s"}
    )
    assert resolve({"iterations": 100}, duration="3s").model == "iterations"


def test_a_load_that_starts_later() -> None:
    closed = resolve({"vus": 5, "duration": "10s", "start_after": "30s"})
    assert (closed.model, closed.vus, closed.max_vus, closed.duration_s) == ("ramp", 0, 5, 40.0)
    assert closed.stages == (Stage(30.0, 0), Stage(0.0, 5), Stage(10.0, 5))
    assert describe(closed) == "after 30s: 5 users for 10s"
    opened = resolve({"rate": "5/s", "duration": "10s", "start_after": "30s"})
    assert opened.model == "open-ramp"
    assert opened.stages == (Stage(30.0, 0), Stage(0.0, 5.0), Stage(10.0, 5.0))
    assert describe(opened) == "after 30s: open 5/s for 10s"
    ramp = resolve({"stages": ["10s:9"], "vus": 3, "start_after": "1s"})
    assert ramp.stages == (Stage(1.0, 0), Stage(0.0, 3), Stage(10.0, 9))
    assert describe(ramp) == "after 1s: ramp 3 -> 9 over 10s"
    steps = resolve({"stages": ["0s:5/s", "10s:9/s"], "start_after": "1s"})
    assert describe(steps) == "after 1s: open ramp 0/s -> 5/s -> 9/s over 10s"
    assert resolve({"vus": 5, "start_after": 0}).model == "closed"
    with pytest.raises(ConfigError, match="start_after and iterations"):
        resolve({"iterations": 5, "start_after": "1s"})


def test_iterations_of_each_user() -> None:
    profile = resolve({"vus": 20, "iterations": "10/vu"})
    assert (profile.iterations, profile.iterations_per_vu) == (200, 10)
    assert describe(profile) == "10 iterations by each of 20 users, at most 24h"
    assert resolve({"vus": 4}, iterations="2/user").iterations == 8
    with pytest.raises(ConfigError, match="for each"):
        resolve({"iterations": "10/s"})


def test_an_iterations_flag_replaces_rate_and_stages() -> None:
    assert resolve({"rate": "5/s", "duration": "9s"}, iterations="10k").iterations == 10_000
    assert resolve(RAMP, iterations=7).model == "iterations"


def test_stage_flags_replace_the_model_and_the_files_duration() -> None:
    profile = resolve({"rate": "5/s", "duration": "9s"}, stages=("10s:5", "20s:0"))
    assert (profile.model, profile.duration_s, profile.vus) == ("ramp", 30.0, 0)
    assert resolve({"vus": 40, "duration": "9s"}, stages=("10s:50",)).vus == 40


def test_flags_that_make_the_model_open_drop_the_files_pacing() -> None:
    assert resolve({"vus": 3, "pacing": "1s"}, rate=5).pacing_s is None


# Contradictions


@pytest.mark.parametrize(
    ("attributes", "flags", "names"),
    [
        ({"rate": "5/s", "iterations": 5}, {}, ("rate", "iterations")),
        ({"rate": "5/s", **RAMP}, {}, ("rate", "stages")),
        ({"iterations": 5, **RAMP}, {}, ("iterations", "stages")),
        ({"duration": "1m", **RAMP}, {}, ("duration", "stages")),
        ({"rate": "5/s", "pacing": "1s"}, {}, ("pacing", "rate")),
        ({"pacing": "1s", **PEAK}, {}, ("pacing", "stages")),
        ({"vus": 5, "max_vus": 10}, {}, ("max_vus", "vus")),
        ({"max_vus": 10, **RAMP}, {}, ("max_vus", "stages")),
        ({"rate": "5/s", "vus": 20, "max_vus": 10}, {}, ("vus", "max_vus")),
        ({}, {"rate": 5, "iterations": 5}, ("-r", "-i")),
        ({}, {"rate": 5, "stages": ("1s:1",)}, ("-r", "-s")),
        ({}, {"duration": 5, "stages": ("1s:1",)}, ("-d", "-s")),
        (RAMP, {"duration": "10s"}, ("-d", "stages")),
    ],
)
def test_a_contradiction_names_both(
    attributes: dict[str, Any], flags: dict[str, Any], names: tuple[str, str]
) -> None:
    text = refused(attributes, **flags)
    assert "contradict each other" in text
    pair, _, _ = text.partition(" contradict")
    assert sorted(pair.split(" and ")) == sorted(names)


def test_a_duration_equal_to_the_stages_is_no_contradiction() -> None:
    assert resolve({"duration": "2m40s", **RAMP}) == resolve(RAMP)


def test_mixed_units_in_stages_are_refused_with_both_stages() -> None:
    text = refused({"stages": ["30s:100", "1m:50/s"]})
    assert '"30s:100"' in text and '"1m:50/s"' in text


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"vus": 0}, "vus 0"),
        ({"vus": "many"}, 'vus "many"'),
        ({"duration": "0s"}, 'duration "0s"'),
        ({"rate": "0/s"}, 'rate "0/s"'),
        ({"iterations": 0}, "iterations 0"),
        ({"stages": []}, "stages []"),
        ({"stages": 5}, "stages 5"),
        ({"stages": ["10s:0"]}, "never rise above 0"),
        ({"vus": 5, "stages": ["10s:0/s"]}, "never rise above 0"),
        ({"stages": ["0s:5"]}, "take no time"),
        ({"think": "x"}, 'think "x"'),
        ({"pacing": "0s"}, 'pacing "0s"'),
        ({"grace": "-1s"}, 'grace "-1s"'),
    ],
)
def test_a_wrong_value_is_named(attributes: dict[str, Any], words: str) -> None:
    assert words in refused(attributes)


def test_a_wrong_flag_is_named_as_the_flag() -> None:
    assert refused({}, duration="5x").startswith('-d "5x"')


# Workflows that measure nothing


def test_a_workflow_that_is_no_test_runs_once_and_takes_no_flags() -> None:
    flags = ProfileFlags(vus=100, rate="5/s")
    profile = resolve_profile({"duration": "5s"}, flags, is_test=False)
    assert profile == Profile(model="once", vus=1, max_vus=1, duration_s=5.0)


@pytest.mark.parametrize("name", ["rate", "stages", "iterations"])
def test_a_load_model_on_a_workflow_that_is_no_test_is_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} on a workflow that measures nothing"):
        resolve_profile({name: 5}, ProfileFlags(), is_test=False)


# Descriptions


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"rate": "500/s", "duration": "5m"}, "open 500/s for 5m"),
        ({"vus": 50, "duration": "10s"}, "50 users for 10s"),
        ({}, "1 user for 1m"),
        ({"vus": 20, "iterations": "10k"}, "10000 iterations by 20 users, at most 24h"),
        (RAMP, "ramp 0 -> 100 -> 0 over 2m40s"),
        ({"vus": 10, "stages": ["10s:5"]}, "ramp 10 -> 5 over 10s"),
        (PEAK, "open ramp 0/s -> 50/s -> 1000/s -> 0/s over 7m"),
    ],
)
def test_a_profile_is_described_in_one_phrase(attributes: dict[str, Any], text: str) -> None:
    assert describe(resolve(attributes)) == text


def test_a_workflow_that_runs_once_is_described() -> None:
    assert describe(resolve_profile({}, ProfileFlags(), is_test=False)) == "once"
    several = resolve_profile({"vus": 3}, ProfileFlags(), is_test=False)
    assert describe(several) == "once by each of 3 users"
