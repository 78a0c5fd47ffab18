"""The records of a datacenter's state: workers, jobs, workflows, attempts.

Records are immutable: a change makes a new one, so that a captured state stays as it was. Times
in `..._ms` are on the group's clock; times in `..._s` are on the workflow's clock.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from squall.cluster.datacenter.workflow_states import WorkflowState
from squall.cluster.protocol.gates.handover_keys import HandoverNumber
from squall.cluster.protocol.job_keys import Attempt, AttemptKey, JobId
from squall.cluster.protocol.job_records import ADJUSTMENTS_MAX as ADJUSTMENTS_MAX
from squall.cluster.protocol.job_records import EVENTS_MAX as EVENTS_MAX
from squall.cluster.protocol.job_records import TERMINAL as TERMINAL
from squall.cluster.protocol.job_records import AdjustEvent as AdjustEvent
from squall.cluster.protocol.job_records import Adjustment as Adjustment
from squall.cluster.protocol.job_records import JobEvent as JobEvent
from squall.cluster.protocol.job_records import KeyEntry as KeyEntry
from squall.cluster.protocol.job_records import StopKind as StopKind
from squall.cluster.protocol.messages import Counters, JobState
from squall.cluster.protocol.submission import Submission
from squall.engine.outcome import WorkflowStatus
from squall.stats.manifest import Profile

AttemptState = Literal["live", "ended", "lost", "returned"]
"""`returned`: it never started, or its worker refused it; it may not run any more."""
HISTORY_MAX = 64


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
    """The sockets that one core process may open; 0: unknown."""
    draining: bool = False
    drain_by_ms: int = 0
    """When its attempts end at the latest because it drains; 0: not before their time."""
    gone: bool = False
    """Silent for so long that none of its attempts can still run; a session revives it."""
    since_ms: int = 0
    """The time of the registration, or of the loss."""
    former: tuple[str, ...] = ()
    """Earlier boots, newest first: none of them may register again."""


class RecordFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts about a stored `AttemptRecord` that managers need without reading it."""

    key: AttemptKey
    digest: str = ""
    """The digest of the durable blob; empty if nothing was ever reported."""
    size: int = 0
    complete: bool = True
    """False: a cut record, the last one that reached a manager or survived a boot."""
    error: str = ""
    cut: str = ""
    """Why it ended before its time; empty for an end by itself."""
    counters: Counters = Counters()
    joined_s: float = 0.0
    silent_from_s: float = 0.0
    elapsed_s: float = 0.0
    fastest_s: float = 0.0
    """The lowest latency of a step; 0 if there was none."""


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
    """It continues a lost share of a running workflow."""
    dead: bool = False
    """A newer boot of its worker proved that it does not run any more (R6)."""
    dead_ms: int = 0
    """By the group clock: when it was dead at the latest; 0: unknown."""
    ended_ms: int = 0
    reason: str = ""
    facts: RecordFacts | None = None
    """The facts of its final record, or of the best cut record that is known."""
    silent_to_s: float = 0.0
    """If it was lost: its death or the end of its last lease, on the workflow's clock."""

    @property
    def counted(self) -> Counters:
        return self.facts.counters if self.facts is not None else Counters()

    def died_at_s(self, started_ms: int) -> float | None:
        """On the clock of its workflow: when it stopped to make load, where a proof or its final
        record tells that."""
        if self.dead_ms and started_ms:
            return max(self.dead_ms - started_ms, 0) / 1000.0
        known = self.facts
        return known.elapsed_s if known is not None and known.complete else None

    @property
    def heard_at_s(self) -> float:
        """On the clock of its workflow: up to when its reports and counters are known."""
        known = self.facts
        return 0.0 if known is None else max(known.silent_from_s, known.joined_s)


class Transition(msgspec.Struct, frozen=True, array_like=True):
    at_ms: int
    state: WorkflowState
    reason: str


class WorkflowRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    layer: int
    state: WorkflowState = WorkflowState.PENDING
    outcome: WorkflowStatus | None = None
    """Set exactly once, when the workflow is over."""
    error: str = ""
    exit_code: int = 0
    profile: Profile | None = None
    """The profile reduced to what the workers can do; None: that of the manifest."""
    shares: int = 0
    """The number of shares of the present placement."""
    cores: tuple[int, ...] = ()
    """The numbers of its core processes."""
    returning: bool = False
    """It is placed, but returns to the queue as soon as none of its attempts may run."""
    stop: StopKind = ""
    """This workflow alone is being stopped, not its job."""
    stop_ms: int = 0
    stop_now: bool = False
    first_placed_ms: int = 0
    """When its wait for the start began, over all placements; 0: not placed yet."""
    placed_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    elapsed_s: float = 0.0
    attempts: int = 0
    lost: int = 0
    values_blob: str = ""
    values_size: int = 0
    context: bytes = b""
    """What it hands over, up to `CONTEXT_INLINE_MAX`; a larger context is in the blob."""
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
    """The wall clock of the manager that accepted it; only shown."""
    state: JobState = "queued"
    workflows: tuple[WorkflowRecord, ...]
    started_ms: int = 0
    """When its first workflow started."""
    deadline_ms: int = 0
    """0: it has none yet."""
    limited: bool = False
    """The client asked for a timeout, which counts from the creation."""
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
    """The digest of its events, once it is over."""
    history_size: int = 0
    adjust_seq: int = 0
    adjustments: tuple[AdjustEvent, ...] = ()
    touched: int = 0
    """The op of the last change that its workers should learn of at once."""
    gate_job: str = ""
    """The job of the gates of which this is a part; "" if a client submitted it here (R15)."""
    handover: HandoverNumber = HandoverNumber(0)
    held: bool = False
    """The gates have not started it: it prepares, but no attempt of it ever got a lease."""
    released_ms: int = 0
    """When the gates started it."""
    undelivered: bool = False
    """The gates do not have its result yet: it is not purged."""
    keep_ms: int = 0
    """Of a gated job that is over: its retention, which starts with the delivery."""

    @property
    def over(self) -> bool:
        return self.state in TERMINAL

    def adjusted_by(self, request_id: str) -> int:
        """The number of the adjustment that a request has made; 0: none that is known."""
        for event in self.adjustments:
            if request_id and event.request_id == request_id:
                return event.adjust_seq
        return 0

    def workflow(self, name: str) -> WorkflowRecord | None:
        for each in self.workflows:
            if each.name == name:
                return each
        return None


class SlotUse(msgspec.Struct, frozen=True, array_like=True):
    """One core of a worker that a job has taken for one or several attempts."""

    job: JobId
    attempts: tuple[AttemptKey, ...]
