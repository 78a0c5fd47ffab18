"""The commands of the gates' log. They are facts and decisions of the primary gate: apply checks
them against the state and stores them, but plans nothing (R3).

Each is compare-and-set on the state or carries the id of its request, so that repeating one
changes nothing (R13). Fields are only ever added, with defaults.
"""

from __future__ import annotations

import msgspec

from squall.cluster.protocol.gates.gate_messages import PartState
from squall.cluster.protocol.gates.handover_keys import HandoverNumber
from squall.cluster.protocol.job_commands import (
    ExtendJob,
    FailJob,
    FinishJob,
    LeadJobs,
    Purge,
    StopJob,
)
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.job_rules import (
    encoded,
)
from squall.cluster.protocol.messages import JobState
from squall.cluster.protocol.submission import Submission

VERSION = 1
"""Raise it with every new command, with every new field, and with every change of what apply does
with a command."""


class ConfigureGates(msgspec.Struct, frozen=True, kw_only=True, tag="configure"):
    """Names the group; its jobs are named after it."""

    group: str


class KnowDatacenters(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="datacenters"
):
    """The managers of datacenters, as (name, host:port of each); a datacenter without managers is
    removed once no part is there."""

    datacenters: tuple[tuple[str, tuple[str, ...]], ...]


class PartChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The datacenter that gets a part."""

    part: int
    datacenter: str
    handover: HandoverNumber
    """The next number of the part: see `Tables.next_handover`."""
    why: str = ""


class CreateGateJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="create"):
    """Creates a job with its parts. If `choices` names a datacenter for every part and the job may
    reserve there, the parts are assigned in the same command; otherwise the job waits in the
    queue."""

    principal: str
    key: str
    fingerprint: str
    submission: Submission
    """Without secrets, which are in `sealed`."""
    sealed: bytes = b""
    leader: str = ""
    created_at: float = 0.0
    timeout_ms: int = 0
    """Counts from the creation; 0: the deadline is set when the job starts."""
    weights: tuple[float, ...]
    """Of its parts; they sum to 1."""
    choices: tuple[PartChoice, ...] = ()


class AssignParts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="assign"):
    """Assigned(e): gives parts to datacenters, all or none. It records Cancel for the try that a
    part had before."""

    job: JobId
    choices: tuple[PartChoice, ...]


class PartFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a datacenter reported about a part."""

    job: JobId
    datacenter: str
    handover: HandoverNumber
    state: PartState
    revision: int
    reason: str = ""
    exit_code: int = 0
    is_final: bool = False
    outcome: JobState | None = None
    result: str = ""
    result_size: int = 0


class ReportParts(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """Accepted(e), Refused(e), Result(e) and the progress between, as datacenters report it."""

    reports: tuple[PartFacts, ...]


class StartParts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="start"):
    """Started(e) of all parts of a job, in one command: no part starts without the others."""

    job: JobId
    handovers: tuple[HandoverNumber, ...]
    """The current one of part 0, 1, 2 ..."""
    run_ms: int = 0
    """The longest time to the end of the job from here, for a job without a deadline."""


class QueueAgain(msgspec.Struct, frozen=True, kw_only=True, tag="again"):
    """A part was not ready in time: cancels every try of the job, so that the other datacenters
    free their cores, and returns the job to the gates' queue."""

    job: JobId
    reason: str


class LosePart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="lost"):
    """Lost(e): the gates stop waiting for the result of a started part and count their own record
    of it instead."""

    job: JobId
    part: int
    handover: HandoverNumber
    reason: str
    result: str = ""
    result_size: int = 0


class PartLoad(msgspec.Struct, frozen=True, array_like=True):
    """The load of one part after an adjustment; None: unchanged."""

    rate_per_s: float | None = None
    vus: int | None = None


class AdjustParts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="adjust"):
    """Changes the load of workflows, as the primary gate divided it among the parts."""

    job: JobId
    workflows: tuple[str, ...]
    paused: bool | None = None
    rate_per_s: float | None = None
    vus: int | None = None
    parts: tuple[PartLoad, ...] = ()
    """One for each part of the job."""
    by: str = ""
    request_id: str = ""
    """Of the client's request; a command with an id that the job has seen changes nothing."""


class ForgetTries(msgspec.Struct, frozen=True, kw_only=True, tag="forgotten"):
    """Records which datacenters acknowledged that they forgot a job, as (job, datacenter)."""

    forgotten: tuple[tuple[JobId, str], ...]


GateCommand = (
    ConfigureGates
    | KnowDatacenters
    | CreateGateJob
    | AssignParts
    | ReportParts
    | StartParts
    | QueueAgain
    | LosePart
    | AdjustParts
    | ForgetTries
    | StopJob
    | FailJob
    | ExtendJob
    | LeadJobs
    | FinishJob
    | Purge
)

_commands = msgspec.msgpack.Decoder(GateCommand)


def encode(command: GateCommand) -> bytes:
    """Encodes a command for `Ledger.submit`; raises `SquallError` if it is too large."""
    return encoded(command, creates=CreateGateJob)


def decode(body: bytes) -> GateCommand:
    """Raises msgspec's ValueError for anything that is not a command."""
    return _commands.decode(body)
