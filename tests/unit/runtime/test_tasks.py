"""Tasks of a node: their names, ends, failures and the shutdown."""

from __future__ import annotations

import asyncio
from random import Random
from typing import NoReturn

import pytest

from squall.runtime.backoff import Backoff
from squall.runtime.tasks import TaskFailure, TaskRunner, TaskState
from tests.unit.runtime.lab.manual_clock import ManualClock

pytestmark = pytest.mark.asyncio


def runner(failures: list[TaskFailure] | None = None) -> TaskRunner:
    heard = failures if failures is not None else []
    return TaskRunner(ManualClock(), Random(1), on_failure=heard.append)


async def fails(text: str = "broken") -> NoReturn:
    await asyncio.sleep(0)
    raise ValueError(text)


async def stubborn(until: asyncio.Event) -> None:
    while not until.is_set():
        try:
            await until.wait()
        except asyncio.CancelledError:
            continue


async def test_a_failed_task_is_told_to_its_owner_and_to_the_node() -> None:
    failures: list[TaskFailure] = []
    owner: list[Exception] = []
    tasks = runner(failures)
    token = tasks.start("probe", fails(), group="peers", on_error=owner.append)
    assert await tasks.stopped(token) is TaskState.FAILED
    assert [str(error) for error in owner] == ["broken"]
    assert [(f.name, f.group, f.essential, str(f.error)) for f in failures] == [
        ("probe", "peers", False, "broken")
    ]
    assert tasks.counts.failed == 1
    assert tasks.running == ()


async def test_a_failing_owner_does_not_hide_the_first_error() -> None:
    failures: list[TaskFailure] = []
    tasks = runner(failures)

    def owner(error: Exception) -> None:
        raise RuntimeError("the owner too")

    await tasks.stopped(tasks.start("probe", fails(), on_error=owner))
    assert [failure.name for failure in failures] == ["probe.on_error", "probe"]


async def test_an_error_that_nobody_listens_for_reaches_the_loop() -> None:
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what["message"]))
    tasks = TaskRunner(ManualClock(), Random(1))
    await tasks.stopped(tasks.start("probe", fails()))
    assert told == ["task probe failed"]


async def test_only_the_failure_of_an_essential_task_is_fatal() -> None:
    tasks = runner()
    await tasks.stopped(tasks.start("minor", fails("minor")))
    fatal = asyncio.ensure_future(tasks.fatal())
    await asyncio.sleep(0)
    assert not fatal.done()
    tasks.start("replica", fails("log is broken"), essential=True)
    failure = await fatal
    assert (failure.name, str(failure.error)) == ("replica", "log is broken")


async def test_a_periodic_call_that_raises_is_reported_and_comes_again() -> None:
    failures: list[TaskFailure] = []
    tasks = runner(failures)
    calls = 0
    enough = asyncio.Event()

    async def call() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ValueError("second")
        if calls == 4:
            enough.set()

    token = tasks.every("sync", 1.0, call, jitter=0.0)
    await enough.wait()
    assert [str(failure.error) for failure in failures] == ["second"]
    assert token.state is TaskState.RUNNING
    await tasks.shutdown(1.0)
    assert token.state is TaskState.CANCELLED


async def test_an_essential_periodic_call_that_raises_ends_the_node() -> None:
    tasks = runner()
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1
        raise ValueError("no")

    token = tasks.every("tick", 1.0, call, essential=True)
    assert (await tasks.fatal()).name == "tick"
    for _ in range(20):
        await asyncio.sleep(0)
    assert (calls, token.state) == (1, TaskState.FAILED)
    assert tasks.counts.failed == 1


async def test_intervals_differ_by_no_more_than_their_jitter() -> None:
    clock = ManualClock()
    tasks = TaskRunner(clock, Random(7))
    tasks.every("tick", 10.0, lambda: None, jitter=0.2)
    while len(clock.sleeps) < 200:
        await asyncio.sleep(0)
    await tasks.shutdown(1.0)
    assert 8.0 <= min(clock.sleeps) < 8.5
    assert 11.5 < max(clock.sleeps) <= 12.0


async def test_a_group_stops_together_and_alone() -> None:
    tasks = runner()
    job = tasks.group("job-1")
    one = job.start("one", asyncio.Event().wait())
    two = job.every("two", 1e9, lambda: None)
    other = tasks.group("job-2").start("one", asyncio.Event().wait())
    job.cancel()
    assert await tasks.stopped(one) is TaskState.CANCELLED
    assert await tasks.stopped(two) is TaskState.CANCELLED
    assert [info.group for info in tasks.running] == ["job-2"]
    tasks.cancel(other)
    tasks.cancel(one)
    await tasks.stopped(other)


async def test_shutdown_names_what_did_not_stop_in_time() -> None:
    tasks = TaskRunner(_LoopClock(), Random(1))
    release = asyncio.Event()
    tasks.start("deaf", stubborn(release))
    tasks.start("polite", asyncio.Event().wait())
    await asyncio.sleep(0)
    assert [info.name for info in await tasks.shutdown(0.05)] == ["deaf"]
    release.set()
    assert await tasks.shutdown(5.0) == ()


async def test_a_task_that_swallowed_its_cancellation_is_cancelled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("squall.runtime.tasks.CANCEL_AGAIN", Backoff(0.001))
    tasks = TaskRunner(_LoopClock(), Random(1))

    async def swallows_twice() -> None:
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue
        await asyncio.Event().wait()

    token = tasks.start("deaf", swallows_twice())
    await asyncio.sleep(0)
    try:
        assert await tasks.shutdown(5.0) == ()
        assert token.state is TaskState.CANCELLED
    finally:
        # A runner that asks only once must fail here, not hang at the end of the test.
        for _ in range(3):
            tasks.cancel(token)
            await asyncio.sleep(0)


async def test_what_is_started_during_a_shutdown_never_runs() -> None:
    tasks = runner()
    ran: list[str] = []

    async def late() -> None:
        ran.append("late")

    async def ends() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            tasks.start("late", late())

    tasks.start("ends", ends())
    await asyncio.sleep(0)
    await tasks.shutdown(1.0)
    token = tasks.start("later", late())
    assert token.state is TaskState.CANCELLED
    assert await tasks.stopped(token) is TaskState.CANCELLED
    await asyncio.sleep(0)
    assert ran == []
    assert tasks.counts.refused == 2
    assert tasks.running == ()


async def test_a_task_may_shut_its_own_runner_down() -> None:
    tasks = runner()
    tasks.start("other", asyncio.Event().wait())

    async def ends_all() -> None:
        assert await tasks.shutdown(1.0) == ()

    token = tasks.start("main", ends_all())
    assert await tasks.stopped(token) is TaskState.COMPLETED
    assert tasks.running == ()


async def test_after_a_shutdown_the_loop_has_no_other_task() -> None:
    tasks = runner()
    for number in range(20):
        tasks.start(f"t{number}", asyncio.Event().wait())
        tasks.every(f"e{number}", 1e9, lambda: None)
    await asyncio.sleep(0)
    await tasks.shutdown(5.0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    counts = tasks.counts
    assert counts.started == counts.completed + counts.failed + counts.cancelled


class _LoopClock(ManualClock):
    def now(self) -> float:
        return asyncio.get_running_loop().time()
