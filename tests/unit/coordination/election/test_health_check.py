"""A member that reports itself unhealthy does not stand, and leads to the end of its term at
most.
"""

from __future__ import annotations

import asyncio

import msgspec

from squall.coordination import events
from squall.coordination.election import messages as m
from tests.unit.coordination.lab.elections import TIMING, leading
from tests.unit.coordination.lab.groups import Heard
from tests.unit.coordination.lab.world import FAST, Lab, play

TERMS = msgspec.structs.replace(FAST, max_epoch_duration=10.0)


def test_the_core_gives_up_at_the_end_of_the_term_and_not_before() -> None:
    core, _ = leading()
    core.healthy = False
    now, version, told = 100.0, 1, list[tuple[float, m.Effect]]()
    while now < 100.0 + TIMING.max_epoch_duration + 2.0:
        assert core.deadline() <= 100.0 + TIMING.max_epoch_duration
        now = max(now, core.deadline())
        effects = core.tick(now)
        told += [(now, each) for each in effects if isinstance(each, m.TermRenewed | m.Demote)]
        if told:
            break
        for effect in effects:
            if isinstance(effect, m.WriteLease):
                version += 1
                core.handle(m.LeaseWritten(effect, f"w{version}"), now)
    assert told == [(100.0 + TIMING.max_epoch_duration, m.Demote(1, "unhealthy"))]


def test_the_lead_goes_to_one_that_is_fit_and_comes_back_with_health() -> None:
    fit = {"a": True, "b": True}

    async def script(lab: Lab) -> None:
        heard = Heard()
        for name in fit:
            lab.member(name, profile=TERMS, health_check=lambda name=name: fit[name])
            lab.world.start(name)
        await lab.ready(*fit)
        heard.listen(lab, *fit)
        leader = await lab.led()
        other = next(name for name in fit if name != leader)
        fit[leader] = False
        assert await lab.led(2.0 * TERMS.max_epoch_duration, but=leader) == other
        reasons = [event.reason for event in heard.of(events.CoordinatorDemoted)]
        assert reasons == ["unhealthy"]
        lab.world.kill(other)
        await asyncio.sleep(3.0 * TERMS.failover)
        assert lab.leaders == [], "an unhealthy member does not stand"
        fit[leader] = True
        assert await lab.led(2.0 * TERMS.failover) == leader

    play(script)


def test_a_check_that_raises_or_hangs_says_no() -> None:
    async def hangs() -> bool:
        await asyncio.sleep(3600.0)
        return True

    def raises() -> bool:
        raise OSError("no disk")

    async def script(lab: Lab) -> None:
        lab.member("a", health_check=raises)
        lab.member("b", health_check=hangs)
        lab.member("c", health_check=lambda: True)
        for name in ("a", "b"):
            lab.world.start(name)
        await asyncio.sleep(5.0)
        lab.world.start("c")
        await lab.led(30.0)
        await asyncio.sleep(2.0 * FAST.max_epoch_duration)
        assert lab.leaders == ["c"]

    play(script)
