"""What members know of the lead, and orders to hand it over."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from squall.coordination import ConfigurationError, Coordinator, events
from squall.coordination.stores.memory.store import MemoryStore
from squall.runtime.real.runtime import RealClock
from tests.unit.coordination.lab.world import FAST, SECRET, Lab, play

LONG_S = 5.0
SLOW = msgspec.structs.replace(FAST, min_epoch_duration=LONG_S)


def test_no_coordinator_is_named_once_the_last_lease_has_expired() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a")
        await lab.led()
        lab.start("b", eligible=False)
        await lab.ready("b")
        lab.world.kill("a")
        watcher = lab.members["b"]
        await lab.world.eventually(
            lambda: watcher.current_coordinator is None, within_s=FAST.failover, what="known"
        )
        with pytest.raises(TimeoutError):
            await lab.run_on("b", watcher.ensure_coordinator(timeout_s=5.0))
        lab.start("c")
        assert await lab.run_on("b", watcher.ensure_coordinator(timeout_s=20.0)) == "c"

    play(script)


def test_an_early_order_is_refused_to_every_member() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b", profile=SLOW)
        leader = await lab.led()
        (asker,) = {"a", "b"} - {leader}
        await lab.ready(asker)
        for name in (leader, asker):
            call = lab.members[name].ensure_coordinator(force=True)
            with pytest.raises(ConfigurationError, match="allow_early is False"):
                await lab.run_on(name, call)
        await asyncio.sleep(LONG_S)
        call = lab.members[asker].ensure_coordinator(force=True, desired_coordinator=asker)
        assert await lab.run_on(asker, call) == asker

    play(script)


def test_a_term_that_was_renewed_is_not_young_again() -> None:
    async def script(lab: Lab) -> None:
        profile = msgspec.structs.replace(SLOW, max_epoch_duration=2.0 * LONG_S)
        lab.start("a", "b", profile=profile)
        leader = await lab.led()
        renewed: list[events.Event] = []
        lab.members[leader].on(events.EpochRenewed, renewed.append)
        await lab.world.eventually(lambda: renewed, within_s=30.0, what="the term is renewed")
        await lab.members[leader].hand_over()
        assert await lab.led(but=leader)

    play(script)


def test_an_order_is_reported_with_the_name_of_its_sender() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", "b", "c")
        leader = await lab.led()
        told: list[events.ForcedElection] = []
        lab.members[leader].on(events.ForcedElection, told.append)
        asker, wanted = (name for name in ("a", "b", "c") if name != leader)
        await asyncio.sleep(2.0)
        call = lab.members[asker].ensure_coordinator(force=True, desired_coordinator=wanted)
        assert await lab.run_on(asker, call) == wanted
        assert [(each.requested_by, each.desired) for each in told] == [(asker, wanted)]

    play(script)


@pytest.mark.asyncio
async def test_a_store_object_is_of_one_namespace_and_a_url_of_any() -> None:
    options = {"profile": FAST, "unsafe_timings": True, "secret": SECRET}
    store = MemoryStore(RealClock())
    async with Coordinator(store, namespace="one", **options):
        other = Coordinator(store, namespace="two", **options)
        with pytest.raises(ConfigurationError, match="namespace is 'two'"):
            await other.start()
    async with (
        Coordinator("memory://isolated", namespace="one", **options) as first,
        Coordinator("memory://isolated", namespace="two", **options) as second,
    ):
        leaders = [await each.ensure_coordinator(timeout_s=10.0) for each in (first, second)]
        assert leaders == [first.member_id, second.member_id]
        assert await first.active_workers() == (first.member_id,)
