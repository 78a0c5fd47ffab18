"""The first standby stands at once; the others wait for a random delay."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from squall.coordination.election import messages as m
from squall.coordination.records.schemas import LeaseRecord
from squall.coordination.timing import Timing
from tests.unit.coordination.lab.elections import member
from tests.unit.coordination.lab.world import FAST, Lab, play

TIMING = Timing()
RELEASED = LeaseRecord(
    epoch=3,
    member_id="a",
    boot=1,
    token="a.1.1",
    elected_at=0.0,
    renewals=9,
    lease_ttl=TIMING.lease_ttl,
    term_ends_at=0.0,
    released=True,
)
SLOW_RANKS = msgspec.structs.replace(FAST, rank_delay=0.2, rank_delay_cap=2.0)


def stands_after(name: str, lease: LeaseRecord, rank: int | None = None) -> float:
    """With the longest draw; `rank` is what the index of members says, if it is asked."""
    core = member(name, uniform=lambda low, high: high)
    core.tick(100.0)
    effects = core.handle(m.LeaseRead(m.SeenLease("v1", lease.epoch, lease)), 100.0)
    if rank is not None:
        assert any(isinstance(effect, m.FindRank) for effect in effects)
        effects = core.handle(m.RankKnown(rank), 100.0)
    now = 100.0
    while not any(isinstance(effect, m.WriteLease) for effect in effects):
        assert now < 110.0, "it never stands"
        now += 0.05
        effects = core.tick(now)
    return now - 100.0


def test_the_first_of_the_standbys_stands_at_once_and_the_next_ones_later() -> None:
    named = msgspec.structs.replace(RELEASED, standbys=("b", "c"))
    assert stands_after("b", named) == 0.0
    assert stands_after("c", named) == pytest.approx(2 * TIMING.rank_delay, abs=0.06)
    assert stands_after("d", named) == pytest.approx(3 * TIMING.rank_delay, abs=0.06)


def test_the_smallest_id_of_the_index_stands_at_once_too() -> None:
    assert stands_after("b", RELEASED, rank=0) == 0.0
    assert stands_after("b", RELEASED, rank=1) == pytest.approx(2 * TIMING.rank_delay, abs=0.06)


def test_one_that_joined_a_moment_ago_does_not_wait_for_the_one_that_left() -> None:
    async def script(lab: Lab) -> None:
        lab.start("a", profile=SLOW_RANKS)
        await lab.led()
        # It is not yet among the standbys when the coordinator stops.
        lab.start("b", profile=SLOW_RANKS)
        await lab.ready("b")
        await asyncio.sleep(0.3)
        begun = lab.world.now
        stopping = asyncio.ensure_future(lab.world.stop("a"))
        await lab.led(but="a")
        assert lab.world.now - begun < SLOW_RANKS.rank_delay / 2
        await stopping

    play(script)
