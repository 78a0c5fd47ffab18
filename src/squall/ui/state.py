"""The state of the screen: the last snapshot of the run, and a bounded history.

Everything comes with the snapshots, including times: nothing here reads a clock, knows the size
of a terminal or touches the engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from squall.reporting.number_format import clock, judged
from squall.stats.manifest import FileManifest, WorkflowManifest
from squall.stats.snapshot import RowSnapshot, Snapshot, VerdictState, WorkflowSnapshot
from squall.ui.history import History, Point
from squall.ui.styled_text import Style

LOG_LINES = 1_000
# Seconds that the sparkline of an error shows.
_SPARK_S = 60
# Kinds of errors whose history is kept; a snapshot names up to twelve of a workflow.
_TRACES = 200
# New errors to log per second; a target that dies causes many kinds at once.
_NEW_ERRORS = 5

VERDICT_STYLES: dict[VerdictState, Style] = {"VALID": "good", "DEGRADED": "warn", "INVALID": "bad"}

ErrorKind = tuple[str, str, str]
"""Workflow, row, reason."""


class ErrorTrace:
    """Failures of one kind, second by second."""

    __slots__ = ("count", "location", "per_second")

    def __init__(self) -> None:
        self.count = 0
        self.location = ""
        self.per_second: deque[float] = deque(maxlen=_SPARK_S)


class LogLine:
    __slots__ = ("style", "text")

    def __init__(self, text: str, style: Style = "plain") -> None:
        self.text = text
        self.style: Style = style


class RunState:
    """One run, from its manifest to its last snapshot."""

    def __init__(self, manifest: FileManifest, processes: int) -> None:
        self.manifest = manifest
        self.processes = processes
        self.snapshot: Snapshot | None = None
        self.workflows: dict[str, History] = {w.name: History() for w in manifest.workflows}
        self.rows: dict[tuple[str, str], History] = {}
        self.total = History()
        # The `rate` of these points is the CPU in per cent.
        self.generator = History()
        self.errors: dict[ErrorKind, ErrorTrace] = {}
        self.log: deque[LogLine] = deque(maxlen=LOG_LINES)
        # Number of log lines so far, including those that are no longer kept.
        self.logged = 0
        # What the user waits for: `stopping; ...`.
        self.notice = ""
        self.paused: bool = False
        # What the last snapshot said.
        self._seen_paused: bool = False
        self._verdict = "VALID"
        self._failing: set[str] = set()

    @property
    def names(self) -> list[str]:
        """The workflows, as in the file."""
        return [workflow.name for workflow in self.manifest.workflows]

    def planned(self, name: str) -> WorkflowManifest:
        return self.manifest.workflow(name)

    def moment(self, name: str) -> WorkflowSnapshot | None:
        """None before the workflow has started."""
        found = self.snapshot.workflows if self.snapshot is not None else ()
        return next((workflow for workflow in found if workflow.name == name), None)

    def note(self, text: str, style: Style = "plain") -> None:
        """Adds a line to the log pane."""
        for line in text.splitlines() or [""]:
            self.log.append(LogLine(line, style))
            self.logged += 1

    def feed(self, snapshot: Snapshot) -> None:
        paused = any(workflow.paused for workflow in snapshot.workflows)
        if paused is not self._seen_paused:
            # Somebody else may have changed it. Until the snapshots follow, the own key counts.
            self._seen_paused = self.paused = paused
        self.snapshot = snapshot
        running = [workflow for workflow in snapshot.workflows if not workflow.ended]
        for workflow in running:
            self.workflows.setdefault(workflow.name, History()).add(_workflow_point(workflow))
            for row in workflow.rows:
                self.rows.setdefault((workflow.name, row.name), History()).add(_row_point(row))
        self.total.add(_total(running))
        self.generator.add(Point(rate=snapshot.cpu * 100.0))
        self._trace_errors(snapshot)
        self._note_events(snapshot)

    def _trace_errors(self, snapshot: Snapshot) -> None:
        seen: set[ErrorKind] = set()
        for workflow in snapshot.workflows:
            for line in workflow.errors:
                kind = (workflow.name, line.row, line.reason)
                seen.add(kind)
                trace = self.errors.setdefault(kind, ErrorTrace())
                trace.per_second.append(float(max(line.count - trace.count, 0)))
                trace.count = line.count
        for error in snapshot.new_errors:
            kind = (error.workflow, error.row, error.reason)
            trace = self.errors.setdefault(kind, ErrorTrace())
            trace.location = trace.location or error.location.partition(" in ")[0]
        surplus = [kind for kind in self.errors if kind not in seen]
        for kind in surplus[: max(len(self.errors) - _TRACES, 0)]:
            del self.errors[kind]

    def _note_events(self, snapshot: Snapshot) -> None:
        now = clock(round(snapshot.elapsed_s))
        if snapshot.verdict != self._verdict:
            self._verdict = snapshot.verdict
            why = f": {snapshot.reasons[0]}" if snapshot.reasons else " again"
            self.note(f"{now} {snapshot.verdict}{why}", VERDICT_STYLES[snapshot.verdict])
        failing = [state for state in snapshot.thresholds if state.condition == "failing"]
        for state in failing:
            if state.expression not in self._failing:
                value = judged(state.value, state.unit, state.limit)
                self.note(f"{now} {state.expression} is failing: {value}", "bad")
        self._failing = {state.expression for state in failing}
        for error in snapshot.new_errors[:_NEW_ERRORS]:
            at = error.location.partition(" in ")[0]
            where = f" at {at}" if at else ""
            self.note(f"{now} {error.row}: {error.reason}{where} (first)", "warn")


def _workflow_point(workflow: WorkflowSnapshot) -> Point:
    known = workflow.samples_now > 0
    return Point(
        rate=workflow.rate_now_per_s,
        failed=workflow.failed_now_share * workflow.executions_now_per_s,
        target=workflow.target_per_s,
        p50=workflow.p50_now_s if known else None,
        p95=workflow.p95_now_s if known else None,
        p99=workflow.p99_now_s if known else None,
        users=float(workflow.users),
    )


def _row_point(row: RowSnapshot) -> Point:
    known = row.samples_now > 0
    return Point(
        rate=row.rate_now_per_s,
        failed=float(row.failed_now),
        p50=row.p50_now_s if known else None,
        p95=row.p95_now_s if known else None,
        p99=row.p99_now_s if known else None,
    )


def _total(workflows: Sequence[WorkflowSnapshot]) -> Point:
    """The sum over workflows, without percentiles, which cannot be added."""
    targets = [workflow.target_per_s for workflow in workflows]
    planned = [target for target in targets if target is not None]
    return Point(
        rate=sum(workflow.rate_now_per_s for workflow in workflows),
        failed=sum(w.failed_now_share * w.executions_now_per_s for w in workflows),
        target=sum(planned) if planned and len(planned) == len(targets) else None,
        users=float(sum(workflow.users for workflow in workflows)),
    )
