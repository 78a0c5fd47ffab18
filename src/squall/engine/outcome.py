"""The outcome of a run: all that reports, the exit code and `squall.run` need."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from squall.api.errors import ExitCode
from squall.stats.manifest import FileManifest

if TYPE_CHECKING:
    from squall.stats.run import RunStats
    from squall.stats.thresholds import ThresholdResult
    from squall.stats.verdict import Verdict

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
    """Why the process ended before the run did; empty when it did not."""


@dataclass(kw_only=True)
class Loss:
    """Load that was planned for a process that died, from its last report on."""

    process: int
    workflow: str
    at_s: float
    """On the run's clock, when the death was noticed."""
    reason: str
    users: int
    """Users that stopped with it (those ready at the start)."""
    starts: int | None = None
    """Planned starts that nobody made; None where the model does not plan them."""


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

    @property
    def passed(self) -> bool:
        return self.status == "completed" and all(t.passed for t in self.thresholds)

    @property
    def exit_code(self) -> ExitCode:
        """Interrupted, then an invalid measurement, then failed code, then thresholds."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        if self.aborted_by:
            return ExitCode.THRESHOLDS
        if self.verdict.state == "INVALID":
            return ExitCode.INVALID
        if self.status in ("failed", "partial"):
            return ExitCode.AUTHOR
        if not all(threshold.passed for threshold in self.thresholds):
            return ExitCode.THRESHOLDS
        return ExitCode.PASSED
