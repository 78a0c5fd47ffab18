"""What the log of a datacenter says: workers, jobs, workflows, attempts.

Plain immutable records. Whoever changes one makes a new one, so that a captured state
stays as it was. Times are group milliseconds; seconds are durations on a workflow's own
clock. Nothing here decides anything.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from squall.engine.outcome import WorkflowStatus
from squall.nodes.datacenter.states import WorkflowState
from squall.nodes.identity import Attempt, AttemptKey, JobId
from squall.nodes.messages import Counters, JobState
from squall.nodes.submission import Submission
from squall.stats.manifest import Profile

TERMINAL: tuple[JobState, ...] = ("completed", "partial", "failed", "cancelled", "timeout")
StopKind = Literal["", "cancelled", "timeout", "aborted", "failed"]
"""Why a job is being ended before its time; "" while it is not."""
AttemptState = Literal["live", "ended", "lost", "returned"]
"""`returned`: it never got a Go, or the worker refused it; it may not run any more."""
EVENTS_MAX = 400
"""Per job: the first and the last matter; those between are counted and dropped."""
HISTORY_MAX = 64
ADJUSTMENTS_MAX = 200


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    node: str
    boot: str
    cores: int
    pid: int = 0
    host: str = ""
    address: str = ""
    python: str = ""
    version: str = ""
    descriptors: int = 0
    """Sockets that one of its core processes may open; 0: unknown."""
    draining: bool = False
    gone: bool = False
    """Silent for so long that nothing of it may run; a session brings it back."""
    since_ms: int = 0
    """Of the registration, or of the loss."""
    former: tuple[str, ...] = ()
    """Earlier boots, the newest first: none of them may register again."""


class RecordFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the managers must know of a stored `AttemptRecord` without opening it."""

    key: AttemptKey
    digest: str = ""
    """Of the durable blob; empty when nothing was ever reported."""
    size: int = 0
    complete: bool = True
    """False: a cut, the last cumulative state that reached a manager or survived a boot."""
    error: str = ""
    cut: str = ""
    """Why it ended before its time; empty for an end by itself."""
    counters: Counters = Counters()
    joined_s: float = 0.0
    silent_from_s: float = 0.0
    elapsed_s: float = 0.0
    fastest_s: float = 0.0
    """Lowest step latency seen; 0 when there was none."""


class AttemptFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at a share, from its placement to its end."""

    number: Attempt
    node: str
    boot: str
    slot: int
    process: int
    state: AttemptState = "live"
    created_ms: int
    lease_ms: int
    """The longest lease in force since it was created."""
    iterations_done: int = 0
    refill: bool = False
    """It continues a share of a running workflow."""
    dead: bool = False
    """A newer boot of its worker proved that nothing of it runs."""
    ended_ms: int = 0
    reason: str = ""
    facts: RecordFacts | None = None
    """Its final record, or the best cut that is known."""
    silent_to_s: float = 0.0
    """Lost: the end of its last lease, on the workflow's clock."""

    @property
    def counted(self) -> Counters:
        return self.facts.counters if self.facts is not None else Counters()


class Transition(msgspec.Struct, frozen=True, array_like=True):
    at_ms: int
    state: WorkflowState
    reason: str


class Adjustment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The latest wishes for a workflow's load."""

    adjust_seq: int = 0
    paused: bool = False
    rate_per_s: float | None = None
    vus: int | None = None


class AdjustEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of the load, as it was asked for."""

    at_ms: int
    workflow: str
    paused: bool | None = None
    rate_per_s: float | None = None
    vus: int | None = None
    by: str = ""


class WorkflowRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    layer: int
    state: WorkflowState = WorkflowState.PENDING
    outcome: WorkflowStatus | None = None
    """Set exactly once; the workflow is over then."""
    error: str = ""
    exit_code: int = 0
    profile: Profile | None = None
    """Fitted to the workers; None: the manifest's."""
    shares: int = 0
    """Of the present placement."""
    cores: tuple[int, ...] = ()
    """Numbers of its core processes."""
    returning: bool = False
    """Placed, but to be queued again as soon as none of its attempts may run."""
    stop: StopKind = ""
    """Only this workflow is being ended."""
    stop_ms: int = 0
    stop_now: bool = False
    first_placed_ms: int = 0
    """Since when it waits for its start, over all placements; 0: not placed yet."""
    placed_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    elapsed_s: float = 0.0
    attempts: int = 0
    lost: int = 0
    values_blob: str = ""
    values_size: int = 0
    context: bytes = b""
    """What it hands over, up to `CONTEXT_INLINE_MAX`; else the blob holds it."""
    context_blob: str = ""
    context_size: int = 0
    adjustment: Adjustment = Adjustment()
    history: tuple[Transition, ...] = ()

    @property
    def over(self) -> bool:
        return self.outcome is not None

    @property
    def placed(self) -> bool:
        return self.state is WorkflowState.DISPATCHED

    @property
    def running(self) -> bool:
        return self.started_ms > 0 and not self.over


class JobRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    job: JobId
    op: int
    principal: str
    key: str
    fingerprint: str
    submission: Submission
    sealed: bytes = b""
    """The author's secrets, encrypted; `submission.options` holds none."""
    leader: str = ""
    created_ms: int
    created_at: float = 0.0
    """Wall clock of the manager that accepted it: for people."""
    state: JobState = "queued"
    workflows: tuple[WorkflowRecord, ...]
    started_ms: int = 0
    """Of its first workflow."""
    deadline_ms: int = 0
    """0: it has none yet."""
    limited: bool = False
    """Its deadline was asked for, and counts from its creation."""
    extension_ms: int = 0
    stop: StopKind = ""
    stop_ms: int = 0
    stop_now: bool = False
    reason: str = ""
    exit_code: int = 0
    ended_ms: int = 0
    purge_ms: int = 0
    result: str = ""
    result_size: int = 0
    history: str = ""
    """Digest of its events, once terminal."""
    history_size: int = 0
    adjust_seq: int = 0
    adjustments: tuple[AdjustEvent, ...] = ()
    touched: int = 0
    """The op of the last change that its workers should hear of at once."""

    @property
    def over(self) -> bool:
        return self.state in TERMINAL

    def workflow(self, name: str) -> WorkflowRecord | None:
        for each in self.workflows:
            if each.name == name:
                return each
        return None


class KeyEntry(msgspec.Struct, frozen=True, array_like=True):
    """What a client's key made; kept for a day longer than the job."""

    fingerprint: str
    job: JobId
    expires_ms: int = 0
    """0 while the job exists."""


class SlotUse(msgspec.Struct, frozen=True, array_like=True):
    """One core of a worker, taken by one job for one or several attempts."""

    job: JobId
    attempts: tuple[AttemptKey, ...]


class JobEvent(msgspec.Struct, frozen=True, array_like=True):
    at_ms: int
    text: str
