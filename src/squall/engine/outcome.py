"""The outcome of a run: everything that reports, the exit code and `squall.run` need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from squall.api.errors import ExitCode
from squall.stats.manifest import FileManifest

if TYPE_CHECKING:
    from squall.stats.thresholds.judge import ThresholdResult
    from squall.stats.totals.run import RunStats
    from squall.stats.verdict import Verdict


def timeout_text(timeout_s: float) -> str:
    """The reason of the verdict on a run that its timeout ended."""
    return f"timeout after {timeout_s:g} s"


WorkflowStatus = Literal["completed", "failed", "skipped", "interrupted", "timeout"]
RunStatus = Literal["completed", "partial", "failed", "interrupted", "timeout"]


@dataclass(kw_only=True)
class WorkflowOutcome:
    name: str
    status: WorkflowStatus
    error: str = ""
    """One line: why it failed or was skipped."""
    started_at_s: float = 0.0
    """Seconds after the start of the run."""
    elapsed_s: float = 0.0
    """From the workflow's clock start to its last finished iteration."""
    cores: tuple[int, ...] = ()


@dataclass(kw_only=True)
class ProcessInfo:
    index: int
    pid: int
    died: str = ""
    """Why the process ended before the run; empty if it did not."""
    worker: str = ""
    """On which worker of a cluster; empty on one machine."""


def cores_at_once(processes: Iterable[ProcessInfo], workflows: Iterable[WorkflowOutcome]) -> int:
    """The most cores that made load at the same time. On a cluster a dead process is replaced by
    one with another number, which uses no core more."""
    alive = {each.index for each in processes if not (each.died and each.worker)}
    placed = {core for workflow in workflows for core in workflow.cores}
    return max(len(alive), len(placed))


@dataclass(kw_only=True)
class Loss:
    """The load that a lost process or worker did not make: from its last report until another
    took over, or until the end."""

    process: int
    workflow: str
    at_s: float
    """On the run's clock: when it died."""
    reason: str
    users: int
    """Users that stopped with it, of those that were ready at the start."""
    starts: int | None = None
    """Planned starts that no report covers; None if the model plans none."""
    worker: str = ""
    """The worker of a cluster; empty on one machine, where `process` identifies the loss."""
    share: int = 0
    attempt: int = 1
    cut_at_s: float | None = None
    """On the workflow's clock: its reports count up to here. None outside a cluster."""
    below_target_s: float = 0.0
    """How long its part of the load was missing."""
    refilled_by: str = ""
    """The worker that continued the share; empty if none did."""
    iterations: int | None = None
    """Planned iterations that are missing at the end, if their number is planned."""
    unknown_requests: int = 0
    """Between 0 and this many requests may have been sent without being counted."""
    unknown_iterations: int = 0
    is_estimate: bool = False
    """The unknown numbers are derived from how fast users can send, not from a plan of starts."""
    rows: int = 0
    """Feed rows that were given to iterations which did not finish."""
    is_last_heard: bool = False
    """Nothing tells when it died; `at_s` is when it was last heard."""
    datacenter: str = ""
    """In a run of several datacenters: its name. Without a worker, all of it was lost."""


@dataclass(kw_only=True)
class RunInfo:
    id: str
    squall: str
    python: str
    command: tuple[str, ...]
    git: str
    seed: int
    tags: dict[str, str]
    cores: int
    os: str
    memory_mb: int
    started_at: datetime
    warmup_s: float = 0.0


@dataclass(kw_only=True)
class DatacenterOutcome:
    """The part of one datacenter in a run of several."""

    name: str
    part: float
    """Its share of the load, from 0 to 1."""
    tries: int
    """How often the part was handed over until it ran."""
    state: str
    """The terminal state of its job, or `lost`."""
    reason: str
    stats: RunStats
    verdict: Verdict
    losses: list[Loss]
    elapsed_s: float
    later_s: float = 0.0
    """How long after the first datacenter it began, by the clocks of the datacenters."""


@dataclass(kw_only=True)
class RunOutcome:
    manifest: FileManifest
    stats: RunStats
    thresholds: list[ThresholdResult]
    verdict: Verdict
    status: RunStatus
    workflows: list[WorkflowOutcome]
    processes: list[ProcessInfo]
    info: RunInfo
    elapsed_s: float
    parent_cpu: float = 0.0
    """CPU of the parent process as a share of one core while load ran."""
    interrupted: bool = False
    aborted_by: str = ""
    """The threshold that ended the run, if one did."""
    losses: list[Loss] = field(default_factory=list[Loss])
    notes: list[str] = field(default_factory=list[str])
    datacenters: list[DatacenterOutcome] = field(default_factory=list[DatacenterOutcome])
    """Empty unless several datacenters ran it."""

    @property
    def passed(self) -> bool:
        return self.status == "completed" and all(t.passed for t in self.thresholds)

    @property
    def exit_code(self) -> ExitCode:
        """The first that applies: interrupted, aborted by a threshold, an invalid measurement,
        failed code, failed thresholds."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        if self.aborted_by:
            return ExitCode.THRESHOLDS
        if self.verdict.state == "INVALID" or self.status == "timeout":
            return ExitCode.INVALID
        if self.status in ("failed", "partial"):
            return ExitCode.AUTHOR
        if not all(threshold.passed for threshold in self.thresholds):
            return ExitCode.THRESHOLDS
        return ExitCode.PASSED
