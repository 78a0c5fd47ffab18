"""The result that `squall.run(...)` returns, for code and for assertions.

Times are in seconds. An unknown name raises a `KeyError` that lists the known ones, so that a
typo in a test cannot pass as "no errors".
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, NoReturn

from squall.engine.outcome import RunOutcome
from squall.reporting.document.build import build_document
from squall.reporting.text.summary import render_summary
from squall.stats.histogram import Histogram
from squall.stats.thresholds.judge import ThresholdResult
from squall.stats.totals.step_rows import CheckStats, MetricStats, RowStats
from squall.stats.totals.workflow import WorkflowStats


class StepResult:
    """One row of the step table: a step, a named call or the iteration."""

    name: str
    """The name of the row."""
    count: int
    """Finished executions."""
    ok: int
    """Those that succeeded."""
    failed: int
    """Those that failed."""
    interrupted: int
    """Executions that still ran when the grace time was over; not part of `count`."""

    def __init__(self, row: RowStats, rated_s: float) -> None:
        self._row = row
        self._rated_s = rated_s
        self.name = row.name
        self.count = row.count
        self.ok = row.ok
        self.failed = row.failed
        self.interrupted = row.interrupted

    @property
    def rps(self) -> float:
        """Finished executions per second."""
        return self.count / self._rated_s

    @property
    def errors(self) -> dict[str, int]:
        """Failures by reason, the most frequent first."""
        return self._row.reasons

    @property
    def statuses(self) -> dict[str, int]:
        """Answers by HTTP status."""
        return self._row.statuses

    def p(self, percentile: float) -> float:
        """A percentile of the latency: response time where the row has one, else service time."""
        return self._latency.quantile(percentile / 100.0)

    def service_p(self, percentile: float) -> float:
        """A percentile of the service time, which counts from the actual send."""
        return self._row.service.quantile(percentile / 100.0)

    @property
    def mean(self) -> float:
        """The mean latency."""
        return self._latency.mean

    @property
    def min(self) -> float:
        """The lowest latency."""
        return self._latency.min_s

    @property
    def max(self) -> float:
        """The highest latency."""
        return self._latency.max_s

    @cached_property
    def _latency(self) -> Histogram:
        return self._row.latency

    def __repr__(self) -> str:
        return f"<step {self.name}: {self.count} executions, {self.failed} failed>"


class WorkflowResult:
    """One workflow of the run."""

    name: str
    """The name of its class."""
    status: str
    """How it ended, such as `completed`, `failed` or `skipped`."""
    error: str
    """Why it failed or was skipped; empty otherwise."""

    def __init__(self, stats: WorkflowStats, status: str, error: str) -> None:
        self._stats = stats
        self.name = stats.name
        self.status = status
        self.error = error

    def step(self, name: str) -> StepResult:
        """The step, or the call with `name=`, of that name."""
        if name not in self._stats.rows:
            _unknown("step", name, self._stats.rows)
        return StepResult(self._stats.rows[name], self._stats.rated_s)

    @property
    def steps(self) -> list[StepResult]:
        """All rows except the iteration, in the order of the file."""
        return [StepResult(row, self._stats.rated_s) for row in self._stats.rows.values()]

    @property
    def iteration(self) -> StepResult:
        """The row of whole iterations."""
        return StepResult(self._stats.iteration, self._stats.rated_s)

    @property
    def requests(self) -> dict[str, int]:
        """All exchanges: sent, answered, failed, redirects, reconnects, bytes."""
        requests = self._stats.requests
        return {name: getattr(requests, name) for name in requests.__struct_fields__}

    def __repr__(self) -> str:
        return f"<workflow {self.name}: {self.status}>"


class Result:
    """A finished run. `assert result.passed, result.summary` is a complete test."""

    status: str
    """completed, partial, failed, interrupted or timeout."""
    passed: bool
    """True if the run completed and every threshold held; the verdict does not count."""
    verdict: str
    """VALID, DEGRADED or INVALID: whether the numbers can be relied on."""
    reasons: list[str]
    """Why the verdict is not VALID."""
    exit_code: int
    """The exit code that the command would have."""
    thresholds: list[ThresholdResult]
    """Each threshold with its value."""

    def __init__(self, outcome: RunOutcome) -> None:
        self.outcome = outcome
        self.status = outcome.status
        self.passed = outcome.passed
        self.verdict = outcome.verdict.state
        self.reasons = list(outcome.verdict.reasons)
        self.exit_code = int(outcome.exit_code)
        self.thresholds = list(outcome.thresholds)

    def workflow(self, name: str) -> WorkflowResult:
        """The workflow of that name."""
        known = {each.name: each for each in self.outcome.workflows}
        if name not in known:
            _unknown("workflow", name, known)
        each = known[name]
        return WorkflowResult(self.outcome.stats.workflows[name], each.status, each.error)

    @property
    def workflows(self) -> list[WorkflowResult]:
        """All workflows of the run."""
        return [self.workflow(each.name) for each in self.outcome.workflows]

    def step(self, name: str, workflow: str | None = None) -> StepResult:
        """The step of that name; pass `workflow` if several workflows have one."""
        if workflow is not None:
            return self.workflow(workflow).step(name)
        rows = [
            (stats, stats.rows[name])
            for stats in self.outcome.stats.workflows.values()
            if name in stats.rows
        ]
        if len(rows) > 1:
            owners = ", ".join(stats.name for stats, _ in rows)
            raise KeyError(f'step "{name}" is in several workflows: {owners}; give workflow=')
        if not rows:
            everything = self.outcome.stats.workflows.values()
            _unknown("step", name, [row for stats in everything for row in stats.rows])
        stats, row = rows[0]
        return StepResult(row, stats.rated_s)

    @property
    def checks(self) -> dict[str, CheckStats]:
        """Checks by name; also as `Workflow.name` if several workflows have one of that name."""
        return self._by_name("checks")

    @property
    def metrics(self) -> dict[str, MetricStats]:
        """Metrics by name, as `checks`."""
        return self._by_name("metrics")

    @cached_property
    def document(self) -> dict[str, Any]:
        """The results document, as `--json` writes it."""
        return build_document(self.outcome)

    @cached_property
    def summary(self) -> str:
        """The text that the command prints at the end."""
        return render_summary(self.outcome)

    def _by_name(self, kind: str) -> Any:
        found = _Named(kind.removesuffix("s"))
        for stats in self.outcome.stats.workflows.values():
            for name, value in getattr(stats, kind).items():
                found[f"{stats.name}.{name}"] = value
                found.setdefault(name, value)
        return found

    def __repr__(self) -> str:
        state = "passed" if self.passed else "failed"
        return f"<Result {state}, {self.verdict}, exit code {self.exit_code}>"


class _Named(dict[str, Any]):
    """A dict whose `KeyError` lists the known names."""

    def __init__(self, noun: str) -> None:
        super().__init__()
        self._noun = noun

    def __missing__(self, name: str) -> NoReturn:
        _unknown(self._noun, name, self)


def _unknown(noun: str, name: str, known: Iterable[str]) -> NoReturn:
    names = ", ".join(sorted(set(known))) or "none"
    raise KeyError(f'no {noun} "{name}"; known: {names}')
