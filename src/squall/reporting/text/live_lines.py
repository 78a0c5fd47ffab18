"""Prints progress as plain lines on stderr: first the plan, then the numbers of the run.

Prints a line every second for ten seconds, then one every ten seconds. It reports a new kind of
error, a failing threshold and a change of the verdict at once. Lines are only appended, so logs
stay readable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from squall.api.quantities import format_duration
from squall.engine.load.profile import describe
from squall.reporting.number_format import (
    clock,
    judged,
    percent_number,
    plural,
    rate,
    tight_duration,
)
from squall.reporting.text.layout import VERDICT_SHADES, Paint
from squall.stats.manifest import FileManifest, WorkflowManifest
from squall.stats.snapshot import (
    DatacenterSnapshot,
    NewError,
    Snapshot,
    ThresholdState,
    WorkflowSnapshot,
)

# For this long there is a line each second: users first check whether the run works at all.
_EAGER_S = 10
# New errors to report per second; a target that dies causes many kinds at once.
_NEW_ERRORS_MAX = 5
# Follows the name of a worker in a line about its silence.
_SILENT = " silent for "
# Least time between two lines about one threshold, which may flip each second.
_REPEAT_S = 10.0


class LiveLines:
    """Writes progress lines; `feed` takes a snapshot each second and decides what is worth a
    line."""

    def __init__(
        self,
        manifest: FileManifest,
        stream: TextIO,
        every: float | None = None,
        color: bool = False,
        *,
        processes: int = 0,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._manifest = manifest
        self._stream = stream
        self._every_s = every
        self._paint = Paint(color)
        self._processes = processes
        self._redact = redact
        self._next_s = 1.0
        self._seen_s: dict[str, float] = {}
        self._verdict = "VALID"
        self._failing: set[str] = set()
        self._reported_s: dict[str, float] = {}
        self._silent: set[str] = set()

    def start(self) -> None:
        """Prints the header: model, shape, processes and host of each workflow."""
        workflows = self._manifest.workflows
        for index, workflow in enumerate(workflows):
            path = self._manifest.path if index == 0 else " " * len(self._manifest.path)
            self._write(f"{path}  {self._planned(workflow, first=index == 0)}")
        for text in self._manifest.all_warnings:
            self._warn(text)

    def feed(self, snapshot: Snapshot) -> None:
        if self._is_due(snapshot.elapsed_s):
            for workflow in snapshot.workflows:
                # A workflow that has ended does not change any more.
                if self._seen_s.get(workflow.name) != workflow.elapsed_s:
                    self._seen_s[workflow.name] = workflow.elapsed_s
                    self._write(self._progress(workflow, snapshot))
            if snapshot.datacenters:
                self._write(self._by_datacenter(snapshot))
        reported = ""
        if snapshot.verdict != self._verdict:
            self._verdict = snapshot.verdict
            why = f": {snapshot.reasons[0]}" if snapshot.reasons else " again"
            self._attention(f"{snapshot.verdict}{why}", "", snapshot)
            reported = why
        self._report_silent(snapshot, reported)
        for state in snapshot.thresholds:
            self._judge(state, snapshot)
        for error in snapshot.new_errors[:_NEW_ERRORS_MAX]:
            self._attention(self._new_error(error), error.workflow, snapshot)
        left = len(snapshot.new_errors) - _NEW_ERRORS_MAX
        if left > 0:
            self._attention(f"{left} more new kinds of errors (see summary)", "", snapshot)

    def _report_silent(self, snapshot: Snapshot, reported: str) -> None:
        """Reports each silent worker once; the verdict may have just named one of them."""
        silent = {text.partition(_SILENT)[0]: text for text in snapshot.losses if _SILENT in text}
        new = [
            worker
            for worker in silent
            if worker not in self._silent and f"{worker}{_SILENT}" not in reported
        ]
        for worker in new[:_NEW_ERRORS_MAX]:
            self._attention(silent[worker], "", snapshot)
        self._silent = set(silent)

    def interrupted(self, times: int) -> None:
        """Prints what the run waits for after Ctrl-C."""
        mark = self._paint("!", "bad")
        grace_s = max(workflow.profile.grace_s for workflow in self._manifest.workflows)
        text = f"stopping; running iterations get up to {format_duration(grace_s, compact=True)}"
        text += ", Ctrl-C again ends at once"
        self._write(f"{mark} {text if times == 1 else 'ending at once'}")

    def _planned(self, workflow: WorkflowManifest, *, first: bool) -> str:
        parts = [workflow.name, describe(workflow.profile), workflow.shape]
        where = [f"host {workflow.host}"] if workflow.host else []
        if first and self._processes:
            noun = "process" if self._processes == 1 else "processes"
            where.insert(0, f"{self._processes} {noun}")
        return "  ".join(part for part in (*parts, ", ".join(where)) if part)

    def _is_due(self, elapsed_s: float) -> bool:
        # Snapshots come a little before or after the full second.
        if elapsed_s < self._next_s - 0.5:
            return False
        second = round(elapsed_s)
        if self._every_s is not None:
            self._next_s = max(self._next_s, elapsed_s - 0.5) + self._every_s
        elif second < _EAGER_S:
            self._next_s = second + 1.0
        else:
            self._next_s = (second // _EAGER_S + 1.0) * _EAGER_S
        return True

    def _progress(self, workflow: WorkflowSnapshot, snapshot: Snapshot) -> str:
        if workflow.ended:
            return self._ended(workflow, snapshot)
        name = [workflow.name] if len(self._manifest.workflows) > 1 else []
        profile = self._manifest.workflow(workflow.name).profile
        target = (
            "" if workflow.target_per_s is None else f" of {_planned_rate(workflow.target_per_s)}"
        )
        if profile.model == "iterations":
            target = f", {workflow.iterations} of {profile.iterations}"
        times = "no samples"
        if workflow.samples_now:
            quantiles = (
                ("p50", workflow.p50_now_s),
                ("p95", workflow.p95_now_s),
                ("p99", workflow.p99_now_s),
            )
            times = " ".join(f"{label} {tight_duration(value)}" for label, value in quantiles)
        parts = [
            self._clock(workflow.name, snapshot),
            *name,
            f"{rate(workflow.rate_now_per_s)}{target}",
            f"users {workflow.users}",
            f"failed {percent_number(workflow.failed_share)}%",
            times,
            f"cpu {snapshot.cpu * 100:.0f}%",
            self._paint(snapshot.verdict, VERDICT_SHADES[snapshot.verdict]),
        ]
        return "  ".join(parts)

    def _by_datacenter(self, snapshot: Snapshot) -> str:
        """`00:12  eu 300/s failed 0% p95 44.0ms  us silent for 5 s`."""
        parts = [self._datacenter(each) for each in snapshot.datacenters]
        return "  ".join([clock(round(snapshot.elapsed_s)), " | ".join(parts)])

    def _datacenter(self, part: DatacenterSnapshot) -> str:
        if part.silent_s:
            return self._paint(f"{part.name} silent for {part.silent_s:.0f} s", "bad")
        if part.state in ("lost", "failed"):
            return self._paint(f"{part.name} {part.state}", "bad")
        if not part.samples_now:
            return f"{part.name} {part.state}"
        target = "" if part.target_per_s is None else f" of {_planned_rate(part.target_per_s)}"
        return (
            f"{part.name} {rate(part.iterations_now_per_s)}{target} "
            f"failed {percent_number(part.failed_now_share)}% "
            f"p95 {tight_duration(part.p95_now_s)}"
        )

    def _ended(self, workflow: WorkflowSnapshot, snapshot: Snapshot) -> str:
        name = [workflow.name] if len(self._manifest.workflows) > 1 else []
        parts = [
            self._clock(workflow.name, snapshot),
            *name,
            f"ended, {plural(workflow.iterations, 'iteration')}",
            f"failed {percent_number(workflow.failed_share)}%",
        ]
        return "  ".join(parts)

    def _judge(self, state: ThresholdState, snapshot: Snapshot) -> None:
        if state.condition != "failing":
            self._failing.discard(state.expression)
            return
        if state.expression in self._failing:
            return
        self._failing.add(state.expression)
        reported_s = self._reported_s.get(state.expression)
        if reported_s is not None and snapshot.elapsed_s - reported_s < _REPEAT_S:
            return
        self._reported_s[state.expression] = snapshot.elapsed_s
        value = judged(state.value, state.unit, state.limit)
        value = value if state.value is None else value.replace(" ", "")
        self._attention(f"{state.expression} is failing: {value}", state.workflow, snapshot)

    def _new_error(self, error: NewError) -> str:
        name = f"{error.workflow}.{error.row}" if len(self._manifest.workflows) > 1 else error.row
        line = error.location.partition(" in ")[0]
        where = f" at {line}" if line else ""
        return f"{name}: {error.reason}{where} (first of its kind; see summary)"

    def _attention(self, text: str, workflow: str, snapshot: Snapshot) -> None:
        mark = self._paint("!", "bad")
        self._write(f"{self._clock(workflow, snapshot)}  {mark} {text}")

    def _clock(self, workflow: str, snapshot: Snapshot) -> str:
        """The workflow's time and length; the run's time for lines about no workflow."""
        only = len(self._manifest.workflows) == 1
        for each in snapshot.workflows:
            if only or each.name == workflow:
                profile = self._manifest.workflow(each.name).profile
                now = clock(round(each.elapsed_s))
                # The duration of the other models is a bound that is seldom reached.
                bounded = profile.model in ("iterations", "once")
                return now if bounded else f"{now}/{clock(profile.duration_s)}"
        return clock(round(snapshot.elapsed_s))

    def _warn(self, text: str) -> None:
        self._write(f"{self._paint('warning:', 'warn')} {text}")

    def _write(self, line: str) -> None:
        self._stream.write(self._redact(line) + "\n")
        self._stream.flush()


def _planned_rate(per_s: float) -> str:
    """`500`, `333.3`, `100000`: never in powers of ten."""
    return f"{per_s:.4g}" if per_s < 9999.5 else f"{per_s:.0f}"
