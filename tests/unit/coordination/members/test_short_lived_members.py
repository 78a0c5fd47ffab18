"""Members that live for a moment, members that never lead, and what a death leaves."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from squall.coordination import Coordinator, events
from squall.coordination.errors import ConfigurationError
from squall.coordination.operations.inspect import list_members
from squall.coordination.records import keys
from squall.coordination.records.schemas import HeartbeatRecord, MemberRecord, SignalAck
from squall.coordination.stores.interface import ANY, Put
from tests.unit.coordination.lab.groups import Heard, group
from tests.unit.coordination.lab.world import FAST, Lab, play

SLOW_RANKS = msgspec.structs.replace(FAST, rank_delay=0.2, rank_delay_cap=2.0)


async def names_of(lab: Lab, part: str) -> list[str]:
    """Keys of all kinds that have this part."""
    found: list[str] = []
    for kind in await lab.store.count():
        page = await lab.store.list(kind, limit=1000)
        found += [entry.key for entry in page.entries if part in entry.key.split("/")]
    return found


def test_a_transient_member_leaves_nothing_behind() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b")
        lab.members[leader].on_signal("job", lambda delivery: None)
        lab.start("shell", eligible=False, transient=True)
        await lab.ready("shell")
        shell = lab.members["shell"]
        await lab.run_on("shell", shell.send_signal_with_retry(leader, "job"))
        with pytest.raises(TimeoutError):
            await lab.run_on("shell", shell.block_until_signal(timeout_s=0.5))
        assert await names_of(lab, "shell") != []
        await lab.world.stop("shell")
        assert await names_of(lab, "shell") == []
        await asyncio.sleep(2.0 * FAST.dead_after)
        assert heard.of(events.CoordinatorDead) == [] and heard.of(events.HeartbeatWarning) == []

    play(script)


def test_a_killed_transient_member_is_forgotten_and_is_no_death() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b")
        lab.start("shell", eligible=False, transient=True)
        await lab.ready("shell")
        lab.world.kill("shell")
        await asyncio.sleep(3.0 * FAST.dead_after)
        assert await names_of(lab, "shell") == []
        assert heard.of(events.CoordinatorDead) == [] and heard.of(events.HeartbeatWarning) == []
        assert lab.members[leader].get_statistics().coordinators_marked_dead == 0

    play(script)


def test_a_member_that_stops_while_a_beat_is_under_way_leaves_and_does_not_die() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b", "c")
        victim = next(name for name in lab.members if name != leader)
        registration = lab.members[victim]._boots.registration  # pyright: ignore[reportPrivateUsage]
        assert registration is not None
        # It takes effect, and the member has not heard of it when it leaves.
        record = registration._record(registration.sequence + 1)  # pyright: ignore[reportPrivateUsage]
        version = registration._beat_version  # pyright: ignore[reportPrivateUsage]
        await lab.store.write(registration._put(record, version))  # pyright: ignore[reportPrivateUsage]
        await lab.run_on(victim, registration.leave())
        lab.world.kill(victim)
        (member, beat) = await lab.store.get(keys.member(victim), keys.heartbeat(victim))
        codec = lab.members[leader].parts.codec
        known = None if member is None else codec.read(MemberRecord, member.value)
        assert beat is None and known is not None and known.status == "left"
        await asyncio.sleep(2.0 * FAST.dead_after)
        assert heard.of(events.CoordinatorDead) == []

    play(script)


@pytest.mark.asyncio
async def test_a_transient_member_that_may_lead_is_refused() -> None:
    options = {"profile": "fast", "unsafe_timings": True, "transient": True}
    with pytest.raises(ConfigurationError, match="eligible is True: a transient member"):
        await Coordinator("memory:", **options).start()


def test_members_that_never_lead_delay_no_other() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a0", "a1", "a2", profile=SLOW_RANKS, eligible=False)
        await lab.world.eventually(lambda: len(lab.members) == 3, within_s=5.0, what="all")
        await asyncio.sleep(1.0)
        lab.start("z", profile=SLOW_RANKS)
        begun = lab.world.now
        await lab.led()
        assert lab.world.now - begun < SLOW_RANKS.rank_delay

    play(script)


def test_acknowledgments_that_the_dead_waited_for_are_cleaned_up() -> None:
    async def script(lab: Lab) -> None:
        heard, leader = await group(lab, "a", "b", "c", "caller")
        names = ("a", "b", "c", "caller")
        victim, other = [name for name in names if name != leader][:2]
        member = lab.members[victim]
        sending = lab.run_on(victim, member.send_signal_with_retry(other, "nobody-takes-it"))
        await lab.world.eventually(lambda: member.parts.awaited, within_s=2.0, what="it waits")
        (signal_id,) = member.parts.awaited
        await asyncio.sleep(2.0 * FAST.heartbeat_interval)
        lab.world.kill(victim)
        sending.cancel()
        ack = SignalAck(signal_id=signal_id, receiver_id=other, sender_id=victim, received_at=0.0)
        value = lab.members[other].parts.codec.encode(ack)
        mine, foreign = keys.ack(victim, signal_id), keys.ack(f"{victim}1", signal_id)
        for key in (mine, foreign):
            await lab.store.write(Put(key, value, expect=ANY, ttl_s=3600.0))
        await lab.world.eventually(
            lambda: heard.of(events.CleanupComplete, victim), within_s=20.0, what="cleaned up"
        )
        assert await lab.store.get(mine) == (None,)
        assert (await lab.store.get(foreign))[0] is not None

    play(script)


def test_a_member_keeps_its_last_heartbeats_if_it_is_asked_to() -> None:
    async def script(lab: Lab) -> None:
        heard = Heard()
        lab.start("a")
        lab.start("b", keep_heartbeats=5)
        await lab.ready("a", "b")
        heard.listen(lab, "a", "b")
        await asyncio.sleep(10.0)
        guarded = lab.members["a"].parts.patient
        shown = {each.member_id: each for each in await list_members(guarded)}
        assert shown["a"].history == () and len(shown["b"].history) == 5
        numbers = [sequence for sequence, _ in shown["b"].history]
        assert numbers == list(range(numbers[0], numbers[0] + 5))
        (record,) = await lab.store.get(keys.heartbeat("b"))
        assert record is not None and len(record.value) < 1024
        if lab.leaders == ["b"]:
            return
        lab.world.kill("b")
        await lab.world.eventually(
            lambda: heard.of(events.HeartbeatWarning, "b"), within_s=20.0, what="it is missed"
        )
        await asyncio.sleep(FAST.dead_after - FAST.heartbeat_ttl)
        codec = lab.members["a"].parts.codec
        (record,) = await lab.store.get(keys.heartbeat("b"))
        beat = None if record is None else codec.read(HeartbeatRecord, record.value, signed=False)
        assert beat is None or len(beat.history) == 5

    play(script)
