"""Real runs of real workflow files against a target that counts.

A test writes a file, runs it with `lab.run(...)` as `squall.run` does for everybody, and
compares what the run says with what the target saw. One target serves all tests of this
folder, counted anew for each; a test that breaks it or needs options starts its own.
"""

from __future__ import annotations

import asyncio
import textwrap
from pathlib import Path
from typing import Any

import pytest

import squall
from squall.api.errors import SquallError
from squall.engine.local import run_local
from squall.engine.options import ProfileFlags, RunOptions
from squall.reporting.result import Result
from target_fixture import TargetHandle

HEADER = (
    "import asyncio, os, random, sys, time; from dataclasses import dataclass; "
    "from squall import (URL, Auth, Cookies, Counter, CustomResult, Data, Feed, File, Form, "
    "Gauge, HTTPResponse, Headers, Params, Provide, Rate, Resource, Sample, Timed, "
    "TransportError, Use, Workflow, action, bearer, check, depends, env, metric, state, step, "
    "then)\n"
)
"""One line, so that line 2 of a file is the first line a test writes."""


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
        return squall.run(self.write(text), **options)

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
        outcome = asyncio.run(
            run_local(options, on_log=lambda prefix, line: lines.append((prefix, line)))
        )
        return Result(outcome), lines


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
