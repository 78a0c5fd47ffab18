"""`profile="auto"`: the profile follows the number of live members, and no member dies of a
change.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from squall.coordination import events
from squall.coordination.election import messages as m
from squall.coordination.members.auto_profile import (
    CHANGE_S,
    next_pace,
    profile_for,
    steady,
    timing_at,
)
from squall.coordination.options import Options
from squall.coordination.records import keys
from squall.coordination.records.schemas import Codec, HeartbeatPace, LeaseRecord
from squall.coordination.stores.memory.store import CAPABILITIES
from squall.coordination.timing import PROFILES, check_timing
from tests.unit.coordination.lab.elections import TIMING, leading
from tests.unit.coordination.lab.groups import Heard
from tests.unit.coordination.lab.world import Lab, play

AUTO = {"profile": "auto", "unsafe_timings": False, "skip_cold_start": True}


@pytest.mark.parametrize(
    ("live", "profile"),
    [(1, "small"), (9, "small"), (10, "normal"), (100, "normal"), (101, "large")],
)
def test_the_size_of_the_group_decides(live: int, profile: str) -> None:
    assert profile_for(live) == profile


@pytest.mark.parametrize(
    ("before", "live", "limits", "beats", "after"),
    [
        ("small", 10, "normal", "small", "normal"),
        ("normal", 101, "large", "normal", "large"),
        ("small", 500, "large", "small", "large"),
        ("large", 50, "large", "normal", "normal"),
        ("normal", 3, "normal", "small", "small"),
    ],
)
def test_limits_rise_before_intervals_and_fall_after_them(
    before: str, live: int, limits: str, beats: str, after: str
) -> None:
    at_rest = steady(before, 0.0)
    assert next_pace(at_rest, live, CHANGE_S - 1.0) == at_rest
    between = next_pace(at_rest, live, CHANGE_S)
    assert (between.profile, between.beats, between.target) == (limits, beats, after)
    settles_s = PROFILES[limits].heartbeat_ttl
    assert next_pace(between, live, CHANGE_S + settles_s - 1.0) == between
    # Also when the size has changed again: a change that was begun is finished first.
    settled = next_pace(between, 10_000, CHANGE_S + settles_s)
    assert settled == steady(after, CHANGE_S)
    # And the next one begins ten minutes after this one began.
    assert next_pace(settled, 50 if after != "normal" else 1, 2 * CHANGE_S - 1.0) == settled
    assert next_pace(settled, 50 if after != "normal" else 1, 2 * CHANGE_S) != settled


def test_every_step_of_a_change_is_a_timing_that_would_be_accepted() -> None:
    for limits in ("small", "normal", "large"):
        for beats in ("small", "normal", "large"):
            faster = PROFILES[beats].heartbeat_interval <= PROFILES[limits].heartbeat_interval
            if faster:
                made = timing_at(
                    HeartbeatPace(profile=limits, beats=beats, target=limits, since=0.0)
                )
                assert made is not None
                check_timing(made, environment="production")
    assert timing_at(HeartbeatPace(profile="huge", beats="small", target="huge", since=0.0)) is None


async def lease_of(lab: Lab) -> LeaseRecord:
    (record,) = await lab.store.get(keys.LEADER)
    assert record is not None
    read = Codec(None).read(LeaseRecord, record.value, signed=False)
    assert read is not None
    return read


def test_a_group_that_grows_changes_its_profile_together_and_no_member_dies() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b", **AUTO)
        await lab.ready("a", "b")
        leader = await lab.led(within_s=60.0)
        assert lab.members["a"].timing == PROFILES["small"]
        begun = (await lease_of(lab)).pace
        assert begun is not None and begun == steady("small", begun.since)
        names = tuple(f"m{number:02d}" for number in range(10))
        lab.start(*names, **AUTO)
        await lab.ready(*names)
        heard = Heard()
        heard.listen(lab, *lab.members)
        # A joining member takes the coordinator's profile, whatever it counts itself.
        assert {each.timing.heartbeat_ttl for each in lab.members.values()} == {60.0}
        epoch, lease_ttl = lab.members[leader].current_epoch, (await lease_of(lab)).lease_ttl
        await lab.world.eventually(
            lambda: all(each.timing.heartbeat_ttl == 90.0 for each in lab.members.values()),
            within_s=CHANGE_S + 60.0,
            what="limits rise",
        )
        assert {each.timing.heartbeat_interval for each in lab.members.values()} == {3.0}
        await lab.world.eventually(
            lambda: all(each.timing == PROFILES["normal"] for each in lab.members.values()),
            within_s=150.0,
            what="then the interval",
        )
        await asyncio.sleep(120.0)
        assert heard.of(events.HeartbeatWarning) == []
        # The term went on, with the lease that it began with.
        assert lab.members[leader].current_epoch == epoch
        assert (await lease_of(lab)).lease_ttl == lease_ttl == PROFILES["small"].lease_ttl
        told = [each.observer_id for each in heard.of(events.ProfileChanged)]
        assert sorted(told) == sorted([*lab.members, *lab.members])
        await one_dies_and_the_lead_moves(lab, heard, leader)

    play(script)


async def one_dies_and_the_lead_moves(lab: Lab, heard: Heard, leader: str) -> None:
    """In the profile that is in force, which the next coordinator keeps."""
    lab.world.kill(leader)
    await lab.led(within_s=PROFILES["normal"].failover + 15.0, but=leader)
    lease = await lease_of(lab)
    assert lease.pace is not None and lease.pace.profile == "normal"
    assert lease.lease_ttl == PROFILES["normal"].lease_ttl
    await lab.world.eventually(
        lambda: heard.of(events.CoordinatorDead, leader), within_s=200.0, what="dead"
    )


def test_the_profile_of_a_group_is_that_of_its_members_when_it_begins() -> None:
    async def script(lab: Lab) -> None:
        names = tuple(f"m{number:02d}" for number in range(12))
        for name in names:
            lab.start(name, **AUTO)
            await asyncio.sleep(0.5)
        await lab.ready(*names)
        await lab.led(within_s=60.0)
        lease = await lease_of(lab)
        assert lease.pace is not None
        assert {each.timing for each in lab.members.values()} == {PROFILES[lease.pace.profile]}

    play(script)


def test_a_term_keeps_the_lease_with_which_it_began() -> None:
    """Followers wait for as long as the record says: a leader that counts longer would still act
    when the next one does."""
    core, _ = leading(100.0)
    core.timing = PROFILES["large"]
    renewal = core.tick(105.0)[-1]
    assert isinstance(renewal, m.WriteLease)
    assert renewal.lease.lease_ttl == TIMING.lease_ttl
    core.handle(m.LeaseWritten(renewal, "w2"), 105.1)
    # It is renewed as often as its length asks for, not as often as members beat.
    assert core.deadline() == pytest.approx(110.0)
    assert core.leads(105.0 + 0.8 * TIMING.lease_ttl - 0.1)
    assert not core.leads(105.0 + 0.8 * TIMING.lease_ttl)


def test_on_s3_there_is_one_profile_at_any_size() -> None:
    capabilities = msgspec.structs.replace(CAPABILITIES, cross_host=True, blocking_wait=False)
    assert Options(profile="auto").timing_for(capabilities) == PROFILES["s3"]
    assert Options(profile="auto").timing_for(CAPABILITIES) == PROFILES["normal"]
