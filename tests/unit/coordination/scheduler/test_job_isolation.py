"""A job that cannot run does not keep others from running, and a member that cannot read the
schedule does not replace it. In virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from squall.coordination import JobRecord, Queue, RunRecord, Scheduler
from squall.coordination.coordinator import Coordinator
from squall.coordination.plugin import CoordinatorPlugin
from squall.coordination.scheduler import plugin
from squall.coordination.scheduler.plugin import UnverifiedScheduleError
from squall.coordination.scheduler.records import SCHEDULES
from squall.coordination.stores.interface import ANY, Put, Record
from squall.runtime.interfaces import Runtime
from tests.unit.coordination.lab.world import FAST, SECRET, Lab, play

OTHER_SECRET = "0ddba11" * 10


class Ticks:
    """A member with a job every 10 s; `ran` are the times of its runs."""

    def __init__(
        self,
        lab: Lab,
        name: str,
        *plugins: Callable[[], CoordinatorPlugin],
        secret: str = SECRET,
    ) -> None:
        self.lab = lab
        self.name = name
        self.ran: list[float] = []
        self.scheduler = Scheduler()

        async def program(runtime: Runtime) -> None:
            others = [make() for make in plugins]
            self.scheduler = Scheduler(*(each for each in others if isinstance(each, Queue)))
            self.scheduler.every(10.0, name="tick")(self._run)
            if others:
                self.scheduler.enqueue("fill", "mail", every=10.0)
            lab.members[name] = Coordinator(
                *(lab.store, *others, self.scheduler),
                member_id=name,
                runtime=runtime,
                profile=FAST,
                unsafe_timings=True,
                secret=secret,
            )
            async with lab.members[name]:
                await runtime.clock.sleep(1e6)

        lab.world.add(name, program)
        lab.world.start(name)

    async def _run(self, run: RunRecord) -> None:
        self.ran.append(self.lab.world.now)

    async def new_term(self) -> None:
        self.lab.world.kill(self.name)
        self.lab.members.clear()
        self.lab.world.start(self.name)
        await self.lab.led(30.0)

    async def runs_on(self) -> bool:
        """Whether the job runs at its times from now on."""
        before = len(self.ran)
        await asyncio.sleep(50.0)
        return len(self.ran) - before in (5, 6)

    async def jobs(self) -> list[str]:
        return sorted(await self.lab.run_on(self.name, self.scheduler.jobs()))


def test_a_full_queue_fails_the_runs_that_fill_it_and_no_others() -> None:
    async def script(lab: Lab) -> None:
        ticks = Ticks(lab, "a", lambda: Queue("mail", max_pending=1, window=1))
        await lab.led()
        await asyncio.sleep(100.0)
        assert len(ticks.ran) in (10, 11)
        history = await lab.run_on("a", ticks.scheduler.history("fill"))
        assert [run.outcome for run in history[:2]] == ["enqueued", "enqueued"]
        assert {run.outcome for run in history[2:]} == {"failed"}
        assert "StreamFullError" in history[-1].error
        await ticks.new_term()
        assert await ticks.runs_on(), "also in a term that finds it full"

    play(script)


def test_a_job_that_is_not_understood_here_keeps_no_other_from_its_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one whose time zone this machine does not know; another member stored it."""
    monkeypatch.setattr(plugin, "check_job", lambda name, job: None)

    async def script(lab: Lab) -> None:
        ticks = Ticks(lab, "a")
        await lab.led()
        strange = JobRecord(cron="* * * * *", zone="Mars/Olympus", queue="mail")
        await lab.run_on("a", ticks.scheduler.add("strange", strange))
        assert await ticks.runs_on()
        await ticks.new_term()
        assert await ticks.runs_on(), "also in a new term"

    play(script)
    told = [each for each in caplog.records if "job_not_begun" in each.getMessage()]
    assert 2 <= len(told) < 10, "it rests after each try"


def test_a_job_that_was_removed_and_added_again_runs_and_so_do_the_others() -> None:
    async def script(lab: Lab) -> None:
        ticks = Ticks(lab, "a")
        await lab.led()
        other = JobRecord(every=10.0)
        await lab.run_on("a", ticks.scheduler.add("other", other))
        await asyncio.sleep(25.0)
        await lab.run_on("a", ticks.scheduler.remove("tick"))
        await lab.run_on("a", ticks.scheduler.add("tick", JobRecord(every=10.0)))
        assert await ticks.runs_on()

    play(script)


def test_a_member_with_another_secret_leaves_the_schedule_as_it_is() -> None:
    async def script(lab: Lab) -> None:
        ticks = Ticks(lab, "a")
        await lab.led()
        await lab.run_on("a", ticks.scheduler.add("by-hand", JobRecord(every=1e6)))
        (before,) = await lab.store.get(SCHEDULES)
        stranger = Ticks(lab, "b", secret=OTHER_SECRET)
        await asyncio.sleep(5.0)
        (after,) = await lab.store.get(SCHEDULES)
        assert before is not None and after is not None
        assert before.value == after.value
        with pytest.raises(UnverifiedScheduleError, match="secret of the other members"):
            await lab.run_on("b", stranger.scheduler.add("mine", JobRecord(every=1.0)))
        await asyncio.sleep(50.0)
        assert len(ticks.ran) in (5, 6)
        assert await ticks.jobs() == ["by-hand", "tick"]

    play(script)


def test_what_an_attacker_without_a_secret_writes_over_the_schedule_is_undone() -> None:
    async def script(lab: Lab) -> None:
        ticks = Ticks(lab, "a")
        await lab.led()
        await asyncio.sleep(15.0)
        (before,) = await lab.store.get(SCHEDULES)
        await lab.store.write(Put(SCHEDULES, b'{"jobs":{}}', expect=ANY, ttl_s=None))
        await asyncio.sleep(30.0)
        assert await ticks.jobs() == ["tick"]
        assert len(ticks.ran) in (4, 5)
        (after,) = await lab.store.get(SCHEDULES)
        assert before is not None and after is not None

    play(script)


def test_with_a_new_secret_for_all_the_next_coordinator_begins_with_its_own_jobs() -> None:
    async def script(lab: Lab) -> None:
        await lab.store.write(Put(SCHEDULES, b'{"jobs":{"old":{}},"v":1}', expect=ANY, ttl_s=None))
        ticks = Ticks(lab, "a")
        await lab.led()
        await asyncio.sleep(25.0)
        assert await ticks.jobs() == ["tick"]
        assert len(ticks.ran) == 2

    play(script)


def test_jitter_after_missed_due_times_is_waited_for_without_looking_all_the_time() -> None:
    async def script(lab: Lab) -> None:
        looks, ran, inner = 0, list[float](), lab.store.get

        async def get(*names: str) -> tuple[Record | None, ...]:
            nonlocal looks
            looks += SCHEDULES in names
            return await inner(*names)

        lab.store.get = get

        def make(name: str) -> Scheduler:
            scheduler = Scheduler()

            async def run(run: RunRecord) -> None:
                ran.append(lab.world.now)

            scheduler.every(60.0, name="tick", jitter=50.0)(run)
            return scheduler

        lab.start("a", plugin=make)
        await lab.led()
        await asyncio.sleep(100.0)
        lab.world.kill("a")
        lab.members.clear()
        await asyncio.sleep(241.0 - lab.world.now % 60.0)
        lab.world.start("a")
        await lab.led(20.0)
        looks, before = 0, len(ran)
        await asyncio.sleep(60.0)
        assert len(ran) > before
        assert looks < 60

    play(script)
