"""Heartbeats that an application drives, members that only watch, and what is logged."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from lab.scenarios.coordination.store import WorldClock
from squall.coordination import Coordinator, events
from squall.coordination.errors import (
    ConfigurationError,
    DuplicateMemberError,
    InvalidIdentifierError,
    MemberFencedError,
    NotRunningError,
    SignalDeliveryError,
)
from squall.coordination.operations.inspect import Leader, Member
from squall.coordination.operations.watcher import Watcher
from squall.coordination.records import keys
from squall.coordination.records.schemas import Codec, HeartbeatRecord
from squall.coordination.stores.memory.store import MemoryStore
from squall.runtime.log import Level, Log, MemorySink
from squall.runtime.real.runtime import RealClock
from tests.unit.coordination.lab.groups import Heard, group
from tests.unit.coordination.lab.world import FAST, Lab, play

DEVICE = "sensor-7"


async def beat_of(lab: Lab, member_id: str) -> HeartbeatRecord | None:
    (found,) = await lab.store.get(keys.heartbeat(member_id))
    return None if found is None else Codec(None).read(HeartbeatRecord, found.value, signed=False)


async def dead(lab: Lab, heard: Heard, member_id: str) -> None:
    await lab.world.eventually(
        lambda: heard.of(events.CoordinatorDead, member_id), within_s=30.0, what="dead"
    )


def test_a_jump_of_the_sequence_is_reported_once_and_a_restart_is_none() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b")
        a = lab.members["a"]
        boots = [await a.register_heartbeat(DEVICE, number) for number in (1, 2, 3, 6)]
        assert len(set(boots)) == 1
        again = await a.register_heartbeat(DEVICE, 1, {"phase": "warm"})
        assert again > boots[0]
        await asyncio.sleep(0.1)
        (told,) = heard.of(events.ContinuityViolation, DEVICE)
        assert (told.expected_sequence, told.received_sequence) == (4, 6)
        assert (told.gap, told.missed) == (3, 2)
        assert a.get_statistics().continuity_violations == 1
        found = await beat_of(lab, DEVICE)
        assert found is not None
        assert (found.sequence, found.metadata) == (1, {"phase": "warm"})
        assert not found.eligible and found.driven_by == "a"
        assert DEVICE in await lab.members[leader].active_workers()

    play(script)


def test_a_driven_member_dies_of_silence_and_lives_again_only_from_1_on() -> None:
    async def script(lab: Lab) -> None:
        heard, _ = await group(lab, "a", "b")
        a = lab.members["a"]
        first = await a.register_heartbeat(DEVICE, 1)
        await dead(lab, heard, DEVICE)
        with pytest.raises(MemberFencedError):
            await a.register_heartbeat(DEVICE, 2)
        with pytest.raises(MemberFencedError):
            await lab.members["b"].register_heartbeat(DEVICE, 3)
        assert await a.register_heartbeat(DEVICE, 1) > first
        assert len(heard.of(events.CoordinatorDead, DEVICE)) == 1

    play(script)


def test_another_process_goes_on_with_the_sequence_and_a_driven_member_can_leave() -> None:
    async def script(lab: Lab) -> None:
        heard, _ = await group(lab, "a", "b")
        a, b = lab.members["a"], lab.members["b"]
        first = await a.register_heartbeat(DEVICE, 1)
        assert await b.register_heartbeat(DEVICE, 2) == first
        assert await a.register_heartbeat(DEVICE, 3) == first
        await asyncio.sleep(0.1)
        assert heard.of(events.ContinuityViolation) == []
        await b.unregister_heartbeat(DEVICE)
        assert await beat_of(lab, DEVICE) is None
        await asyncio.sleep(2.0 * FAST.dead_after)
        assert heard.of(events.CoordinatorDead) == []

    play(script)


def test_an_id_that_beats_by_itself_is_not_driven() -> None:
    async def script(lab: Lab) -> None:
        await group(lab, "a", "b")
        a = lab.members["a"]
        with pytest.raises(DuplicateMemberError):
            await a.register_heartbeat("b", 1)
        with pytest.raises(DuplicateMemberError):
            await a.unregister_heartbeat("b")
        with pytest.raises(ConfigurationError, match="member_id is 'a'"):
            await a.register_heartbeat("a", 1)
        with pytest.raises(ConfigurationError, match="sequence is 0"):
            await a.register_heartbeat(DEVICE, 0)
        with pytest.raises(InvalidIdentifierError):
            await a.register_heartbeat("x:y", 1)

    play(script)


def test_a_heartbeat_sent_to_oneself_is_a_beat_and_lies_in_no_inbox() -> None:
    async def script(lab: Lab) -> None:
        await group(lab, "a", "b")
        a = lab.members["a"]
        before = await beat_of(lab, "a")
        await a.send_signal("a", "heartbeat", iteration=4)
        ack = await a.send_signal_with_retry("a", "heartbeat")
        after = await beat_of(lab, "a")
        assert before is not None and after is not None
        assert after.sequence >= before.sequence + 2
        assert ack.receiver_id == "a"
        assert (await lab.store.depth(keys.inbox("a"))).items == 0

    play(script)


def test_any_member_can_watch_the_others() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b", "c")
        watcher = next(name for name in lab.members if name != leader)
        victim = next(name for name in lab.members if name not in (leader, watcher))
        member = lab.members[watcher]
        member.start_monitoring()
        member.start_monitoring()
        await asyncio.sleep(1.0)
        lab.start("d")
        await lab.ready("d")
        lab.world.kill(victim)
        await dead(lab, heard, victim)
        await asyncio.sleep(2.0)
        assert [each.observer_id for each in heard.of(events.MemberJoined, "d")] == [watcher]
        changes = [each.health for each in heard.of(events.MemberChanged, victim)]
        assert changes[0] == "warning" and set(changes) <= {"warning", "critical", "dead"}
        # Cleaned up.
        assert len(heard.of(events.MemberLeft, victim)) == 1
        member.stop_monitoring()
        await asyncio.sleep(1.0)
        lab.start("e")
        await lab.ready("e")
        await asyncio.sleep(2.0)
        assert heard.of(events.MemberJoined, "e") == []

    play(script)


def test_what_is_seen_is_compared_with_what_was_seen() -> None:
    member = Member(member_id="a", health="healthy", heard_s=0.0, boot=3)
    leader = Leader(
        member_id="a",
        epoch=2,
        boot=3,
        renewed_s=0.0,
        lease_ttl=15.0,
        released=False,
        holds=True,
        standbys=(),
    )
    watcher = Watcher()
    assert watcher.see([member], leader) == []
    assert watcher.see([member], leader) == []
    gone = msgspec.structs.replace(leader, holds=False)
    reborn = msgspec.structs.replace(member, boot=4)
    assert watcher.see([reborn], gone) == [
        events.LeaderChanged(old="a", new="", epoch=2),
        events.MemberJoined(member_id="a", boot=4),
    ]
    again = msgspec.structs.replace(leader, member_id="b", epoch=3)
    assert watcher.see([], again) == [
        events.LeaderChanged(old="", new="b", epoch=3),
        events.MemberLeft(member_id="a", boot=4),
    ]


@pytest.mark.asyncio
async def test_debug_logs_every_cycle_with_its_context() -> None:
    sink = MemorySink()
    log = Log(sink, RealClock())
    options = {"profile": "fast", "unsafe_timings": True, "epoch_fencing_enabled": False}
    async with Coordinator("memory:", log=log, debug=True, **options) as member:
        async with asyncio.timeout(20.0):
            while not {"heartbeat_cycle", "monitor_cycle", "lease_renewal"} <= set(sink.events()):
                await asyncio.sleep(0.05)
        lines = [each for each in sink.records if each.event == "heartbeat_cycle"]
        assert lines[-1].fields["member"] == member.member_id
        assert lines[-1].fields["incarnation"] == member.boot
        assert lines[-1].fields["epoch"] == member.current_epoch
    assert "fencing_is_off" in sink.events()
    quiet = MemorySink()
    async with Coordinator("memory:", log=Log(quiet, RealClock()), **options):
        await asyncio.sleep(1.0)
    assert "heartbeat_cycle" not in quiet.events()


def test_production_is_warned_about_deaths_without_a_listener() -> None:
    async def script(lab: Lab) -> None:
        sinks = {"a": MemorySink(), "b": MemorySink()}
        for name, sink in sinks.items():
            lab.start(
                name,
                log=Log(sink, WorldClock(lab.world, 1.0)),
                environment="production",
                profile="normal",
                unsafe_timings=False,
                auto_cleanup=name == "a",
            )
        await lab.world.eventually(lambda: len(lab.members) == 2, within_s=5.0, what="both")
        await asyncio.sleep(5.0)
        lab.members["a"].on(events.CoordinatorDead, lambda event: None)
        await asyncio.sleep(20.0)
        levels = {
            name: [each.event for each in sink.records if each.level == Level.WARNING]
            for name, sink in sinks.items()
        }
        assert levels == {"a": [], "b": ["cleanup_is_off", "nobody_hears_of_deaths"]}

    play(script)


@pytest.mark.asyncio
async def test_a_member_that_does_not_run_says_so() -> None:
    member = Coordinator("memory:")
    with pytest.raises(NotRunningError, match="async with"):
        await member.register_heartbeat(DEVICE, 1)
    with pytest.raises(NotRunningError, match="async with"):
        member.start_monitoring()


@pytest.mark.asyncio
async def test_a_store_opened_by_its_address_warns_in_the_log_of_its_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = MemorySink()

    def make_store(url: str, *rest: object, log: Log, **options: object) -> MemoryStore:
        log.warning("store_keeps_every_version")
        return MemoryStore(RealClock())

    monkeypatch.setattr("squall.coordination.stores.shared_memory_store.make_store", make_store)
    options = {"profile": "fast", "unsafe_timings": True, "secret": "9b3d05c1e7f24a68" * 4}
    options["log"] = Log(sink, RealClock())
    async with Coordinator("s3://bucket/prefix", member_id="m", **options):
        pass
    (line,) = [each for each in sink.records if each.event == "store_keeps_every_version"]
    assert line.fields["member"] == "m"


def test_who_does_not_answer_is_looked_at() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b", "c")
        name = next(each for each in lab.members if each != leader)
        sender = lab.members[leader]
        with pytest.raises(SignalDeliveryError):
            await sender.send_signal_with_retry(name, "nobody-takes-this")
        await lab.members[name].stop()
        with pytest.raises(SignalDeliveryError):
            await sender.send_signal_with_retry(name, "nobody-takes-this")
        await asyncio.sleep(0.1)
        told = heard.of(events.CoordinatorUnreachable, name)
        assert [each.health for each in told] == ["healthy", "left"]
        assert told[0].reason == "signal_delivery_failure" and told[0].attempts == 3
        assert heard.of(events.CoordinatorDead) == []

    play(script)


def test_only_one_that_may_lead_is_desired() -> None:
    async def script(lab: Lab) -> None:
        _, leader = await group(lab, "a", "b")
        lab.start("caller", eligible=False)
        await lab.ready("caller")
        with pytest.raises(ConfigurationError, match="live and eligible"):
            await lab.members[leader].hand_over("caller")

    play(script)
