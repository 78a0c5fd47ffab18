"""The environment of a namespace whose store lost its data."""

from __future__ import annotations

import asyncio
from random import Random

from lab.scenarios.coordination.store import WorldClock
from squall.coordination.members.boots import REPORT_AGAIN_S
from squall.coordination.operations.doctor import examine
from squall.coordination.records import keys
from squall.coordination.stores.guarded_store import GuardedStore
from squall.runtime.log import MemorySink
from tests.unit.coordination.lab.logs import log_of
from tests.unit.coordination.lab.world import Lab, play


def lose(lab: Lab) -> None:
    """The store loses everything, as a Redis that is restarted empty."""
    lab.store.__init__(lab.store._clock)  # pyright: ignore[reportPrivateUsage]


async def environment(lab: Lab) -> bytes:
    (meta,) = await lab.store.get(keys.META)
    return b"" if meta is None else meta.value


def test_a_stranger_keeps_a_lost_namespace_only_while_it_lives() -> None:
    """It starts between the loss and the next heartbeat of the members."""

    async def script(lab: Lab) -> None:
        sink = MemorySink()
        lab.start("a", "b", environment="development", log=log_of(lab, sink))
        await lab.ready("a", "b")
        lose(lab)
        lab.start("x", environment="staging")
        await lab.ready("x")
        await asyncio.sleep(REPORT_AGAIN_S * 1.5)

        a = lab.members["a"]
        assert b"staging" in await environment(lab) and a.isolated
        assert 'coordination_isolated{namespace="default"} 1' in a.metrics_text()
        refusals = [each for each in sink.records if each.event == "register_failed"]
        # Two members, twice each.
        assert len(refusals) == 4 and "'staging'" in str(refusals[0].fields)
        clock = WorldClock(lab.world, 1.0)
        found = await examine(GuardedStore(lab.store, clock, Random(1)), clock.wall())
        (told,) = [each for each in found if each.about == "environment" and each.verdict == "bad"]
        assert "'development'" in told.text and "'staging'" in told.text and "meta" in told.advice

        lab.world.kill("x")
        await lab.ready("a", "b")
        assert await lab.led() in ("a", "b") and not a.isolated
        assert 'coordination_isolated{namespace="default"} 0' in a.metrics_text()
        assert b"development" in await environment(lab)

    play(script)


def test_a_member_binds_the_namespace_in_the_beat_that_finds_it_lost() -> None:
    """Work of its term that takes long to end does not delay it."""

    async def script(lab: Lab) -> None:
        async def slow_stop(term: object) -> None:
            await asyncio.sleep(5.0)

        lab.start("a", environment="development", on_stop=slow_stop)
        await lab.led()
        lose(lab)
        await asyncio.sleep(1.0)
        assert b"development" in await environment(lab)

    play(script)
