"""The commands of a datacenter's log. Facts and decisions of the primary, never requests
to decide: apply checks them against the state and stores them.

All but `AdjustLoad` are compare-and-set on the state, so that a repeat is
a no-op. Fields are only ever added, with defaults.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from squall.api.errors import SquallError
from squall.engine.outcome import WorkflowStatus
from squall.nodes.datacenter.records import RecordFacts, StopKind
from squall.nodes.identity import Attempt, AttemptKey, JobId
from squall.nodes.messages import JobState
from squall.nodes.submission import Submission
from squall.stats.manifest import Profile

COMMAND_MAX_BYTES = 256 * 1024
CONTEXT_INLINE_MAX = 16 * 1024
VERSION = 1


class Configure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="configure"):
    """Facts that every grant and every job id rests on. An empty group leaves it."""

    group: str = ""
    lease_ms: int


class AddWorker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="worker"):
    """A boot of a worker, with what its former boot left behind."""

    node: str
    boot: str
    cores: int
    pid: int = 0
    host: str = ""
    address: str = ""
    python: str = ""
    version: str = ""
    descriptors: int = 0
    proven: bool = False
    held: tuple[RecordFacts, ...] = ()


class DrainWorker(msgspec.Struct, frozen=True, kw_only=True, tag="drain"):
    node: str
    draining: bool


class LoseWorkers(msgspec.Struct, frozen=True, kw_only=True, tag="gone"):
    """(node, boot) of workers that were silent too long."""

    workers: tuple[tuple[str, str], ...]


class ForgetWorkers(msgspec.Struct, frozen=True, kw_only=True, tag="forget"):
    nodes: tuple[str, ...]


class CreateJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="create"):
    principal: str
    key: str
    fingerprint: str
    submission: Submission
    """Without secrets."""
    sealed: bytes = b""
    leader: str = ""
    created_at: float = 0.0
    layers: tuple[tuple[str, ...], ...]
    """Names of the workflows, in the order in which layers run."""
    timeout_ms: int = 0
    """From the creation; 0: a limit is set when it is first placed."""


class Assignment(msgspec.Struct, frozen=True, array_like=True):
    share: int
    attempt: Attempt
    node: str
    boot: str
    slot: int
    process: int
    iterations_done: int = 0


class Placement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    workflow: str
    shares: int
    assignments: tuple[Assignment, ...]
    profile: Profile | None = None
    values_blob: str = ""
    values_size: int = 0


class PlaceWorkflows(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="place"):
    """Takes all cores of a phase, or none."""

    job: JobId
    placements: tuple[Placement, ...]
    run_ms: int = 0
    """Longest way to the end of the job from here, for a job without a deadline."""


class ReturnWorkflows(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="return"):
    """Placed workflows go back into the queue: no attempt of them may start any more.
    `returned` are those that certainly do not run; the others are awaited."""

    job: JobId
    workflows: tuple[str, ...] = ()
    returned: tuple[AttemptKey, ...] = ()
    reason: str = ""


class Started(msgspec.Struct, frozen=True, array_like=True):
    workflow: str
    attempts: tuple[Attempt, ...]
    """Of share 0, 1, 2 ..."""


class StartWorkflows(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="start"):
    """All shares are ready: their clock starts so long after this command."""

    job: JobId
    started: tuple[Started, ...]
    ahead_ms: int = 0


class EndAttempts(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """Final records arrived, of live attempts or late of lost ones."""

    ended: tuple[RecordFacts, ...]


class LostAttempt(msgspec.Struct, frozen=True, array_like=True):
    key: AttemptKey
    reason: str
    facts: RecordFacts | None = None
    silent_to_s: float = 0.0
    """On the workflow's clock: the latest moment at which it may have made load."""


class LoseAttempts(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    lost: tuple[LostAttempt, ...]


class RefillShares(msgspec.Struct, frozen=True, kw_only=True, tag="refill"):
    """The rest of lost shares, as new attempts."""

    job: JobId
    workflow: str
    assignments: tuple[Assignment, ...]


class StopWorkflow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="halt"):
    """Ends one workflow before its time; the job goes on."""

    job: JobId
    workflow: str
    kind: StopKind = "failed"
    error: str = ""
    exit_code: int = 0
    now: bool = False


class Conclusion(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    workflow: str
    outcome: WorkflowStatus
    error: str = ""
    exit_code: int = 0
    elapsed_s: float = 0.0
    context: bytes = b""
    context_blob: str = ""
    context_size: int = 0


class ConcludeWorkflows(msgspec.Struct, frozen=True, kw_only=True, tag="conclude"):
    """Their one outcome, with what they hand over; nothing of them may run."""

    job: JobId
    conclusions: tuple[Conclusion, ...]


class StopJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="stop"):
    """Cancelled, timed out, aborted by a threshold, or impossible. The first reason stays;
    `now` may be added later."""

    job: JobId
    kind: Literal["cancelled", "timeout", "aborted", "failed"]
    reason: str
    now: bool = False
    exit_code: int = 0


class AdjustLoad(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="adjust"):
    job: JobId
    workflows: tuple[str, ...]
    paused: bool | None = None
    rate_per_s: float | None = None
    vus: int | None = None
    by: str = ""


class ExtendJob(msgspec.Struct, frozen=True, kw_only=True, tag="extend"):
    """More time; the sum over a job is capped."""

    job: JobId
    by_ms: int
    cap_ms: int


class LeadJobs(msgspec.Struct, frozen=True, kw_only=True, tag="lead"):
    """Other members merge and serve these jobs."""

    leaders: tuple[tuple[JobId, str], ...]


class FinishJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="finish"):
    """The one terminal state."""

    job: JobId
    status: JobState
    reason: str = ""
    exit_code: int = 0
    result: str = ""
    result_size: int = 0
    history: str = ""
    history_size: int = 0
    keep_ms: int = 0


class Purge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="purge"):
    """Jobs and keys whose time is over."""

    jobs: tuple[JobId, ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    key_keep_ms: int = 0


Command = (
    Configure
    | AddWorker
    | DrainWorker
    | LoseWorkers
    | ForgetWorkers
    | CreateJob
    | PlaceWorkflows
    | ReturnWorkflows
    | StartWorkflows
    | EndAttempts
    | LoseAttempts
    | RefillShares
    | StopWorkflow
    | ConcludeWorkflows
    | StopJob
    | AdjustLoad
    | ExtendJob
    | LeadJobs
    | FinishJob
    | Purge
)


class Accepted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="ok"):
    job: JobId = JobId("")
    changed: bool = True
    """False: a repeat; everything was so before."""
    value: int = 0
    """The adjust sequence, or the lease length."""


class Rejected(msgspec.Struct, frozen=True, kw_only=True, tag="no"):
    text: str
    """One line for people."""


Outcome = Accepted | Rejected

_encoder = msgspec.msgpack.Encoder()
_commands = msgspec.msgpack.Decoder(Command)
_outcomes = msgspec.msgpack.Decoder(Outcome)


def encode(command: Command) -> bytes:
    """For `Ledger.submit`; refuses what a log entry cannot hold."""
    body = _encoder.encode(command)
    if len(body) > COMMAND_MAX_BYTES:
        raise SquallError(
            f"a command of {len(body)} bytes exceeds the limit of {COMMAND_MAX_BYTES}; "
            "a job's description must be smaller"
        )
    return body


def decode(body: bytes) -> Command:
    """ValueError (msgspec's) for anything that is not a command."""
    return _commands.decode(body)


def encode_outcome(outcome: Outcome) -> bytes:
    return _encoder.encode(outcome)


def decode_outcome(result: bytes) -> Outcome:
    """What `Committed.result` holds."""
    return _outcomes.decode(result)
