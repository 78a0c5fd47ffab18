"""Orders for jobs without code here stay for other members, and gaps are reported once each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

from squall.coordination import JobRecord, RunRecord, Scheduler
from squall.coordination.scheduler.records import (
    ORDERS,
    SCHEDULES,
    HandlerMissing,
    RunOrder,
    RunsMissed,
)
from squall.coordination.stores.interface import ANY, Append, Fence, Item, Put, Write
from tests.unit.coordination.lab.world import Lab, play

SELDOM = JobRecord(every=1e6)


class Runs:
    """Schedulers by member, with code for some jobs, and what ran."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.ran: list[tuple[str, str, str]] = []
        self.schedulers: dict[str, Scheduler] = {}

    def start(self, name: str, *jobs: str) -> None:
        def plugin(name: str) -> Scheduler:
            made = self.schedulers[name] = Scheduler()
            for job in jobs:

                async def run(run: RunRecord, job: str = job) -> None:
                    self.ran.append((name, job, run.slot))

                made.every(SELDOM.every, name=job)(run)
            return made

        self.lab.member(name, plugin=plugin)
        self.lab.world.start(name)

    async def on(self, name: str, *slots: str) -> None:
        """Waits until these have run on that member."""
        wanted = set(slots)
        await self.lab.world.eventually(
            lambda: wanted <= {slot for who, _, slot in self.ran if who == name},
            within_s=30.0,
            what="runs",
        )


def test_an_order_without_code_waits_for_a_coordinator_that_has_it() -> None:
    async def script(lab: Lab) -> None:
        runs, missing = Runs(lab), list[HandlerMissing]()
        runs.start("a", "other")
        await lab.led()
        member, scheduler = lab.members["a"], runs.schedulers["a"]
        member.on(HandlerMissing, missing.append)
        await lab.run_on("a", scheduler.add("tick", SELDOM))
        await lab.run_on("a", scheduler.pause("tick"))
        slot = await lab.run_on("a", scheduler.run_now("tick"))
        reads, inner = list[str](), lab.store.read

        async def read(stream: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
            reads.append(stream)
            return await inner(stream, after=after, limit=limit)

        lab.store.read = read
        await asyncio.sleep(60.0)
        assert [event.job for event in missing] == ["tick"]
        assert reads.count(ORDERS) < 60, "it does not turn all the time because an order is left"
        later = await lab.run_on("a", scheduler.run_now("other"))
        await runs.on("a", later)
        runs.start("b", "tick")
        await lab.ready("b")
        await lab.run_on("a", member.hand_over(allow_early=True))
        await runs.on("b", slot)
        await asyncio.sleep(10.0)
        assert sorted(runs.ran) == [("a", "other", later), ("b", "tick", slot)]
        assert not await lab.store.read(ORDERS)

    play(script)


def test_more_orders_without_code_than_one_page_delay_no_other() -> None:
    async def script(lab: Lab) -> None:
        runs = Runs(lab)
        runs.start("a", "other")
        await lab.led()
        scheduler = runs.schedulers["a"]
        await lab.run_on("a", scheduler.add("tick", SELDOM))
        order = lab.members["a"].parts.codec.encode(RunOrder(job="tick"))
        for number in range(250):
            await lab.store.write(Append(ORDERS, f"now-{number}", order, ttl_s=600.0))
        await runs.on("a", await lab.run_on("a", scheduler.run_now("other")))
        assert len(await lab.store.read(ORDERS, limit=1000)) == 250

    play(script)


def test_an_order_is_not_lost_when_the_schedule_changes_at_that_moment() -> None:
    async def script(lab: Lab) -> None:
        runs = Runs(lab)
        runs.start("a", "tick")
        await lab.led()
        inner, changes = lab.store.write, list[str]()

        async def write(*writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
            if not changes and any(isinstance(e, Put) and e.key[:4] == "run/" for e in writes):
                (found,) = await lab.store.get(SCHEDULES)
                assert found is not None
                changes.append("somebody else")
                await inner(Put(SCHEDULES, found.value, expect=ANY, ttl_s=600.0))
            return await inner(*writes, fence=fence)

        lab.store.write = write
        slot = await lab.run_on("a", runs.schedulers["a"].run_now("tick"))
        await runs.on("a", slot)
        await asyncio.sleep(10.0)
        assert changes and runs.ran == [("a", "tick", slot)]

    play(script)


def gaps_of(job: JobRecord, runs_s: float) -> list[RunsMissed]:
    """The events in 21 s of a job that runs so long each time."""
    told: list[RunsMissed] = []

    async def script(lab: Lab) -> None:
        def plugin(name: str) -> Scheduler:
            made = Scheduler()

            async def run(run: RunRecord) -> None:
                await asyncio.sleep(runs_s)

            options = {"overlap": job.overlap, "misfire": job.misfire, "jitter": job.jitter}
            made.every(job.every, name="tick", **options)(run)
            return made

        lab.member("a", plugin=plugin)
        lab.world.start("a")
        await lab.led()
        lab.members["a"].on(RunsMissed, told.append)
        await asyncio.sleep(21.0)

    play(script)
    return told


def test_a_gap_is_reported_once_and_whole() -> None:
    told = gaps_of(JobRecord(every=0.5, overlap="queue"), 4.0)
    assert 3 <= len(told) <= 6
    for gap in told:
        assert gap.count == round((gap.last - gap.first) / 0.5) + 1 >= 6
    assert all(one.last < next_one.first for one, next_one in pairwise(told))


def test_a_gap_is_reported_once_with_a_delay_and_with_skip() -> None:
    jittered = gaps_of(JobRecord(every=0.5, overlap="queue", jitter=0.4), 4.0)
    assert 3 <= len(jittered) <= 6
    assert len({gap.first for gap in jittered}) == len(jittered)
    skipped = gaps_of(JobRecord(every=0.5, overlap="queue", misfire="skip"), 4.0)
    assert len({gap.first for gap in skipped}) == len(skipped) <= 6
