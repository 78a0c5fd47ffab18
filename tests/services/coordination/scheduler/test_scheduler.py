"""The scheduler on all four stores: one run per due time, across changes of the coordinator."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from squall.coordination import ConfigurationError, JobRecord, Queue, RunRecord, Scheduler
from squall.coordination.scheduler.records import HandlerMissing, run_key
from squall.coordination.stores.interface import ABSENT, Put
from tests.services.coordination.lab.places import Place
from tests.services.coordination.lab.queues import member, take


class Notes:
    """What ran, on whom."""

    def __init__(self) -> None:
        self.runs: list[RunRecord] = []
        self.changed = asyncio.Event()

    async def note(self, run: RunRecord) -> None:
        self.runs.append(run)
        self.changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(60.0):
            while len(self.runs) < count:
                self.changed.clear()
                await self.changed.wait()


def scheduler(notes: Notes, every: float, **options: object) -> Scheduler:
    made = Scheduler()
    made.every(every, name="tick", **options)(notes.note)
    return made


async def ended_runs(scheduler: Scheduler, job: str) -> list[RunRecord]:
    """The end of a run is written after the run."""
    async with asyncio.timeout(60.0):
        while True:
            history = list(await scheduler.history(job))
            if all(run.outcome != "running" for run in history):
                return history
            await asyncio.sleep(0.02)


@pytest.mark.asyncio
async def test_each_due_time_runs_once_over_a_change_of_coordinator(place: Place) -> None:
    notes = Notes()
    every = 2.0 if place.kind == "s3" else 0.4
    second = scheduler(notes, every)
    async with member(place, second, member_id="b", eligible=False) as other:
        first = scheduler(notes, every)
        async with member(place, first, member_id="a") as former:
            await notes.until(2)
        third = scheduler(notes, every)
        async with member(place, third, member_id="c") as successor:
            await notes.until(4)
            assert successor.current_epoch > former.current_epoch
            history = await ended_runs(second, "tick")
            # It reads the lease with its heartbeats.
            async with asyncio.timeout(60.0):
                while other.current_coordinator != "c":
                    await asyncio.sleep(0.02)
    slots = Counter(run.slot for run in notes.runs)
    assert set(slots.values()) == {1}
    assert {run.member for run in notes.runs} == {"a", "c"}
    dues = [run.due for run in notes.runs]
    assert dues == sorted(dues)
    assert all(abs(due / every - round(due / every)) < 1e-6 for due in dues)
    assert {run.outcome for run in history} <= {"ok", "interrupted"}


@pytest.mark.asyncio
async def test_an_unfinished_run_of_a_predecessor_is_interrupted_and_not_repeated(
    place: Place,
) -> None:
    started: asyncio.Future[str] = asyncio.Future()
    first, second = Scheduler(), Scheduler()

    async def sleep(run: RunRecord) -> None:
        started.set_result(run.slot)
        await asyncio.sleep(600.0)

    notes = Notes()
    first.every(1.0, name="tick")(sleep)
    second.every(1.0, name="tick")(notes.note)
    async with member(place, first, member_id="a"):
        async with asyncio.timeout(30.0):
            begun = await started
    async with member(place, second, member_id="b"):
        await notes.until(1)
        run = await second.run("tick", begun)
        assert run is not None
        assert (run.outcome, run.member) == ("interrupted", "a")
    assert begun not in {run.slot for run in notes.runs}


@pytest.mark.asyncio
async def test_a_due_time_that_has_a_record_is_not_run(place: Place) -> None:
    """As left by a coordinator that died between its two writes."""
    notes = Notes()
    made = scheduler(notes, 1.0)
    async with member(place, made, eligible=False) as producer:
        due = await made.next_due("tick")
        assert due is not None
        slot = f"{round(due * 1000):015d}"
        codec = producer.parts.codec
        record = codec.encode(RunRecord(job="tick", slot=slot, due=due, member="gone"))
        await producer.parts.patient.write(
            Put(run_key("tick", slot), record, expect=ABSENT, ttl_s=60.0)
        )
        other = scheduler(notes, 1.0)
        async with member(place, other):
            await notes.until(1)
            run = await made.run("tick", slot)
    assert slot not in {run.slot for run in notes.runs}
    assert run is not None
    assert run.member == "gone"


@pytest.mark.asyncio
async def test_a_job_that_enqueues_makes_one_ticket_per_due_time(place: Place) -> None:
    queue = Queue("mail")
    made = Scheduler(queue)
    made.enqueue("nightly", "mail", {"report": 1}, every=1.0)
    async with member(place, made, queue):
        tickets = await take(queue, 2)
        for ticket in tickets:
            assert ticket.payload == {"report": 1}
            await ticket.complete()
        assert len({ticket.ticket_id for ticket in tickets}) == 2
        await made.pause("nightly")
        history = await ended_runs(made, "nightly")
        assert {run.outcome for run in history} == {"enqueued"}


@pytest.mark.asyncio
async def test_people_pause_order_change_and_remove_jobs(place: Place) -> None:
    notes = Notes()
    made = scheduler(notes, 3600.0)
    async with member(place, made):
        slot = await made.run_now("tick")
        await notes.until(1)
        assert notes.runs[0].slot == slot
        await made.pause("tick")
        assert await made.next_due("tick") is None
        await made.resume("tick")
        assert await made.next_due("tick") is not None
        await made.add("tick", JobRecord(cron="0 3 * * *"))
        assert (await made.jobs())["tick"].cron == "0 3 * * *"
        await made.remove("tick")
        assert await made.jobs() == {}
        with pytest.raises(ConfigurationError, match="no job"):
            await made.run_now("tick")


@pytest.mark.asyncio
async def test_runs_that_fail_or_last_too_long_are_noted(place: Place) -> None:
    made = Scheduler()

    @made.every(3600.0, max_runtime=0.05)
    async def slow(run: RunRecord) -> None:
        await asyncio.sleep(60.0)

    @made.every(3600.0)
    async def broken(run: RunRecord) -> None:
        raise ValueError("no disk")

    async with member(place, made):
        for name, outcome in (("slow", "timeout"), ("broken", "failed")):
            slot = await made.run_now(name)
            async with asyncio.timeout(30.0):
                while True:
                    run = await made.run(name, slot)
                    if run is not None and run.outcome != "running":
                        break
                    await asyncio.sleep(0.05)
            assert run.outcome == outcome


@pytest.mark.asyncio
async def test_a_run_that_lasts_makes_the_next_ones_skip(place: Place) -> None:
    made, gate = Scheduler(), asyncio.Event()
    begun: list[str] = []

    @made.every(0.5, name="slow")
    async def slow(run: RunRecord) -> None:
        begun.append(run.slot)
        await gate.wait()

    async with member(place, made):
        async with asyncio.timeout(30.0):
            while not any(run.outcome == "skipped" for run in await made.history("slow")):
                await asyncio.sleep(0.05)
        assert len(begun) == 1
        gate.set()


@pytest.mark.asyncio
async def test_a_run_asked_for_waits_for_a_coordinator_that_has_the_code(place: Place) -> None:
    notes, missing = Notes(), list[HandlerMissing]()
    first, second = Scheduler(), scheduler(notes, 3600.0)
    async with member(place, first, member_id="a") as leader:
        await leader.ensure_coordinator(timeout_s=60.0)
        leader.on(HandlerMissing, missing.append)
        await first.add("tick", JobRecord(every=3600.0))
        slots = [await first.run_now("tick") for _ in range(2)]
        async with asyncio.timeout(30.0):
            while not missing:
                await asyncio.sleep(0.05)
        assert await first.run("tick", slots[0]) is None
    async with member(place, second, member_id="b"):
        await notes.until(2)
    assert [(run.slot, run.member) for run in notes.runs] == [(slot, "b") for slot in slots]
    assert [event.job for event in missing] == ["tick"]
