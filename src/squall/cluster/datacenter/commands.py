"""The commands of a datacenter's log. They are facts and decisions of the primary: apply checks
them against the state and stores them, but plans nothing (R3).

Each is compare-and-set on the state or carries the id of its request, so that repeating one
changes nothing (R13). Fields are only ever added, with defaults.

Every command is proposed with `VERSION`, and so only after all members announced that they apply
it (R3). A member of an older version would ignore a field that it does not know, reject a command
that it does not know, and hold another state than the others from there on.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from squall.cluster.datacenter.records import RecordFacts, StopKind
from squall.cluster.protocol.command_outcomes import Accepted as Accepted
from squall.cluster.protocol.command_outcomes import CommandOutcome as CommandOutcome
from squall.cluster.protocol.command_outcomes import Rejected as Rejected
from squall.cluster.protocol.command_outcomes import decode_outcome as decode_outcome
from squall.cluster.protocol.command_outcomes import encode_outcome as encode_outcome
from squall.cluster.protocol.gates.gate_messages import WorkflowAdjustment
from squall.cluster.protocol.gates.handover_keys import GateFence, HandoverNumber
from squall.cluster.protocol.job_commands import ExtendJob as ExtendJob
from squall.cluster.protocol.job_commands import FailJob as FailJob
from squall.cluster.protocol.job_commands import FinishJob as FinishJob
from squall.cluster.protocol.job_commands import LeadJobs as LeadJobs
from squall.cluster.protocol.job_commands import Purge as Purge
from squall.cluster.protocol.job_commands import StopJob as StopJob
from squall.cluster.protocol.job_keys import Attempt, AttemptKey, JobId
from squall.cluster.protocol.job_rules import (
    encoded,
)
from squall.cluster.protocol.submission import Submission
from squall.engine.outcome import WorkflowStatus
from squall.stats.manifest import Profile

CONTEXT_INLINE_MAX = 16 * 1024
VERSION = 3
"""Raise it with every new command, with every new field, and with every change of what apply does
with a command."""


class Configure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="configure"):
    """Sets the length of leases and the id of the group; an empty id leaves it as it is."""

    group: str = ""
    lease_ms: int


class AddWorker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="worker"):
    """Registers a boot of a worker, with the records that its former boot left (R6)."""

    node: str
    boot: str
    cores: int
    pid: int = 0
    host: str = ""
    address: str = ""
    python: str = ""
    version: str = ""
    descriptors: int = 0
    dead_boots: tuple[str, ...] = ()
    """Former boots whose processes the new boot has reaped, or whose kernel is gone (R6)."""
    dead_ms: int = 0
    """By the group clock: when they were dead at the latest; 0: unknown."""
    held: tuple[RecordFacts, ...] = ()


class DrainWorker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="drain"):
    node: str
    draining: bool
    by: str = ""
    within_ms: int | None = None
    """How long its attempts may go on; None: to their end."""


class LoseWorkers(msgspec.Struct, frozen=True, kw_only=True, tag="gone"):
    """Workers that were silent for too long, as (node, boot)."""

    workers: tuple[tuple[str, str], ...]


class ForgetWorkers(msgspec.Struct, frozen=True, kw_only=True, tag="forget"):
    nodes: tuple[str, ...]


class CreateJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="create"):
    principal: str
    key: str
    fingerprint: str
    submission: Submission
    """Without secrets, which are in `sealed`."""
    sealed: bytes = b""
    leader: str = ""
    created_at: float = 0.0
    layers: tuple[tuple[str, ...], ...]
    """The names of the workflows by layer, in the order in which layers run."""
    timeout_ms: int = 0
    """Counts from the creation; 0: the deadline is set when the job is first placed."""
    direct: bool = False
    """The client wants it here although gates hand jobs over to this datacenter."""


class AcceptJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="accept"):
    """Creates a held job for a part of a job of the gates, or stores why it is refused (R15)."""

    gate_job: JobId
    datacenter: str
    handover: HandoverNumber
    fence: GateFence
    create: CreateJob
    """Its principal and key are those of the gates' job: they make no entry in the keys here."""
    refusal: str = ""
    """Why the primary refuses it; "" if it does not."""
    exit_code: int = 0
    is_final: bool = False
    """Another datacenter would refuse it too."""


class StartHeld(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="start_held"):
    """The gates start a held job. Without one it does nothing."""

    gate_job: JobId
    handover: HandoverNumber
    fence: GateFence
    timeout_ms: int = 0
    """From now on; 0: the deadline stays."""


class ReadyHeld(msgspec.Struct, frozen=True, kw_only=True, tag="ready_held"):
    """All shares of the first phase of a held job have loaded their code."""

    job: JobId
    loaded: tuple[Started, ...]


class CancelHeld(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="cancel_held"):
    """The gates cancel a handover, held or started; an unknown one leaves a tombstone."""

    gate_job: JobId
    handover: HandoverNumber
    fence: GateFence
    kind: Literal["cancelled", "timeout", "aborted", "failed"] = "cancelled"
    reason: str = ""
    now: bool = False
    exit_code: int = 0


class AdjustHeld(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="adjust_held"):
    """The load and the extensions of a part, as the gates want them now."""

    gate_job: JobId
    handover: HandoverNumber
    fence: GateFence
    adjust_seq: int
    workflows: tuple[WorkflowAdjustment, ...] = ()
    by: str = ""
    extension_ms: int = 0


class MarkDelivered(msgspec.Struct, frozen=True, kw_only=True, tag="delivered"):
    """The gates have committed the report of this revision."""

    gate_job: JobId
    handover: HandoverNumber
    revision: int
    group: str
    """The gates that answered. An answer of gates that were replaced meanwhile does not count."""


class DisownHeld(msgspec.Struct, frozen=True, kw_only=True, tag="disown"):
    """The gates do not know this handover: it ends, and nothing is reported of it."""

    gate_job: JobId
    handover: HandoverNumber
    group: str
    """The gates that answered."""
    reason: str


class ForgetGated(msgspec.Struct, frozen=True, kw_only=True, tag="forget_gated"):
    """The gates are done with a job: only its highest handover number is kept."""

    gate_job: JobId
    handover: HandoverNumber
    fence: GateFence


class KnowGates(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="gates"):
    """The gates that hand jobs over to this datacenter."""

    group: str
    former: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


class PurgeGated(msgspec.Struct, frozen=True, kw_only=True, tag="purge_gated"):
    """Removes records of forgotten jobs whose day is over."""

    jobs: tuple[JobId, ...]


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
    """The longest time to the end of the job from here, for a job without a deadline."""


class ReturnWorkflows(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="return"):
    """Returns placed workflows to the queue: no attempt of them may start any more. `returned`
    are the attempts that certainly do not run; the others are awaited."""

    job: JobId
    workflows: tuple[str, ...] = ()
    returned: tuple[AttemptKey, ...] = ()
    reason: str = ""


class Started(msgspec.Struct, frozen=True, array_like=True):
    workflow: str
    attempts: tuple[Attempt, ...]
    """The current attempt of share 0, 1, 2 ..."""


class StartWorkflows(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="start"):
    """All shares are ready: the clock of the workflows starts `ahead_ms` after this command."""

    job: JobId
    started: tuple[Started, ...]
    ahead_ms: int = 0


class EndAttempts(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    """Final records arrived, of live attempts or, late, of lost ones (R8)."""

    ended: tuple[RecordFacts, ...]


class LostAttempt(msgspec.Struct, frozen=True, array_like=True):
    key: AttemptKey
    reason: str
    facts: RecordFacts | None = None
    silent_to_s: float = 0.0
    """The latest moment at which it may have made load, on the workflow's clock."""


class LoseAttempts(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    lost: tuple[LostAttempt, ...]


class RefillShares(msgspec.Struct, frozen=True, kw_only=True, tag="refill"):
    """New attempts for the rest of lost shares."""

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
    """Sets the one outcome of workflows, with their contexts; no attempt of them may run."""

    job: JobId
    conclusions: tuple[Conclusion, ...]


class AdjustLoad(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="adjust"):
    job: JobId
    workflows: tuple[str, ...]
    paused: bool | None = None
    rate_per_s: float | None = None
    vus: int | None = None
    by: str = ""
    request_id: str = ""
    """Of the client's request; a command with an id that the job has seen changes nothing."""


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
    | FailJob
    | AdjustLoad
    | ExtendJob
    | LeadJobs
    | FinishJob
    | Purge
    | AcceptJob
    | StartHeld
    | ReadyHeld
    | CancelHeld
    | AdjustHeld
    | MarkDelivered
    | DisownHeld
    | ForgetGated
    | KnowGates
    | PurgeGated
)

_commands = msgspec.msgpack.Decoder(Command)


def encode(command: Command) -> bytes:
    """Encodes a command for `Ledger.submit`; raises `SquallError` if it is too large."""
    return encoded(command, creates=CreateJob)


def decode(body: bytes) -> Command:
    """Raises msgspec's ValueError for anything that is not a command."""
    return _commands.decode(body)
