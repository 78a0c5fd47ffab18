"""Judges whether a run meets its thresholds, during the run and at the end.

A threshold without `over` is judged on everything since the start (or the warm-up); the
value at the end decides. With `over 10s` every stretch of ten consecutive whole seconds is
judged; one bad stretch fails the run for good, and the worst one is reported. `abort` requests
the end of the run as soon as the threshold fails, `abort after 30s` once it has failed for 30 s
without a break. A threshold without any samples fails.

During the run a count that still grows towards its limit (`orders > 100`) is pending, not
failing. This module never ends a run; it only reports that the run should end.

The built-in `errors < 100%` fails a run in which nothing succeeded. It is listed only
when it failed or when there is no other threshold. Where the author has no threshold on errors, it
holds for each step, and for each check, metric and end action whose every execution raised in the
author's own code; a threshold on checks decides for checks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from squall.stats.run_notes import AlwaysFailed, always_failed, checks_never_made
from squall.stats.snapshot import ThresholdState
from squall.stats.thresholds.binding import BUILTIN_TEXT, BoundThreshold, bind, bind_all
from squall.stats.thresholds.grammar import Threshold, parse_threshold
from squall.stats.thresholds.values import Reading, ReadingSource, is_response_time, read
from squall.stats.totals.run import RunStats
from squall.stats.totals.workflow import WorkflowStats

__all__ = [
    "BUILTIN_TEXT",
    "BoundThreshold",
    "LiveJudgement",
    "Threshold",
    "ThresholdJudge",
    "ThresholdResult",
    "ThresholdState",
    "bind",
    "bind_all",
    "parse_threshold",
]

# A second that is shorter by this still counts as whole, because timers are never exact.
_ALMOST_S = 0.05
FEW_BEYOND = 5
"""A percentile with fewer samples above it is shown with the number of samples."""


class ThresholdResult(msgspec.Struct, frozen=True, kw_only=True):
    """A threshold at the end of a run, in the units of the results document."""

    expression: str
    passed: bool
    value: float | None
    """None without samples. With `over`, the worst stretch."""
    unit: str
    samples: int
    limit: float | None = None
    """What the value is compared with, in `unit`."""
    first_failed_at_s: float | None = None
    """Since when it has failed, on the run's clock; with `over`, the first bad stretch."""
    note: str = ""
    workflow: str = ""
    """The workflow that it is about; empty if it is about several."""
    row: str = ""
    builtin: bool = False


class LiveJudgement(msgspec.Struct, frozen=True, kw_only=True):
    states: tuple[ThresholdState, ...]
    newly_failing: tuple[ThresholdState, ...] = ()
    abort: str = ""
    """The expression that ends the run; empty while none does."""


class ThresholdJudge:
    """Judges bound thresholds against the numbers of a run, second by second."""

    def __init__(
        self,
        thresholds: Sequence[BoundThreshold],
        stats: RunStats,
        scopes: Mapping[str, RunStats] | None = None,
    ) -> None:
        """`scopes` has the numbers of each datacenter that a threshold names."""
        self._stats = stats
        scoped = scopes or {}
        self._tracks = [
            _Track(bound, scoped[bound.scope] if bound.scope else stats) for bound in thresholds
        ]
        longest = max((bound.threshold.over_s or 0 for bound in thresholds), default=0)
        for each in (stats, *scoped.values()):
            each.keep_seconds(longest)

    def judge_live(self, now_s: float) -> LiveJudgement:
        """Judges during the run; call it once a second. The built-in threshold is left out."""
        states: list[ThresholdState] = []
        newly_failing: list[ThresholdState] = []
        abort = ""
        for track in self._tracks:
            if track.bound.builtin:
                continue
            was_failing = track.is_failing
            state = track.live(now_s)
            states.append(state)
            if track.is_failing and not was_failing:
                newly_failing.append(state)
            if not abort and track.abort_is_due(now_s):
                abort = str(track.bound)
        return LiveJudgement(states=tuple(states), newly_failing=tuple(newly_failing), abort=abort)

    def final(self) -> list[ThresholdResult]:
        """Judges at the end, when every report is added and the workflows have `elapsed_s`."""
        results = [track.final() for track in self._tracks]
        # Where nothing succeeded, one line says so for all steps.
        nothing_succeeded = any(result.builtin and not result.passed for result in results)
        results += [
            _always_failed_result(step)
            for step in always_failed(self._stats)
            if (step.raised or not nothing_succeeded)
            and not any(_is_about_errors(track.bound, step) for track in self._tracks)
        ]
        others = any(not result.builtin for result in results)
        return [result for result in results if not (result.builtin and result.passed and others)]


class _Track:
    """Follows one threshold over the time of a run."""

    def __init__(self, bound: BoundThreshold, stats: RunStats) -> None:
        self.bound = bound
        self.workflows = [stats.workflows[name] for name in bound.workflows]
        # Start of the current failure; None while the threshold holds.
        self.failing_since_s: float | None = None
        self.first_bad_at_s: float | None = None
        self.worst: Reading | None = None
        # The first second of the run's clock at which no judged stretch has ended yet.
        self._next_second = 0

    @property
    def is_failing(self) -> bool:
        """With `over` a failure is final: a later stretch cannot make up for a bad one."""
        return self.failing_since_s is not None or self.first_bad_at_s is not None

    def live(self, now_s: float) -> ThresholdState:
        if self.bound.threshold.over_s is not None:
            reading = self._slide(now_s)
        else:
            reading = self._whole()
            if reading.value is None or self._can_still_rise():
                self.failing_since_s = None
            else:
                self._note(reading.value, now_s)
        failing = self.is_failing
        judged = reading.value is not None and (failing or not self._can_still_rise())
        return ThresholdState(
            expression=str(self.bound),
            condition="failing" if failing else "passing" if judged else "pending",
            value=self._shown(reading.value),
            unit=self.bound.unit,
            limit=self._shown(self.bound.limit),
            workflow=self.bound.workflow,
            row=self.bound.row,
            builtin=self.bound.builtin,
        )

    def abort_is_due(self, now_s: float) -> bool:
        threshold = self.bound.threshold
        if not threshold.abort or self.failing_since_s is None:
            return False
        return now_s - self.failing_since_s >= threshold.abort_after_s

    def final(self) -> ThresholdResult:
        whole = self._whole()
        if self.bound.threshold.over_s is not None:
            self._slide(math.inf)
            if self.worst is not None:
                return self._result(self.worst, whole.samples, self.first_bad_at_s)
        missing = self._never_made()
        if missing:
            # The checks that were made may all have passed: those that were not say nothing.
            whole = Reading(None, whole.samples)
        passed = whole.value is not None and self._holds(whole.value)
        failed_at_s = None
        if not passed:
            failed_at_s = self.failing_since_s
            if failed_at_s is None:
                failed_at_s = self._end_s()
        result = self._result(whole, whole.samples, failed_at_s)
        if not missing:
            return result
        return msgspec.structs.replace(result, note=f"no samples of {', '.join(missing)}")

    def _never_made(self) -> list[str]:
        """The checks of the file that this threshold is about and that never ran."""
        if self.bound.target != "checks":
            return []
        return [name for workflow in self.workflows for name in checks_never_made(workflow)]

    def _result(self, reading: Reading, samples: int, failed_at_s: float | None) -> ThresholdResult:
        return ThresholdResult(
            expression=str(self.bound),
            passed=failed_at_s is None,
            value=self._shown(reading.value),
            unit=self.bound.unit,
            samples=samples,
            limit=self._shown(self.bound.limit),
            first_failed_at_s=failed_at_s,
            note=self._remarks(reading),
            workflow=self.bound.workflow,
            row=self.bound.row,
            builtin=self.bound.builtin,
        )

    def _slide(self, now_s: float) -> Reading:
        """Judges every stretch that is complete; returns the last one that had samples."""
        over_s = self.bound.threshold.over_s or 1
        last = Reading(None, 0)
        end = self._complete_second(now_s)
        for second in range(max(self._next_second, self._first_end(over_s)), end + 1):
            reading = read(self.bound, self._stretch(second, over_s), over_s)
            if reading.value is None:
                continue
            last = reading
            at_s = float(second + 1)
            self._note(reading.value, at_s)
            if self.first_bad_at_s is None:
                self.first_bad_at_s = self.failing_since_s
            if self.worst is None or self._is_worse(reading.value, self.worst.value):
                self.worst = reading
        self._next_second = max(self._next_second, end + 1)
        return last if last.value is not None or self.worst is None else self.worst

    def _first_end(self, over_s: int) -> int:
        """The second at which the first whole stretch ends that is still kept in full."""
        begun = [workflow for workflow in self.workflows if workflow.last_second >= 0]
        if not begun:
            return 0
        first = min(_offset_s(workflow) + workflow.skipped_s for workflow in begun)
        kept = max(_offset_s(w) + w.last_second - w.keep_s + 1 for w in begun)
        return max(first, kept) + over_s - 1

    def _complete_second(self, now_s: float) -> int:
        """The newest second of the run's clock that is over and reported; -1 before."""
        newest = -1
        for workflow in self.workflows:
            if workflow.last_second < 0:
                continue
            length_s = workflow.elapsed_s or now_s - workflow.started_at_s
            if self.bound.base in ("rate", "count"):
                length_s = min(length_s, _load_s(workflow))
            over = workflow.complete_second
            if math.isfinite(length_s):
                # The last second of a run is seldom whole, so its rate would look low.
                over = min(over, math.floor(length_s + _ALMOST_S) - 1)
            newest = max(newest, over + _offset_s(workflow))
        return newest

    def _stretch(self, second: int, over_s: int) -> list[ReadingSource]:
        return [
            ReadingSource(workflow, numbers)
            for workflow in self.workflows
            for numbers in workflow.latest(over_s, until=second - _offset_s(workflow))
        ]

    def _whole(self) -> Reading:
        begun = [workflow for workflow in self.workflows if workflow.last_second >= 0]
        sources = [ReadingSource(workflow, workflow) for workflow in begun]
        return read(self.bound, sources, _span_s(begun))

    def _note(self, value: float, at_s: float) -> None:
        if self._holds(value):
            self.failing_since_s = None
        elif self.failing_since_s is None:
            self.failing_since_s = at_s

    def _holds(self, value: float) -> bool:
        return self.bound.threshold.holds(value, self.bound.limit)

    def _is_worse(self, value: float, worst: float | None) -> bool:
        if worst is None:
            return True
        op = self.bound.threshold.op
        if op in ("<", "<="):
            return value > worst
        if op in (">", ">="):
            return value < worst
        return self._holds(worst) and not self._holds(value)

    def _can_still_rise(self) -> bool:
        threshold = self.bound.threshold
        grows = self.bound.base == "count" and threshold.over_s is None
        return grows and threshold.op in (">", ">=", "==")

    def _end_s(self) -> float:
        ends = [w.started_at_s + (w.elapsed_s or w.last_second + 1) for w in self.workflows]
        return max(ends, default=0.0)

    def _shown(self, value: float | None) -> float | None:
        return None if value is None else value * self.bound.scale

    def _remarks(self, reading: Reading) -> str:
        if reading.value is None:
            return "no samples"
        remarks: list[str] = []
        bound = self.bound
        if bound.base == "time" and bound.target == "connect":
            remarks.append(f"all connections of {' and '.join(bound.workflows)}")
        elif bound.base == "time" and bound.field != "first_byte":
            response = is_response_time(bound, self.workflows)
            remarks.append("response time" if response else "service time")
        if bound.stat == "p" and reading.samples * (1 - bound.q) < FEW_BEYOND:
            remarks.append(f"n={reading.samples}")
        if bound.target == "metric" and bound.base in ("count", "rate") and not reading.samples:
            # Zero is a measurement: `retries < 5` is about what should not happen.
            remarks.append("nothing was counted")
        if bound.threshold.over_s is not None and self.worst is None:
            remarks.append(f"the run was shorter than {bound.threshold.over_s} s")
        return ", ".join(remarks)


def _is_about_errors(bound: BoundThreshold, step: AlwaysFailed) -> bool:
    """Whether a threshold of the author's own says how many of these failures are too many."""
    if bound.builtin or bound.scope or step.workflow not in bound.workflows:
        return False
    if bound.target == "checks":
        return step.is_check
    if not step.row:
        # `errors` counts executions of steps; it says nothing about a metric or an action.
        return False
    counts_failures = bound.base == "share" or bound.failures_only
    if bound.target == "row":
        return bound.name == step.row and counts_failures
    return bound.target in ("rows", "http_rows") and counts_failures


def _always_failed_result(step: AlwaysFailed) -> ThresholdResult:
    return ThresholdResult(
        expression=f"{step.name}.{BUILTIN_TEXT}",
        passed=False,
        value=100.0,
        unit="%",
        samples=step.count,
        limit=100.0,
        first_failed_at_s=step.first_at_s,
        note=step.text,
        workflow=step.workflow,
        row=step.row,
        builtin=True,
    )


def _offset_s(workflow: WorkflowStats) -> int:
    """Seconds from the run's clock to the workflow's."""
    return round(workflow.started_at_s)


def _load_s(workflow: WorkflowStats) -> float:
    """How long the workflow was to start iterations; after that the last ones only end."""
    profile = workflow.manifest.profile
    return math.inf if profile.model in ("iterations", "once") else profile.duration_s


def _span_s(workflows: Sequence[WorkflowStats]) -> float:
    """The measured time from the first start to the last end; overlaps count once."""
    if not workflows:
        return 0.0
    starts = [workflow.started_at_s + workflow.skipped_s for workflow in workflows]
    ends = [start + workflow.rated_s for start, workflow in zip(starts, workflows, strict=True)]
    return max(ends) - min(starts)
