"""Judges, step by step, what changed between two sides of runs.

A difference counts as a change if the interval of the ratio excludes 1 **and** the change is
large enough to matter (5 % by default, and 1 ms for times). The intervals of one
comparison hold together with 95 % confidence (each is wider the more there are), so a
file with many steps does not raise more false alarms than one with few. Numbers with fewer
than 20 windows, 100 samples, or 5 samples above a percentile are not judged.
Runs that cannot be compared are reported first, and judged only with `force`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from squall.engine.load.profile import describe
from squall.engine.load.schedule import StartSchedule
from squall.reporting.compare.bootstrap import (
    Estimate,
    RunWindows,
    SideEstimates,
    estimate_side,
    student_t,
)
from squall.reporting.document.model import ProfileDoc, ResultsDoc, RowDoc, WorkflowDoc
from squall.reporting.document.read import ResultsFile
from squall.reporting.document.rebuild import rebuild_profile
from squall.stats.manifest import FileManifest

CONFIDENCE = 0.95
MIN_CHANGE = 0.05
MIN_TIME_S = 0.001
MIN_FAILED = 0.001
"""A tenth of a percent of all executions; the counterpart of 1 ms for times."""
WINDOWS_MIN = 20
SAMPLES_MIN = 100
BEYOND_MIN = 5
"""Samples above a percentile: p99 needs 500."""
ONE_RUN = "one run each: the difference between two runs of the same code is not known"

Judgement = Literal["worse", "better", "same", "few", "open"]
"""`few`: too few samples. `open`: not judged, because the sides cannot be compared."""
Column = Literal["rate", "p50", "p99", "errors"]
COLUMNS: tuple[Column, ...] = ("rate", "p50", "p99", "errors")


@dataclass
class ColumnChange:
    """One number of one step on both sides, in seconds, per second, or shares of 1."""

    column: Column
    before: float | None
    after: float | None
    judgement: Judgement = "open"
    low: float = 0.0
    """Bounds of the change: of the ratio minus 1; for errors of the difference."""
    high: float = 0.0

    @property
    def relative(self) -> float:
        return self.after / self.before - 1.0 if self.before and self.after is not None else 0.0


@dataclass
class StepChange:
    name: str
    changes: list[ColumnChange]


@dataclass
class Comparison:
    before: list[ResultsFile]
    after: list[ResultsFile]
    steps: list[StepChange] = field(default_factory=list[StepChange])
    obstacles: list[str] = field(default_factory=list[str])
    """Why the sides should not be compared."""
    remarks: list[str] = field(default_factory=list[str])
    judged: bool = True
    enough_s: float = 0.0
    """How long a run must be for the numbers with too few samples; infinite: a step has none."""

    def number(self, judgement: Judgement) -> int:
        return sum(each.judgement == judgement for step in self.steps for each in step.changes)

    @property
    def one_run_each(self) -> bool:
        return len(self.before) == len(self.after) == 1


@dataclass
class _Row:
    """One step on both sides."""

    name: str
    before: list[RunWindows]
    after: list[RunWindows]
    estimates: tuple[SideEstimates, SideEstimates] | None = None


def compare(
    before: Sequence[ResultsFile],
    after: Sequence[ResultsFile],
    *,
    min_change: float = MIN_CHANGE,
    force: bool = False,
) -> Comparison:
    result = Comparison(list(before), list(after))
    result.obstacles = _obstacles(result)
    result.judged = force or not result.obstacles
    rows = _rows(result)
    for row in rows:
        if _has_samples(row.before) and _has_samples(row.after):
            row.estimates = estimate_side(row.before), estimate_side(row.after)
    pairs = [(row, _step(row)) for row in rows]
    result.steps = [step for _, step in pairs]
    if result.judged:
        _judge(pairs, min_change)
        result.enough_s = max(
            (
                _enough_s(row, change.column)
                for row, step in pairs
                for change in step.changes
                if change.judgement == "few"
            ),
            default=0.0,
        )
    return result


def _has_samples(runs: Sequence[RunWindows]) -> bool:
    return all(run.size and run.buckets for run in runs)


def _step(row: _Row) -> StepChange:
    if row.estimates is None:
        return StepChange(row.name, [ColumnChange(column, None, None) for column in COLUMNS])
    pairs = zip(COLUMNS, *(_in_order(side) for side in row.estimates), strict=True)
    return StepChange(row.name, [ColumnChange(name, a.value, b.value) for name, a, b in pairs])


def _in_order(side: SideEstimates) -> tuple[Estimate, Estimate, Estimate, Estimate]:
    return side.rate, side.p50, side.p99, side.failed


def _judge(pairs: Sequence[tuple[_Row, StepChange]], min_change: float) -> None:
    cells: list[tuple[ColumnChange, Estimate, Estimate]] = []
    for row, step in pairs:
        for change in step.changes:
            if row.estimates is None or not _is_enough(row, change.column):
                change.judgement = "few"
                continue
            index = COLUMNS.index(change.column)
            before, after = (_in_order(side)[index] for side in row.estimates)
            cells.append((change, before, after))
    confidence = 1.0 - (1.0 - CONFIDENCE) / max(len(cells), 1)
    for change, before, after in cells:
        _judge_one(change, before, after, confidence, min_change)


def _is_enough(row: _Row, column: Column) -> bool:
    for side in (row.before, row.after):
        # Blocks need windows; runs of a side together may have them.
        samples = sum(run.samples for run in side)
        if sum(run.size for run in side) < WINDOWS_MIN or samples < samples_needed(column):
            return False
    return True


def samples_needed(column: Column) -> int:
    beyond = {"p50": 0.5, "p99": 0.01}.get(column, 1.0)
    return max(SAMPLES_MIN, round(BEYOND_MIN / beyond))


def never_judged(manifest: FileManifest, warmup_s: float) -> list[str]:
    """The test workflows whose runs can never be judged against each other, however the target
    does: one line for each."""
    lines: list[str] = []
    for workflow in manifest.workflows:
        profile = workflow.profile
        if not workflow.is_test:
            continue
        if profile.model == "iterations":
            samples = profile.iterations
        else:
            seconds = math.floor(profile.duration_s - warmup_s)
            if seconds < WINDOWS_MIN:
                lines.append(
                    f"{workflow.name} has {max(seconds, 0)} whole seconds, and a comparison needs "
                    f"{WINDOWS_MIN}: give it {WINDOWS_MIN + warmup_s:g} s or more"
                )
                continue
            samples = StartSchedule(profile).total if profile.is_open else SAMPLES_MIN
        if samples < SAMPLES_MIN:
            lines.append(
                f"{workflow.name} makes {samples} iterations, and a comparison needs "
                f"{SAMPLES_MIN} samples of each step"
            )
    return lines


def _enough_s(row: _Row, column: Column) -> float:
    """How long each run of both sides must be, at the rate that it had."""
    longest_s = 0.0
    for side in (row.before, row.after):
        seconds = sum(run.size * run.every_s for run in side)
        samples = sum(run.samples for run in side)
        if not samples or not seconds:
            return math.inf
        width_s = max(run.every_s for run in side)
        needed_s = max(WINDOWS_MIN * width_s, samples_needed(column) * seconds / samples)
        longest_s = max(longest_s, needed_s / len(side))
    # The last second of a run is seldom whole.
    return math.ceil(longest_s) + 1.0


def _judge_one(
    change: ColumnChange, before: Estimate, after: Estimate, confidence: float, min_change: float
) -> None:
    variance = before.variance + after.variance
    freedom = _welch(before, after)
    reach = student_t(confidence, freedom) * math.sqrt(variance)
    difference = after.value - before.value
    if change.column == "errors":
        change.low, change.high = difference - reach, difference + reach
        certain = change.low > 0 or change.high < 0
        large = abs(difference) > max(min_change * before.value, MIN_FAILED)
    else:
        middle = math.log(after.value / before.value)
        change.low, change.high = math.expm1(middle - reach), math.expm1(middle + reach)
        certain = change.low > 0 or change.high < 0
        large = abs(change.relative) > min_change
        if change.column != "rate":
            large = large and abs(difference) > MIN_TIME_S
    if not (certain and large):
        change.judgement = "same"
    else:
        is_worse = difference < 0 if change.column == "rate" else difference > 0
        change.judgement = "worse" if is_worse else "better"


def _welch(before: Estimate, after: Estimate) -> float:
    total = before.variance + after.variance
    if total <= 0:
        return min(before.freedom, after.freedom)
    parts = before.variance**2 / before.freedom + after.variance**2 / after.freedom
    return max(total**2 / parts, 1.0)


def _rows(result: Comparison) -> list[_Row]:
    """Steps of test workflows that both sides have, in the order of the first run."""
    first = result.before[0].results
    tests = [workflow for workflow in first.workflows if workflow.is_test]
    rows: list[_Row] = []
    known: set[str] = set()
    for workflow in tests:
        for step in workflow.steps:
            name = f"{workflow.name}.{step.name}" if len(tests) > 1 else step.name
            sides = [
                [_windows(read.results, workflow.name, step.name) for read in side]
                for side in (result.before, result.after)
            ]
            found = [[run for run in side if run is not None] for side in sides]
            known.add(f"{workflow.name}.{step.name}")
            if all(len(have) == len(side) for have, side in zip(found, sides, strict=True)):
                rows.append(_Row(name, found[0], found[1]))
            else:
                result.remarks.append(f"{name} is not in every run; left out")
    others = {
        f"{workflow.name}.{step.name}"
        for read in (*result.before[1:], *result.after)
        for workflow in read.results.workflows
        if workflow.is_test
        for step in workflow.steps
    }
    result.remarks += [f"{name} is not in every run; left out" for name in sorted(others - known)]
    return rows


def _windows(results: ResultsDoc, workflow: str, step: str) -> RunWindows | None:
    for each in results.workflows:
        if each.name == workflow:
            for row in each.steps:
                if row.name == step:
                    return _whole_windows(each, row, results.run.warmup_s)
    return None


def _whole_windows(workflow: WorkflowDoc, row: RowDoc, warmup_s: float) -> RunWindows:
    """The windows without the warm-up and without the last second, which is seldom whole."""
    windows = row.windows
    every_s = windows.every_s
    length_s = workflow.elapsed_s
    if workflow.profile.model not in ("iterations", "once"):
        length_s = min(length_s, workflow.profile.duration_s)
    first = math.ceil(warmup_s / every_s)
    # Timers are never exact: a second that is 50 ms short counts as whole.
    last = math.floor((length_s + 0.05) / every_s)
    size = max(last - first, 0)
    buckets: dict[int, np.ndarray[tuple[int], np.dtype[np.int64]]] = {}
    for place, pairs in enumerate(windows.buckets[first:last]):
        for index, count in pairs:
            if index not in buckets:
                buckets[index] = np.zeros(size, dtype=np.int64)
            buckets[index][place] = count
    return RunWindows(
        every_s=every_s,
        count=_padded(windows.count[first:last], size),
        failed=_padded(windows.failed[first:last], size),
        buckets=buckets,
        samples=sum(count for pairs in windows.buckets[first:last] for _, count in pairs),
    )


def _padded(values: Sequence[int], size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A step without executions at the end has fewer windows than the run had seconds."""
    filled = np.zeros(size, dtype=np.int64)
    filled[: len(values)] = values
    return filled


def _obstacles(result: Comparison) -> list[str]:
    lines = [
        f"{read.path} is INVALID: {(read.results.verdict.reasons or ['no reason given'])[0]}"
        for read in (*result.before, *result.after)
        if read.results.verdict.state == "INVALID"
    ]
    first = result.before[0]
    for read in (*result.before[1:], *result.after):
        lines += [
            f"{read.path} and {first.path} have different profiles: {line}"
            for line in _profile_differences(first.results, read.results)
        ]
    return lines


def _profile_differences(one: ResultsDoc, two: ResultsDoc) -> list[str]:
    lines: list[str] = []
    ours, theirs = _profiles(one), _profiles(two)
    for name in sorted(set(ours) & set(theirs)):
        if ours[name] != theirs[name]:
            shown = [describe(rebuild_profile(each[name])) for each in (theirs, ours)]
            text = " and ".join(shown) if shown[0] != shown[1] else "see profile in the documents"
            lines.append(f"{name}: {text}")
    if set(ours) != set(theirs):
        lines.append(f"only one has {', '.join(sorted(set(ours) ^ set(theirs)))}")
    if one.run.warmup_s != two.run.warmup_s:
        lines.append(f"warm-up of {two.run.warmup_s:g} s and {one.run.warmup_s:g} s")
    return lines


def _profiles(results: ResultsDoc) -> dict[str, ProfileDoc]:
    return {each.name: each.profile for each in results.workflows if each.is_test}


def same_machine(result: Comparison) -> bool:
    """Whether all runs had the same kind of machine: cores, system and memory in gigabytes."""
    machines = [read.results.run.host for read in (*result.before, *result.after)]
    kinds = {(each.cores, each.os, round(each.memory_mb / 1000)) for each in machines}
    return len(kinds) == 1
