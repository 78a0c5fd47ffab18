"""Real runs of real workflow files against a target that counts.

A test writes a file, runs it with `lab.run(...)`, as `squall.run` does but with core threads,
and compares what the run reports with what the target saw. One target serves all tests of this
folder and counts from zero for each; a test that breaks it or needs options starts its own.
"""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import squall
from squall.api.errors import SquallError
from squall.engine.outcome import RunOutcome
from squall.engine.run.local_run import run_local
from squall.engine.run_controls import RunControls
from squall.engine.run_options import ProfileFlags, RunOptions
from squall.reporting.run_result import Result
from squall.stats.snapshot import Snapshot
from tests.lab.target import TargetHandle
from tests.runs.lab.in_process import in_process

HEADER = (
    "import asyncio, os, random, sys, time; from dataclasses import dataclass; "
    "from squall import (URL, All, Auth, Cookies, Counter, CustomResult, Data, Feed, File, "
    "Form, Gauge, HTTPResponse, Headers, Params, Provide, Rate, Resource, Sample, Timed, "
    "TransportError, Use, Workflow, action, bearer, check, depends, env, metric, state, step, "
    "then)\n"
)
"""One line, so that line 2 of a file is the first line a test writes."""


POLL_S = 0.01
MOMENT_S = 0.05
ENDS_WITHIN_S = 60.0
"""Against a hang, not a measurement."""


class Lab:
    """Writes workflow files into one folder and runs them against one target."""

    def __init__(self, folder: Path, target: TargetHandle) -> None:
        self.folder = folder
        self.target = target

    def write(self, text: str, name: str = "flow.py") -> Path:
        path = self.folder / name
        path.write_text(HEADER + textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        return path

    def run(self, text: str, **options: Any) -> Result:
        options.setdefault("workers", 1)
        options.setdefault("host", self.target.url)
        path = self.write(text)
        with in_process(self.folder):
            return squall.run(path, **options)

    def run_processes(self, text: str, **options: Any) -> Result:
        """With real core processes, for what separate processes could get wrong."""
        options.setdefault("host", self.target.url)
        return squall.run(self.write(text), **options)

    def interrupt(
        self,
        text: str,
        *,
        when: Callable[[], bool],
        times: int = 1,
        workers: int = 1,
        **environment: str,
    ) -> Result:
        """Runs until `when` holds and then interrupts so many times, as Ctrl-C does."""
        options = RunOptions(
            file=str(self.write(text)), host=self.target.url, workers=workers, env=environment
        )
        with in_process(self.folder):
            return Result(asyncio.run(_interrupted(options, when, times)))

    def steer(self, text: str, steps: Callable[[Steering], Awaitable[None]]) -> Result:
        """Runs the file; `steps` follows its snapshots and changes its load."""
        options = RunOptions(file=str(self.write(text)), host=self.target.url, workers=1)
        with in_process(self.folder):
            return Result(asyncio.run(_steered(options, steps)))

    def refusal(self, text: str, **options: Any) -> SquallError:
        """The error of a file that must not run; nothing may have reached the target."""
        with pytest.raises(SquallError) as caught:
            self.run(text, **options)
        assert self.target.counts()["total"] == 0
        return caught.value

    def run_with_lines(self, text: str, **flags: Any) -> tuple[Result, list[tuple[str, str]]]:
        """The result, and what the file printed as (prefix, line)."""
        lines: list[tuple[str, str]] = []
        options = RunOptions(
            file=str(self.write(text)),
            host=self.target.url,
            workers=1,
            profiles={"": ProfileFlags(**flags)} if flags else {},
        )
        with in_process(self.folder):
            outcome = asyncio.run(
                run_local(options, on_log=lambda prefix, line: lines.append((prefix, line)))
            )
        return Result(outcome), lines


@dataclass
class Steering:
    """A run that a test changes while it goes on."""

    controls: RunControls
    snapshots: asyncio.Queue[Snapshot]

    async def until(self, wanted: Callable[[Snapshot], bool]) -> Snapshot:
        """The next snapshot that is wanted."""
        while True:
            snapshot = await self.snapshots.get()
            if snapshot.workflows and wanted(snapshot):
                return snapshot

    async def until_nothing_is_planned(self) -> Snapshot:
        """The second of two snapshots between which nothing was planned or made."""
        before = await self.until(lambda snapshot: snapshot.workflows[0].paused)
        while True:
            snapshot = await self.snapshots.get()
            now, then = snapshot.workflows[0], before.workflows[0]
            if (now.planned, now.iterations) == (then.planned, then.iterations):
                return snapshot
            before = snapshot


async def _steered(options: RunOptions, steps: Callable[[Steering], Awaitable[None]]) -> RunOutcome:
    controls: asyncio.Future[RunControls] = asyncio.Future()
    snapshots: asyncio.Queue[Snapshot] = asyncio.Queue()

    async def steer() -> None:
        steering = Steering(await controls, snapshots)
        await steps(steering)
        steering.controls.interrupt(False)

    async with asyncio.timeout(ENDS_WITHIN_S), asyncio.TaskGroup() as together:
        running = together.create_task(
            run_local(options, on_controls=controls.set_result, on_snapshot=snapshots.put_nowait)
        )
        together.create_task(steer())
    return running.result()


async def _interrupted(options: RunOptions, when: Callable[[], bool], times: int) -> RunOutcome:
    controls: asyncio.Future[RunControls] = asyncio.Future()

    async def interrupt() -> None:
        stop = (await controls).interrupt
        while not when():
            await asyncio.sleep(POLL_S)
        for _ in range(times):
            # The run goes on for a moment, so that it is interrupted inside of what it does.
            await asyncio.sleep(MOMENT_S)
            stop(False)

    async with asyncio.timeout(ENDS_WITHIN_S), asyncio.TaskGroup() as together:
        running = together.create_task(run_local(options, on_controls=controls.set_result))
        together.create_task(interrupt())
    return running.result()


def check_identities(result: Result) -> None:
    """What must hold for every row of every run."""
    for stats in result.outcome.stats.workflows.values():
        for row in (*stats.rows.values(), stats.iteration):
            assert row.count == row.ok + row.failed, row.name
            assert row.started == row.count + row.interrupted, row.name
            assert sum(outcome.count for outcome in row.outcomes.values()) == row.count
        starts, iteration = stats.starts, stats.iteration
        assert starts.planned == starts.made + starts.dropped
        assert iteration.started == starts.made
        requests = stats.requests
        assert requests.answered <= requests.sent


def check_counts(result: Result, counts: dict[str, Any]) -> None:
    """The target's own count against the run's, over all workflows."""
    check_identities(result)
    requests = [stats.requests for stats in result.outcome.stats.workflows.values()]
    sent = sum(each.sent for each in requests)
    answered = sum(each.answered for each in requests)
    total = counts["total"]
    if answered == sent:
        assert total == sent
    else:
        assert answered <= total <= sent
