"""The generated loop of a user, driven with fakes: order, outcomes, tracebacks."""

from __future__ import annotations

import asyncio
import linecache
import traceback
from pathlib import Path
from time import perf_counter
from types import CoroutineType, SimpleNamespace
from typing import Any

import pytest

from squall.api.feeds import FeedExhausted
from squall.api.http import HTTPResponse
from squall.engine.plan.workflow_plan import WorkflowPlan
from squall.engine.users.generated_loop import generate_loop, run_together
from tests.unit.engine.lab.program_files import load


class Row:
    """Counts begins and interruptions of a step, as the recorder's rows do."""

    def __init__(self) -> None:
        self.begun = 0
        self.interrupted = 0

    def begin(self) -> None:
        self.begun += 1


class Bench:
    """Runs the loop of one plan for a number of iterations and keeps what it reports."""

    def __init__(self, plan: WorkflowPlan, model: str = "closed", **more: Any) -> None:
        self.plan = plan
        self.log: list[Any] = []
        self.iteration = Row()
        self.rows = {step.name: Row() for step in plan.steps}
        self.vu = SimpleNamespace(stop=False, iteration=0, paused_s=0.0)
        self.http = SimpleNamespace(
            dirty=False, last=None, clear_last=lambda: None, last_exchange=lambda: None
        )
        self.draws = iter(())
        self.answered = False
        """Whether the target answered the running step."""
        names: dict[str, Any] = {
            "clock": perf_counter,
            "HTTPResponse": HTTPResponse,
            "COROUTINE": CoroutineType,
            "FeedExhausted": FeedExhausted,
            "ITERATION": self.iteration,
            "BEGIN": self.iteration.begin,
            "PASSED": lambda seconds: self.log.append("passed"),
            "FAILED": lambda seconds: self.log.append("failed"),
            "STEP_FAILED": self._step_failed,
            "HAS_ANSWER": lambda last: self.answered,
            "STEP_ODD": lambda row, result, http: (result.close(), self.log.append("odd")),
            "CUSTOM": lambda row, result, http, planned: result.successful,
            "CHECK": lambda name, value: self.log.append((name, value)),
            "CHECK_FAILED": lambda name, error: self.log.append((name, error)),
            "METRIC": lambda name, value: self.log.append((name, value)),
            "METRIC_FAILED": lambda name, error: self.log.append((name, error)),
            "STOPS": lambda error: isinstance(error, asyncio.CancelledError),
            "RANDOM": lambda: next(self.draws),
            "PICK": lambda steps, weights: steps[0],
            "TOGETHER": run_together,
            "YIELD": lambda: asyncio.sleep(0),
            "REST": self.rest,
            "EXHAUSTED": lambda name, *planned: self.log.append(f"{name} is empty"),
        } | more
        for step in plan.steps:
            names[f"ROW_{step.name}"] = self.rows[step.name]
            names[f"BEGIN_{step.name}"] = self.rows[step.name].begin
        self.loop = generate_loop(plan, {}, names, model)

    async def rest(self, vu: Any, failures: int, took_s: float) -> None:
        self.log.append(f"rest {failures}")

    def _step_failed(self, row: Any, error: Any, http: Any, planned: float) -> None:
        self.log.append(error)

    async def run(self, iterations: int = 1, context: dict[str, Any] | None = None) -> list[Any]:
        user = self.plan.workflow()
        user.log = self.log  # type: ignore[attr-defined]
        made = 0

        def fresh() -> dict[str, Any]:
            nonlocal made
            made += 1
            self.vu.stop = made >= iterations
            return dict(context or {})

        await self.loop(user, self.vu, self.http, fresh)
        return self.log


def plan_of(folder: Path, text: str) -> WorkflowPlan:
    return next(iter(load(folder, text).plans.values()))


@pytest.mark.asyncio
async def test_a_line_of_steps_runs_in_order_with_values_by_name(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """
        class Flow(Workflow):
            @step()
            async def one(self) -> int:
                self.log.append("one")
                return 1
            @then()
            async def two(self, one: int, given: int = 5, missing: int = 6) -> int:
                self.log.append(("two", one, given, missing))
                return 2
            @check("two")
            def three(self, one: int, two: int) -> bool:
                return (one, two) == (1, 2)
        """,
    )
    log = await Bench(plan).run(context={"given": 7})
    assert log == ["one", ("two", 1, 7, 6), ("three", True), "passed"]


@pytest.mark.asyncio
async def test_an_exception_ends_the_iteration_and_the_next_one_begins(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """
        class Flow(Workflow):
            @step()
            async def one(self) -> None:
                raise ValueError("no")
            @then()
            async def two(self) -> None:
                self.log.append("never")
        """,
    )
    bench = Bench(plan)
    log = await bench.run(2)
    assert [str(entry) for entry in log] == ["no", "failed", "rest 1", "no", "failed", "rest 2"]
    assert bench.iteration.begun == 2
    assert bench.iteration.interrupted == 0


@pytest.mark.asyncio
async def test_a_failure_after_an_answer_goes_on_without_a_rest(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """
        class Flow(Workflow):
            @step()
            async def one(self) -> None:
                raise AssertionError("no")
        """,
    )
    bench = Bench(plan)
    bench.answered = True
    log = await bench.run(2)
    assert [str(entry) for entry in log] == ["no", "failed", "no", "failed"]


@pytest.mark.asyncio
async def test_a_diamond_waits_for_both_of_its_sides(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """
        import asyncio
        class Flow(Workflow):
            @step()
            async def top(self) -> int:
                return 1
            @step("top")
            async def left(self, top: int) -> int:
                self.log.append("left begins")
                await asyncio.sleep(0)
                self.log.append("left ends")
                return top + 1
            @step("top")
            async def right(self, top: int) -> int:
                self.log.append("right begins")
                await asyncio.sleep(0)
                self.log.append("right ends")
                return top + 2
            @step("left", "right")
            async def bottom(self, left: int, right: int) -> None:
                self.log.append((left, right))
        """,
    )
    log = await Bench(plan).run()
    assert sorted(log[:2]) == ["left begins", "right begins"]
    assert log[4:] == [(2, 3), "passed"]


@pytest.mark.asyncio
async def test_one_of_weighted_steps_runs_and_what_depends_on_others_does_not(
    tmp_path: Path,
) -> None:
    plan = plan_of(
        tmp_path,
        """
        class Flow(Workflow):
            @step(weight=7)
            async def often(self) -> str:
                self.log.append("often")
            @step(weight=3)
            async def seldom(self) -> str:
                self.log.append("seldom")
            @step("seldom")
            async def after(self, seldom: str) -> None:
                self.log.append("after")
            @check("after")
            def seen(self) -> bool:
                return True
        """,
    )
    bench = Bench(plan)
    bench.draws = iter([0.0, 0.69, 0.71, 0.999])
    assert await bench.run(4) == [
        *("often", "passed"),
        *("often", "passed"),
        *("seldom", "after", ("seen", True), "passed"),
        *("seldom", "after", ("seen", True), "passed"),
    ]


@pytest.mark.asyncio
async def test_weighted_steps_beside_others_and_a_join_of_what_ran(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """
        class Flow(Workflow):
            @step(weight=1)
            async def left(self) -> str:
                return "left"
            @step(weight=1)
            async def right(self) -> str:
                return "right"
            @step()
            async def always(self) -> str:
                return "always"
            @step("left", "always")
            async def with_left(self, left: str, always: str) -> None:
                self.log.append((left, always))
            @step("right", "always")
            async def with_right(self, right: str, always: str) -> None:
                self.log.append((right, always))
        """,
    )
    assert await Bench(plan).run() == [("left", "always"), "passed"]
    other = Bench(plan, PICK=lambda steps, weights: steps[1])
    assert await other.run() == [("right", "always"), "passed"]


@pytest.mark.asyncio
async def test_a_failing_sibling_lets_the_other_finish_and_stops_the_iteration(
    tmp_path: Path,
) -> None:
    plan = plan_of(
        tmp_path,
        """
        import asyncio
        class Flow(Workflow):
            @step()
            async def bad(self) -> None:
                raise ValueError("bad")
            @step()
            async def good(self) -> None:
                await asyncio.sleep(0)
                self.log.append("good")
            @step("good")
            async def after(self) -> None:
                self.log.append("never")
        """,
    )
    log = [str(entry) for entry in await Bench(plan).run()]
    assert log == ["bad", "good", "failed", "rest 1"]


@pytest.mark.asyncio
async def test_a_cancelled_user_counts_what_it_left_unfinished(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """
        import asyncio
        class Flow(Workflow):
            @step()
            async def left(self) -> CustomResult:
                await asyncio.Event().wait()
            @step()
            async def right(self) -> CustomResult:
                await asyncio.Event().wait()
        """,
    )
    bench = Bench(plan)
    task = asyncio.create_task(bench.run())
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.log == []
    assert bench.iteration.interrupted == 1
    assert {(row.begun, row.interrupted) for row in bench.rows.values()} == {(1, 1)}


@pytest.mark.asyncio
async def test_forgotten_awaits_and_failed_hooks_are_told_apart(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """
        import asyncio
        class Flow(Workflow):
            @step()
            async def fine(self) -> None: ...
            @check("fine")
            async def waits(self) -> bool:
                await asyncio.sleep(0)
                return False
            @metric("fine")
            def breaks(self) -> float:
                raise ZeroDivisionError("by zero")
            @step("fine")
            async def forgets(self) -> None:
                return asyncio.sleep(0)
        """,
    )
    log = await Bench(plan).run()
    assert log[0] == ("waits", False)
    assert log[1][0] == "breaks" and isinstance(log[1][1], ZeroDivisionError)
    assert log[2:] == ["odd", "failed", "rest 1"]


@pytest.mark.asyncio
async def test_tickets_feeds_and_thinking(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """
        class Flow(Workflow):
            word = Feed(["x"])
            @step()
            async def one(self) -> CustomResult:
                self.log.append(self.word)
                return CustomResult()
        """,
    )
    thought: list[str] = []

    async def think(vu: Any, began: float) -> None:
        thought.append("think")

    words = iter(["a", "b", "c"])
    tickets = iter([0, 1])
    bench = Bench(
        plan,
        "iterations",
        TICKET=lambda: next(tickets, None),
        NEXT_word=lambda: next(words),
        THINK=think,
    )
    assert await bench.run(10) == ["a", "passed", "b", "passed"]
    assert thought == ["think", "think"]

    def empty() -> str:
        raise FeedExhausted

    exhausted = Bench(plan, "closed", NEXT_word=empty)
    assert await exhausted.run(10) == ["word is empty"]
    assert exhausted.iteration.begun == 0


@pytest.mark.asyncio
async def test_a_failed_iteration_thinks_too(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """
        class Flow(Workflow):
            @step()
            async def one(self) -> None:
                raise ValueError("no")
        """,
    )
    bench = Bench(plan)

    async def think(vu: Any, began: float) -> None:
        bench.log.append("think")

    bench = Bench(plan, THINK=think)
    log = [str(entry) for entry in await bench.run()]
    assert log == ["no", "failed", "rest 1", "think"]


@pytest.mark.asyncio
async def test_the_generated_source_is_shown_in_tracebacks(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """
        class Visible(Workflow):
            @step()
            async def one(self, needed: int = 3) -> None: ...
        """,
    )

    def broken(seconds: float) -> None:
        raise RuntimeError("a bug of ours")

    bench = Bench(plan, PASSED=broken)
    with pytest.raises(RuntimeError) as caught:
        await bench.run()
    text = "".join(traceback.format_exception(caught.value))
    assert 'File "<squall runner of Visible>"' in text
    assert "(FAILED if bad else PASSED)" in text
    lines = linecache.getlines("<squall runner of Visible>")
    assert any("await F_one(self" in line for line in lines)


@pytest.mark.asyncio
async def test_a_pause_is_taken_off_and_never_below_zero(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        """
        class Flow(Workflow):
            def rest_a_little(self):
                return self.pause("1s")
            @step()
            async def one(self) -> None:
                self.vu.paused_s += 100.0
        """,
    )
    taken: list[float] = []
    bench = Bench(plan, PASSED=taken.append)
    bench.vu.paused_s = 3.0
    plan.workflow.vu = bench.vu  # type: ignore[assignment]
    await bench.run(2)
    assert taken == [0.0, 0.0]
    assert bench.vu.paused_s == 100.0, "each iteration has its own pauses"
