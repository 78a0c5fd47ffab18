"""Whole members in virtual time: silence, death, recovery and cleanup."""

from __future__ import annotations

import asyncio

import pytest

from squall.coordination import events
from squall.coordination.errors import InvalidIdentifierError, MemberFencedError
from squall.coordination.records import keys
from squall.coordination.stores.interface import ANY, Delete
from tests.unit.coordination.lab.groups import group
from tests.unit.coordination.lab.world import FAST, NORMAL, Lab, play


def test_a_silent_member_is_dead_by_120_s_on_the_defaults_and_reported_once() -> None:
    async def script(lab: Lab) -> None:
        names = ("a", "b", "c", "d")
        heard, leader = await group(lab, *names, profile=NORMAL, skip_cold_start=True)
        await asyncio.sleep(30.0)
        victim = next(name for name in names if name != leader)
        (record,) = await lab.store.get(keys.heartbeat(victim))
        assert record is not None
        lab.world.kill(victim)
        beaten_s = lab.world.now - record.age_s
        # The record vanishes: its place in the index stays and walks through the states.
        await asyncio.sleep(20.0)
        died: list[float] = []
        lab.members[leader].on(events.CoordinatorDead, lambda event: died.append(lab.world.now))
        await lab.world.eventually(lambda: died, within_s=120.0, what="dead")
        assert 90.0 < died[0] - beaten_s <= 120.0 + NORMAL.heartbeat_interval
        await asyncio.sleep(60.0)
        assert len(heard.of(events.CoordinatorDead)) == 1
        warnings = heard.of(events.HeartbeatWarning, victim)
        assert [event.health for event in warnings] == ["warning", "critical", "dead"]
        assert len(heard.of(events.ErrorEvent)) == 1
        statistics = lab.members[leader].get_statistics()
        assert statistics.coordinators_marked_dead == 1
        assert statistics.dead_coordinators == [victim]
        assert statistics.cleanups_performed == 1

    play(script)


def test_the_death_of_a_member_with_an_expired_record_is_noticed() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b", "c", profile=FAST)
        victim = next(name for name in ("a", "b", "c") if name != leader)
        lab.world.kill(victim)
        kept = lab.store._records[keys.heartbeat(victim)]
        kept.expires_ms = lab.store._now_ms()
        await asyncio.sleep(FAST.dead_after + 1.0)
        assert [event.member_id for event in heard.of(events.CoordinatorDead)] == [victim]

    play(script)


def test_a_member_that_beats_again_in_time_is_healthy_and_no_member_died() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b", "c")
        victim = next(name for name in ("a", "b", "c") if name != leader)
        await asyncio.sleep(2.0)
        lab.world.pause(victim)
        await asyncio.sleep(FAST.heartbeat_ttl + 1.5 * FAST.monitor_interval)
        lab.world.resume(victim)
        await asyncio.sleep(3.0)
        assert heard.of(events.HeartbeatWarning, victim)
        recovered = heard.of(events.CoordinatorRecovered, victim)
        assert [event.was_dead for event in recovered] == [False]
        assert heard.of(events.CoordinatorDead) == []

    play(script)


def test_dead_is_terminal_and_the_process_goes_on_as_a_new_incarnation() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b", "c")
        victim = next(name for name in ("a", "b", "c") if name != leader)
        member = lab.members[victim]
        before = member.boot
        lab.world.pause(victim)
        await lab.world.eventually(
            lambda: heard.of(events.CoordinatorDead), within_s=10.0, what="dead"
        )
        lab.world.resume(victim)
        sending = lab.run_on(victim, member.send_signal(leader, "late"))
        with pytest.raises(MemberFencedError):
            await sending
        await lab.world.eventually(
            lambda: member.boot > before, within_s=5.0, what="a new incarnation"
        )
        await lab.run_on(victim, member.send_signal(leader, "again"))
        recovered = heard.of(events.CoordinatorRecovered, victim)
        assert [event.was_dead for event in recovered] == [True]

    play(script)


def test_cleanup_touches_nothing_of_a_member_with_a_similar_id() -> None:
    async def script(lab: Lab) -> None:
        names = ("coord-1", "coord-10", "coord-1.x", "z")
        heard, leader = await group(lab, *names)
        victim = "coord-1" if leader != "coord-1" else "coord-10"
        others = [name for name in names if name != victim]
        await lab.members["z"].send_signal(victim, "stays")
        lab.world.kill(victim)
        await lab.world.eventually(
            lambda: heard.of(events.CleanupComplete, victim), within_s=15.0, what="cleaned up"
        )
        assert await lab.store.get(keys.heartbeat(victim)) == (None,)
        assert len(await lab.store.read(keys.inbox(victim))) == 1
        for name in others:
            assert all(await lab.store.get(keys.heartbeat(name), keys.member(name)))

    play(script)


@pytest.mark.parametrize("name", ["*", "a:b", "x/y", "[ab]", "", ".."])
def test_ids_that_could_name_other_keys_are_refused(name: str) -> None:
    with pytest.raises(InvalidIdentifierError):
        keys.member(name)


def test_a_store_that_was_away_kills_no_member() -> None:
    async def script(lab: Lab) -> None:
        heard, _ = await group(lab, "a", "b", "c")
        for away_s in (FAST.heartbeat_interval, 30.0):
            for faults in lab.faults.values():
                faults.down = True
            await asyncio.sleep(away_s)
            assert away_s < 1.0 or lab.leaders == []
            for faults in lab.faults.values():
                faults.down = False
            await lab.led(within_s=10.0)
            await asyncio.sleep(10.0)
        assert heard.of(events.CoordinatorDead) == []
        assert heard.of(events.HeartbeatWarning) == []
        assert heard.of(events.Isolated)

    play(script)


def test_a_member_that_left_is_not_dead() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b", "c")
        victim = next(name for name in ("a", "b", "c") if name != leader)
        await lab.world.stop(victim)
        await asyncio.sleep(FAST.dead_after * 2)
        assert heard.of(events.CoordinatorDead) == []
        assert await lab.members[leader].active_workers() == tuple(
            sorted(name for name in ("a", "b", "c") if name != victim)
        )

    play(script)


def test_a_death_that_was_not_reported_is_reported_by_the_next_coordinator_with_the_same_id() -> (
    None
):
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b", "c")
        victim = next(name for name in ("a", "b", "c") if name != leader)
        lab.world.kill(victim)
        await lab.world.eventually(
            lambda: heard.of(events.CoordinatorDead), within_s=10.0, what="dead"
        )
        first = heard.of(events.CoordinatorDead)[0]
        await asyncio.sleep(1.0)
        monitor = lab.members[leader]._monitor
        found = await monitor._tombstone(victim)
        assert found is not None
        _, tomb = found
        unannounced = type(tomb)(
            member_id=tomb.member_id,
            boot=tomb.boot,
            death_id=tomb.death_id,
            epoch=tomb.epoch,
            died_at=tomb.died_at,
            reason=tomb.reason,
            consecutive_warnings=3,
        )
        kept = lab.store._records[keys.tombstone(victim)]
        kept.value = monitor._parts.codec.encode(unannounced)
        await lab.members[leader].hand_over(allow_early=True)
        await lab.led(but=leader)
        await asyncio.sleep(2.0)
        told = heard.of(events.CoordinatorDead)
        assert [event.death_id for event in told] == [first.death_id] * 2

    play(script)


def test_a_heartbeat_record_that_is_deleted_by_hand_comes_back() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b")
        other = "b" if leader == "a" else "a"
        await lab.store.write(Delete(keys.heartbeat(other), ANY))
        await asyncio.sleep(2.0)
        assert await lab.store.get(keys.heartbeat(other)) != (None,)
        assert heard.of(events.CoordinatorDead) == []

    play(script)


def test_everything_has_an_expiry_but_the_epoch_and_the_meta_record() -> None:
    async def script(lab: Lab) -> None:
        await group(lab, "a", "b", "c")
        lab.members["a"].on_signal("note", lambda delivery: None)
        await lab.members["b"].send_signal_with_retry("a", "note")
        lab.world.kill("c")
        await asyncio.sleep(10.0)
        lasting = {key for key, kept in lab.store._records.items() if kept.expires_ms is None}
        assert lasting == {keys.LEADER, keys.META}

    play(script)
