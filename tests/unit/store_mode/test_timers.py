"""The timers of store mode keep a lease longer than two changes of the coordinator."""

from __future__ import annotations

import msgspec
import pytest

from squall.api.errors import ConfigError
from squall.coordination.timing import check_timing
from squall.store_mode.timers import Profile, agent_timers, check_agent_timers

URLS = ("redis://h/0", "sqlite:///f", "s3://bucket/p", "memory:")


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("profile", ["normal", "fast"])
def test_every_row_is_safe(url: str, profile: Profile) -> None:
    chosen = agent_timers(url, profile)
    check_timing(chosen.election, environment=None, unsafe_timings=chosen.unsafe)
    work = chosen.work
    assert work.failover_bound_s == chosen.election.failover
    assert work.execution_lease_s >= 2 * chosen.election.failover + 3 * work.session_interval_max_s


def test_only_tests_have_an_unsafe_pace() -> None:
    assert not any(agent_timers(url).unsafe for url in URLS)


def test_a_store_that_is_asked_again_and_again_is_asked_less_often() -> None:
    near, afar = agent_timers("redis://h/0").work, agent_timers("s3://b/p").work
    assert afar.session_interval_s >= 3.0 > near.session_interval_s
    assert afar.telemetry_interval_min_s >= 5.0 > near.telemetry_interval_min_s
    assert near.execution_lease_s == 15.0 and afar.execution_lease_s == 25.0


def test_a_lease_that_the_death_of_a_coordinator_outlasts_is_refused() -> None:
    chosen = agent_timers("redis://h/0")
    short = msgspec.structs.replace(chosen.work, execution_lease_s=10.0)
    with pytest.raises(ConfigError, match="the death of a coordinator stops healthy load"):
        check_agent_timers(msgspec.structs.replace(chosen, work=short))
    early = msgspec.structs.replace(chosen.work, failover_bound_s=1.0)
    with pytest.raises(ConfigError, match="the election takes up to"):
        check_agent_timers(msgspec.structs.replace(chosen, work=early))
