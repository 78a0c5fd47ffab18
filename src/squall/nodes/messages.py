"""The messages between worker, manager and client. Numbers 100 to 139: sessions; 140 to
189: clients; the group's own replication uses numbers from 200 on.

The session is desired state against actual state: a worker tells every second all that it
runs or holds, the answer says all that it should do. Any message may be lost or repeated:
everything is told again with the next one. Absence never means stop.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from squall.engine.options import RunOptions
from squall.engine.protocol import Line, ShareSpec
from squall.nodes.identity import AttemptKey, JobId
from squall.nodes.submission import Submission
from squall.stats.manifest import FileManifest
from squall.stats.reports import ErrorSample, HealthReport, WindowReport
from squall.stats.snapshot import Snapshot
from squall.wire.catalogue import SizeClass, message
from squall.wire.header import MessageClass
from squall.wire.roles import Role

FROM_WORKER = (Role.WORKER, Role.NODE)
FROM_CLIENT = (Role.CLIENT, Role.NODE)

Phase = Literal["preparing", "ready", "running", "ended", "refused", "unknown"]
"""`ended`: its record is in the worker's outbox. `unknown`: the worker never had it, or
no longer; a tombstone makes sure that it never will."""


class Counters(msgspec.Struct, frozen=True, array_like=True):
    """Cumulative, of one attempt."""

    planned: int = 0
    made: int = 0
    finished: int = 0
    """Iterations that ended, counted or interrupted."""
    sent: int = 0
    answered: int = 0
    failed: int = 0
    users: int = 0
    actions: int = 0
    """Executed steps: what progress means."""


class AttemptStatus(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    key: AttemptKey
    phase: Phase
    counters: Counters = Counters()
    elapsed_s: float = 0.0
    """On the workflow's clock."""
    adjust_seq: int = 0
    """The last adjustment in force."""
    text: str = ""
    """Refused: the one line that says why. Running: why nothing is executed, where its
    worker can tell. Ended: the record's cut or error."""
    exit_code: int = 0
    retryable: bool = False
    """Refused: another worker, or a later time, may do (no core, disk full)."""
    record: str = ""
    """Ended: digest of the record's blob."""
    record_size: int = 0
    work: int = 0
    """Preparing: how far it is, a count that only rises (bytes and steps)."""
    wants_more_s: bool = False
    """Preparing: it will not be ready in time and asks for longer."""


class HeldRecord(msgspec.Struct, frozen=True, array_like=True):
    """A record that a former boot left behind: complete, or its last cumulative state."""

    key: AttemptKey
    digest: str
    size: int
    complete: bool


@message(100, MessageClass.CONTROL, senders=FROM_WORKER)
class RegisterWorker(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Once per boot, again until it is answered. `proven`: every process of the former
    boot of this node is dead for certain."""

    node: str
    boot: str
    datacenter: str
    cores: int
    pid: int
    host: str
    address: str = ""
    python: str = ""
    version: str = ""
    descriptors: int = 0
    proven: bool = False
    held: list[HeldRecord] = []
    relay: bool = False
    """The sender cannot reach the primary: whoever gets this asks it."""


@message(101, MessageClass.CONTROL)
class Registered(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    refused: str = ""
    """A clear line: wrong datacenter, a newer boot exists, wrong version."""
    lease_s: float = 0.0
    interval_s: float = 1.0


@message(102, MessageClass.CONTROL, senders=FROM_WORKER)
class SessionRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    node: str
    boot: str
    sequence: int
    round_trip_s: float = 0.0
    """Of the previous request."""
    draining: bool = False
    attempts: list[AttemptStatus] = []
    relay: bool = False
    """The sender cannot reach the primary: whoever gets this asks it."""


class JobBrief(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What all preparations of a job have in common."""

    job: JobId
    bundle: str
    bundle_size: int
    entry: str
    requirements: tuple[str, ...] = ()
    python: str = ""
    options: RunOptions
    on_control_loss: str = "stop"


class SpecValues(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What other workflows hand over to a share: `values` and `received` of its spec."""

    values: dict[str, bytes] = {}
    received: dict[str, bytes] = {}


class Preparation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    key: AttemptKey
    spec: ShareSpec
    slot: int
    """Which of the worker's cores, from 0; several shares of one job may name the same."""
    process: int
    """Number of its core process in the whole job: for health reports."""
    values_blob: str = ""
    """Digest of `SpecValues`, when the values of the spec are too large to travel in it."""
    values_size: int = 0
    iterations_done: int = 0
    """Made by earlier attempts; the stripe of feeds and ids continues after them."""
    timeout_s: float = 0.0
    """Longest execution from Go on."""
    ready_within_s: float = 0.0
    """Then the preparation is given up, unless it is extended; 0: nobody counts."""


class MoreTime(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The answer to a preparation that asked for longer."""

    key: AttemptKey
    granted_s: float = 0.0
    left: int = 0
    """How often it may ask again."""
    denial: str = ""
    is_warning: bool = False
    """The next grant is the last one."""
    grace_left_s: float = 0.0
    """There is none left: until it is given up."""


class GoOrder(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Only in the answer to a request whose round trip is under half a second."""

    key: AttemptKey
    elapsed_s: float
    """Of the workflow, when the answer was made."""
    run_elapsed_s: float
    """Since the job's first workflow started, when the answer was made."""


class StopOrder(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    key: AttemptKey
    now: bool = False
    """False: let iterations end within their grace; True: cancel what runs."""
    drop: bool = False
    """Superseded, lost or of an unknown job: its record is of no use to anyone."""
    why: str = ""


class AdjustOrder(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The desired load of a job's workflow; the newest `adjust_seq` wins."""

    job: JobId
    workflow: str
    adjust_seq: int
    paused: bool = False
    rate_per_s: float | None = None
    """Of the whole workflow; None leaves the plan's."""
    vus: int | None = None


@message(103, MessageClass.CONTROL)
class SessionAnswer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    epoch: int
    view: int
    committed: int
    """Op number: a worker ignores answers below what it has seen."""
    sequence: int
    """Of the request that this answers."""
    register: bool = False
    """This boot is not registered: register first."""
    lease_s: float = 0.0
    granted: list[AttemptKey] = []
    """May run for `lease_s`, counted from the moment the request was sent."""
    jobs: list[JobBrief] = []
    prepare: list[Preparation] = []
    go: list[GoOrder] = []
    stop: list[StopOrder] = []
    adjust: list[AdjustOrder] = []
    free: list[AttemptKey] = []
    """Their records are committed or of no use: the outbox forgets them."""
    more_time: list[MoreTime] = []
    interval_s: float = 1.0
    telemetry_interval_s: float = 1.0
    drained: bool = False


@message(104, MessageClass.CONTROL)
class SessionPush(msgspec.Struct, frozen=True):
    """Something changed for this worker: send a session request now."""


class TelemetryPart(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Of one attempt: everything after `after`, up to `upto`."""

    key: AttemptKey
    after: int
    """The sequence that the receiver last acknowledged; 0: the whole record."""
    upto: int
    joined_s: float = 0.0
    reports: list[WindowReport] = []
    health: list[HealthReport] = []
    errors: list[ErrorSample] = []
    lines: list[Line] = []
    """What the author printed since the last part; best effort."""
    width_s: int = 1
    """Seconds in a window; more in a whole record whose seconds are not apart any more."""
    silent_from_s: float = 0.0
    """Of a whole record: up to where its reports cover the workflow's time."""


@message(105, MessageClass.TELEMETRY, size=SizeClass.BULK, senders=FROM_WORKER, light=True)
class Telemetry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    node: str
    boot: str
    parts: list[TelemetryPart]
    relay: bool = False
    """The sender cannot reach the job's leader: whoever gets this passes it on."""


@message(106, MessageClass.TELEMETRY)
class TelemetryAck(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    acks: list[tuple[AttemptKey, int]] = []
    """Everything up to this sequence has been added; 0: send the whole record."""
    interval_s: float = 1.0
    elsewhere: dict[JobId, str] = {}
    """Jobs that another manager leads, with its host:port: nothing of them was added here."""


@message(107, MessageClass.DATA, size=SizeClass.BULK, senders=(Role.WORKER, Role.CLIENT, Role.NODE))
class OfferBlob(msgspec.Struct, frozen=True):
    """The sender holds this; the receiver pulls it over the same link, then answers."""

    blob: str
    size: int


@message(108, MessageClass.DATA, size=SizeClass.BULK)
class BlobHeld(msgspec.Struct, frozen=True):
    blob: str


# Clients.

JobState = Literal[
    "queued",
    "preparing",
    "running",
    "stopping",
    "completing",
    "completed",
    "partial",
    "failed",
    "cancelled",
    "timeout",
]
"""The last five are terminal. `stopping`: cancelled, aborted or timed out, not yet over."""


class WorkflowView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    name: str
    state: str
    layer: int = 0
    cores: int = 0
    attempts: int = 0
    lost: int = 0
    error: str = ""
    adjusted: str = ""
    """What people changed of its load, while it runs: "paused", "300/s", "20 users"."""


class JobView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A job as people see it."""

    job: JobId
    state: JobState
    file: str
    principal: str = ""
    key: str = ""
    created_at: float = 0.0
    """Wall clock of the manager that created it: for people."""
    age_s: float = 0.0
    elapsed_s: float = 0.0
    leader: str = ""
    position: int = 0
    """In the queue, from 1; 0 when it does not wait."""
    workflows: list[WorkflowView] = []
    reason: str = ""
    """Why it ended or is ending: "cancelled by ann", "timeout after 70 s"."""
    exit_code: int = 0
    result: str = ""
    """Digest of the result, once terminal."""
    result_size: int = 0
    silent: list[str] = []
    """A line for each worker that runs a part of it and is not heard."""


@message(140, MessageClass.DISPATCH, size=SizeClass.BULK, senders=FROM_CLIENT)
class SubmitJob(msgspec.Struct, frozen=True):
    key: str
    submission: Submission


@message(141, MessageClass.DISPATCH)
class JobAccepted(msgspec.Struct, frozen=True):
    job: JobId
    created: bool
    """False: this key made the job before."""


@message(142, MessageClass.DATA, senders=FROM_CLIENT)
class ListJobs(msgspec.Struct, frozen=True, omit_defaults=True):
    limit: int = 100


@message(143, MessageClass.DATA, size=SizeClass.BULK)
class JobList(msgspec.Struct, frozen=True):
    jobs: list[JobView]


@message(144, MessageClass.DATA, senders=FROM_CLIENT)
class GetJob(msgspec.Struct, frozen=True):
    job: JobId


@message(145, MessageClass.DATA)
class JobStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    view: JobView
    manifest: FileManifest | None = None
    """What the job's file holds: for whoever watches a job that another submitted."""


@message(146, MessageClass.CONTROL, senders=FROM_CLIENT)
class CancelJob(msgspec.Struct, frozen=True, omit_defaults=True):
    job: JobId
    now: bool = False
    """Cancel what runs instead of letting iterations end."""


@message(147, MessageClass.CONTROL)
class CancelAccepted(msgspec.Struct, frozen=True, omit_defaults=True):
    state: JobState
    repeated: bool = False
    """It was cancelled or over before."""


@message(148, MessageClass.CONTROL, senders=FROM_CLIENT)
class AdjustJob(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    job: JobId
    workflow: str = ""
    """Empty: the only test workflow, or all of them for pause and resume."""
    paused: bool | None = None
    rate_per_s: float | None = None
    vus: int | None = None
    extend_s: float | None = None
    """So much time beyond the job's timeout in all, within its cap."""


@message(149, MessageClass.CONTROL)
class Adjusted(msgspec.Struct, frozen=True, omit_defaults=True):
    adjust_seq: int = 0
    """0: the load was not changed."""
    extended_s: float = 0.0


@message(150, MessageClass.DATA, senders=FROM_CLIENT)
class WhyJob(msgspec.Struct, frozen=True):
    job: JobId


@message(151, MessageClass.DATA)
class Explanation(msgspec.Struct, frozen=True):
    """Where the job is, who leads it, what it waits for: lines for people."""

    lines: list[str]
    events: list[str] = []


class NodeView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    name: str
    role: Literal["manager", "worker"]
    address: str
    pid: int
    state: str
    boot: str
    cores: int = 0
    free: int = 0
    heard_s: float = 0.0
    """Seconds since its last sign of life."""
    version: str = ""


@message(152, MessageClass.DATA, senders=FROM_CLIENT)
class ListNodes(msgspec.Struct, frozen=True):
    pass


@message(153, MessageClass.DATA, size=SizeClass.BULK)
class NodeList(msgspec.Struct, frozen=True):
    datacenter: str
    nodes: list[NodeView]


@message(154, MessageClass.CONTROL, senders=FROM_CLIENT)
class DrainNode(msgspec.Struct, frozen=True, omit_defaults=True):
    node: str
    resume: bool = False


@message(155, MessageClass.CONTROL)
class Draining(msgspec.Struct, frozen=True):
    node: str
    running: int
    """Attempts that are still running there."""


class StreamEvent(msgspec.Struct, frozen=True, tag="event"):
    """Something happened to the job: placed, started, a share lost, refilled, ended."""

    at_s: float
    text: str


class StreamLine(msgspec.Struct, frozen=True, tag="line"):
    prefix: str
    text: str


class StreamSnapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    snapshot: Snapshot


StreamItem = StreamEvent | StreamLine | StreamSnapshot


@message(156, MessageClass.DATA, senders=FROM_CLIENT)
class Follow(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Waits for items after `after`, at most so long. `after` < 0: from now on, with one
    snapshot of the present first."""

    job: JobId
    after: int = 0
    wait_s: float = 10.0


@message(157, MessageClass.DATA, size=SizeClass.BULK)
class Followed(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    upto: int
    """Sequence number of the last item here: the next `after`."""
    items: list[StreamItem] = []
    missed: int = 0
    """Items that were no longer kept."""
    more: bool = False
    """There are items after `upto` already: ask again, also when the job is over."""
    state: JobState
    position: int = 0
    exit_code: int = 0
    result: str = ""
    result_size: int = 0
    reason: str = ""
