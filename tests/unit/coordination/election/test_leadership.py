"""Whole members in virtual time: which one leads, for how long, and the work of its term."""

from __future__ import annotations

import asyncio

import pytest

from squall.coordination import events
from squall.coordination.coordinator import Coordinator
from squall.coordination.election.term import Term
from squall.coordination.errors import (
    ConfigurationError,
    DuplicateMemberError,
    LeadershipLost,
    SignalDeliveryError,
    StaleEpochError,
)
from squall.coordination.plugin import CoordinatorPlugin
from squall.coordination.records.keys import HEARTBEAT, LEADER
from squall.coordination.stores.interface import ANY, Fence, Put
from tests.unit.coordination.lab.world import FAST, FIRST_EPOCH, NORMAL, Lab, play


def test_of_many_that_start_at_once_one_leads() -> None:
    async def script(lab: Lab) -> None:
        names = [f"m{number:02d}" for number in range(30)]
        lab.start(*names)
        leader = await lab.led()
        await lab.world.eventually(
            lambda: all(m.current_coordinator == leader for m in lab.members.values()),
            within_s=5.0,
            what="all agree",
        )
        assert {m.current_epoch for m in lab.members.values()} == {FIRST_EPOCH}

    play(script)


@pytest.mark.parametrize("timing", [NORMAL, FAST])
def test_a_crash_is_followed_by_a_successor_within_the_bound_of_the_profile(timing) -> None:  # type: ignore[no-untyped-def]
    async def script(lab: Lab) -> None:
        lab.start("a", "b", "c", profile=timing, skip_cold_start=True)
        for _ in range(3):
            leader = await lab.led(within_s=30.0)
            epoch = lab.members[leader].current_epoch
            await asyncio.sleep(timing.heartbeat_interval * 3.3)
            lab.world.kill(leader)
            follower = await lab.led(within_s=timing.failover, but=leader)
            assert lab.members[follower].current_epoch == epoch + 1
            lab.world.start(leader)
            await asyncio.sleep(timing.heartbeat_interval * 4.0)

    play(script)


def test_a_graceful_stop_hands_over_in_less_than_200_ms() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b", "c")
        leader = await lab.led()
        await asyncio.sleep(2.0)
        begun = lab.world.now
        await lab.world.stop(leader)
        await lab.led(but=leader)
        assert lab.world.now - begun < 0.2 + 0.1

    play(script)


def test_a_leader_that_is_cut_off_stops_before_another_begins() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b", "c")
        for _ in range(5):
            leader = await lab.led()
            await asyncio.sleep(1.0)
            lab.faults[leader].down = True
            while lab.members[leader].is_coordinator:
                assert lab.leaders == [leader]
                await asyncio.sleep(0.01)
            await lab.led(but=leader, within_s=FAST.failover)
            lab.faults[leader].down = False
            await asyncio.sleep(1.0)

    play(script)


def test_what_runs_under_a_term_is_cancelled_when_it_ends() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b")
        leader = await lab.led()
        ended: list[object] = []

        async def body() -> None:
            try:
                async with lab.members[leader].lead() as term:
                    ended.append(term.epoch)
                    await asyncio.sleep(100.0)
            except LeadershipLost as error:
                ended.append(error.reason)

        lab.run_on(leader, body())
        await asyncio.sleep(0.5)
        lab.faults[leader].down = True
        await lab.world.eventually(
            lambda: ended == [FIRST_EPOCH, "lease_lost"],
            within_s=FAST.lease_ttl,
            what="it is cancelled",
        )

    play(script)


def test_a_write_of_a_deposed_leader_is_refused_by_the_store() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b")
        leader = await lab.led()
        term = lab.members[leader].term
        assert term is not None
        lab.world.pause(leader)
        await lab.led(but=leader, within_s=FAST.failover)
        with pytest.raises(StaleEpochError):
            await lab.store.write(Put("x", b"late", expect=ANY, ttl_s=1.0), fence=term.fence)
        lab.world.resume(leader)
        await asyncio.sleep(0.1)
        assert not lab.members[leader].is_coordinator

    play(script)


def test_the_same_id_twice_is_refused_and_names_the_holder() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a")
        await lab.led()
        runtime = lab.world.runtime("a")
        second = Coordinator(
            lab.store,
            member_id="a",
            runtime=runtime,
            profile=FAST,
            unsafe_timings=True,
            secret="5ec2e7" * 12,
        )
        with pytest.raises(DuplicateMemberError, match="a is already alive, as process"):
            await second.start()

    play(script)


def test_a_forced_change_takes_the_normal_way_to_the_one_that_is_named() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b", "c")
        leader = await lab.led()
        await asyncio.sleep(2.0)
        other = next(name for name in ("c", "b") if name != leader)
        with pytest.raises(ConfigurationError, match="desired_coordinator is 'nobody'"):
            await lab.members[leader].hand_over("nobody", allow_early=True)
        await lab.members[leader].hand_over(other, allow_early=True)
        assert await lab.led(but=leader) == other
        assert lab.members[other].current_epoch == FIRST_EPOCH + 1

    play(script)


def test_any_member_can_ask_the_coordinator_to_hand_over() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b", "c")
        leader = await lab.led()
        await asyncio.sleep(2.0)
        asker, wanted = (name for name in ("a", "b", "c") if name != leader)
        call = lab.members[asker].ensure_coordinator(force=True, desired_coordinator=wanted)
        assert await lab.run_on(asker, call) == wanted
        assert await lab.led() == wanted

    play(script)


def test_an_order_to_hand_over_is_sent_until_it_arrives_and_counts_for_its_term_only() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b", "c")
        leader = await lab.led()
        await asyncio.sleep(2.0)
        asker, wanted = (name for name in ("a", "b", "c") if name != leader)
        signals = lab.members[asker].signals
        send, tried = signals.send_signal_with_retry, list[str]()

        async def lossy(receiver: str, type: str, *, payload: dict[str, object]) -> None:
            tried.append(receiver)
            if len(tried) < 3:
                raise SignalDeliveryError(receiver, "s", 3, "no acknowledgment")
            await send(receiver, type, payload=payload)

        signals.send_signal_with_retry = lossy
        call = lab.members[asker].ensure_coordinator(force=True, desired_coordinator=wanted)
        assert await lab.run_on(asker, call) == wanted
        assert tried == [leader] * 3
        late = {"desired": leader, "allow_early": True, "epoch": FIRST_EPOCH}
        await lab.run_on(asker, send(wanted, "coord.elect", payload=late))
        await asyncio.sleep(5.0)
        assert await lab.led() == wanted and lab.members[wanted].current_epoch == FIRST_EPOCH + 1

    play(script)


def test_callbacks_alternate_and_work_stops_with_the_term() -> None:
    calls: dict[str, list[str]] = {}

    class Noted(CoordinatorPlugin):
        name = "noted"

        def __init__(self, member: str) -> None:
            super().__init__()
            self.calls = calls.setdefault(member, [])

        async def on_become_coordinator(self) -> None:
            self.calls.append("become")

        async def on_stop_being_coordinator(self) -> None:
            await asyncio.sleep(0.3)
            self.calls.append("stop")

        async def coordinator_work(self) -> None:
            assert self.term.valid
            if self.calls[-1] != "work":
                self.calls.append("work")

    async def script(lab: Lab) -> None:
        lab.start("a", "b", plugin=Noted)
        for _ in range(3):
            leader = await lab.led()
            await asyncio.sleep(1.0)
            await lab.members[leader].hand_over(allow_early=True)
            await lab.led(but=leader)

    play(script)
    for each in calls.values():
        assert each[:3] == ["become", "work", "stop"]
        callbacks = [call for call in each if call != "work"]
        assert all(call == ("become", "stop")[at % 2] for at, call in enumerate(callbacks))


def test_work_that_fails_five_times_gives_up_the_lead() -> None:
    async def script(lab: Lab) -> None:
        failing = "a"

        async def work(term: Term) -> None:
            raise RuntimeError("no disk")

        lab.start(failing, work=work)
        await lab.led()
        lab.start("b")
        await lab.led(but=failing, within_s=60.0)

    play(script)


def test_a_store_that_lost_everything_gets_an_epoch_above_all_that_were_seen() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b", "c")
        for _ in range(2):
            leader = await lab.led()
            await asyncio.sleep(1.5)
            await lab.members[leader].hand_over(allow_early=True)
            await lab.led(but=leader)
        await asyncio.sleep(2.0)
        seen = max(member.current_epoch for member in lab.members.values())
        assert seen == FIRST_EPOCH + 2
        lab.store.__init__(lab.store._clock)  # type: ignore[misc]
        await asyncio.sleep(0.1)
        await lab.world.eventually(
            lambda: len(lab.leaders) == 1 and lab.members[lab.leaders[0]].current_epoch > seen,
            within_s=3 * FAST.failover,
            what="a new epoch",
        )
        (record,) = await lab.store.get(LEADER)
        assert record is not None
        assert record.epoch > seen

    play(script)


@pytest.mark.parametrize("coordinated", [True, False])
def test_a_member_that_never_saw_the_lost_store_repeats_no_epoch(coordinated: bool) -> None:
    """It starts after the loss, so no member can tell it the epochs before."""

    async def script(lab: Lab) -> None:
        lab.start("a")
        await lab.led()
        await asyncio.sleep(2.0)
        old = lab.members["a"].term
        assert old is not None
        lab.world.pause("a")
        lab.store.__init__(lab.store._clock)  # type: ignore[misc]
        lab.member("b", enable_coordinator=coordinated)
        lab.world.start("b")
        await lab.led(but="a")
        assert lab.members["b"].current_epoch > old.epoch
        late = Put("effect/late", b"", expect=ANY, ttl_s=9.0)
        with pytest.raises(StaleEpochError):
            await lab.store.write(late, fence=Fence(LEADER, old.epoch))

    play(script)


def test_events_are_emitted_on_every_member() -> None:
    async def script(lab: Lab) -> None:
        heard: dict[str, list[events.Event]] = {"a": [], "b": []}
        lab.start("a", "b")
        for name, into in heard.items():
            await lab.world.eventually(lambda n=name: n in lab.members, within_s=1.0, what="made")
            await asyncio.sleep(0.05)
            lab.members[name].on("*", into.append)
        leader = await lab.led()
        await asyncio.sleep(1.0)
        await lab.members[leader].hand_over(allow_early=True)
        follower = await lab.led(but=leader)
        await asyncio.sleep(1.0)
        for into in heard.values():
            elected = [event for event in into if isinstance(event, events.CoordinatorElected)]
            assert elected[-1].member_id == follower
            assert elected[-1].epoch == FIRST_EPOCH + 1
            assert elected[-1].observer_id in ("a", "b")
        demoted = [e for e in heard[leader] if isinstance(e, events.CoordinatorDemoted)]
        assert [event.reason for event in demoted] == ["forced"]

    play(script)


def test_a_single_instance_acts_at_once_and_needs_no_election() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", enable_coordinator=False)
        await lab.led(within_s=0.5)
        member = lab.members["a"]
        assert (member.current_epoch, member.current_coordinator) == (FIRST_EPOCH, "a")
        (lease,) = await lab.store.get(LEADER)
        assert lease is not None and lease.epoch == FIRST_EPOCH
        assert (await lab.store.list(HEARTBEAT)).entries == ()

    play(script)
