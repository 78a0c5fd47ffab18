"""The messages between worker, manager and client. Numbers 100 to 139: sessions; 140 to
189: clients; the group's own replication uses numbers from 200 on.

A session compares desired with actual state (R4): every second a worker reports all that it runs
or holds, and the answer says all that it should do. Any message may be lost or repeated, because
the next one says everything again. Absence never means stop.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from squall.cluster.protocol.gates.job_reports import JobReports, ReportCursor
from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.protocol.membership.order import MembershipOrder
from squall.cluster.protocol.read_facts import ReadFacts
from squall.cluster.protocol.submission import Submission
from squall.cluster.protocol.views import (
    Counters,
    DatacenterView,
    PartView,
    WorkerLoad,
    WorkflowView,
)
from squall.cluster.wire.catalogue import SizeClass, message
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.roles import Role
from squall.engine.core_protocol import OutputLine, ShareSpec
from squall.engine.run_options import RunOptions
from squall.settings.shared_sections import DRAIN_TIMEOUT_S
from squall.stats.manifest import FileManifest
from squall.stats.reports import ErrorSample
from squall.stats.snapshot import Snapshot

FROM_WORKER = (Role.WORKER, Role.NODE)
FROM_CLIENT = (Role.CLIENT, Role.NODE)
DRAINED = "its worker was drained"
"""Why an attempt ended that another worker continues: the `cut` of its record."""

Phase = Literal["preparing", "ready", "running", "ended", "refused", "unknown"]
"""`ended`: its record is in the worker's outbox. `unknown`: the worker does not have it, and a
tombstone makes sure that it never will."""


class AttemptStatus(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    key: AttemptKey
    phase: Phase
    counters: Counters = Counters()
    elapsed_s: float = 0.0
    """The reading of the workflow's clock."""
    adjust_seq: int = 0
    """The adjustment that is in force."""
    text: str = ""
    """Refused: why, in one line. Running: why nothing is executed, if its worker knows. Ended: the
    record's cut or error."""
    exit_code: int = 0
    retryable: bool = False
    """Refused: another worker, or the same one later, may run it (no core, disk full)."""
    record: str = ""
    """Ended: digest of the record's blob."""
    record_size: int = 0
    work: int = 0
    """Preparing: its progress, a count of bytes and steps that only rises."""
    wants_more_s: bool = False
    """Preparing: it will not be ready in time and asks for more time."""
    loaded: bool = False
    """Preparing: its code is loaded; no user is open, and no request was sent."""


class HeldRecord(msgspec.Struct, frozen=True, array_like=True):
    """A record that a former boot left: complete, or cut."""

    key: AttemptKey
    digest: str
    size: int
    complete: bool


@message(100, MessageClass.CONTROL, senders=FROM_WORKER)
class RegisterWorker(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Registers a boot; repeated until it is answered."""

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
    dead_boots: tuple[str, ...] = ()
    """Former boots of this node whose processes are certainly dead (R6)."""
    former_ended_ago_s: float | None = None
    """How long before this was sent the last of `dead_boots` had ended, as the launcher saw it;
    the others had ended before."""
    held: list[HeldRecord] = []
    relay: bool = False
    """The sender cannot reach the primary: the receiver relays this to it."""


@message(101, MessageClass.CONTROL)
class Registered(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    refused: str = ""
    """Why the worker is refused: wrong datacenter, a newer boot exists."""
    name_in_use: bool = False
    """Refused because another boot of this name was heard a moment ago. The worker may ask again:
    if that boot is gone, it is no longer heard."""
    lease_s: float = 0.0
    interval_s: float = 1.0


@message(102, MessageClass.CONTROL, senders=FROM_WORKER)
class SessionRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    node: str
    boot: str
    sequence: int
    round_trip_s: float = 0.0
    """The round trip of the previous request."""
    draining: bool = False
    drain_left_s: float = 0.0
    """If it drains: how long it still runs what it has."""
    load: WorkerLoad | None = None
    attempts: list[AttemptStatus] = []
    managers_epoch: int = -1
    """The epoch of the list of managers that the worker has; the answer to another one brings the
    list."""
    relay: bool = False
    """The sender cannot reach the primary: the receiver relays this to it."""
    membership: int = -1
    """The version of the membership order that it has, 0: none yet; -1: it takes no part."""


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
    """The values that other workflows hand over to a share: `values` and `received` of its spec."""

    values: dict[str, bytes] = {}
    received: dict[str, bytes] = {}


class Preparation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    key: AttemptKey
    spec: ShareSpec
    slot: int
    """The worker's core, from 0; several shares of one job may name the same."""
    process: int
    """The number of its core process in the whole job, for health reports."""
    values_blob: str = ""
    """The digest of `SpecValues`, if the values are too large to travel in the spec."""
    values_size: int = 0
    iterations_done: int = 0
    """Iterations of earlier attempts: the stripe of feeds and ids continues after them."""
    timeout_s: float = 0.0
    """The longest execution, counted from Go."""
    ready_within_s: float = 0.0
    """The preparation is given up after this time, unless it is extended; 0: it has no limit."""
    held: bool = False
    """The gates have not started its job: it gets no lease yet, and its worker reports at once when
    the code is loaded (R15)."""


class MoreTime(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The answer to a preparation that asked for more time."""

    key: AttemptKey
    granted_s: float = 0.0
    left: int = 0
    """How often it may ask again."""
    denial: str = ""
    is_warning: bool = False
    """The next grant is the last one."""
    grace_left_s: float = 0.0
    """If no extension is left: seconds until it is given up."""


class GoOrder(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Starts an attempt. The worker obeys only if the round trip was under half a second (R7)."""

    key: AttemptKey
    elapsed_s: float
    """The reading of the workflow's clock when the answer was made."""
    run_elapsed_s: float
    """Since the job's first workflow started, when the answer was made."""


class StopOrder(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    key: AttemptKey
    now: bool = False
    """False: let iterations end within their grace; True: cancel what runs."""
    drop: bool = False
    """It is superseded, lost or of an unknown job: no manager wants its record."""
    why: str = ""


class AdjustOrder(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The desired load of a workflow; the highest `adjust_seq` wins."""

    job: JobId
    workflow: str
    adjust_seq: int
    paused: bool = False
    rate_per_s: float | None = None
    """The rate of the whole workflow; None: that of the plan."""
    vus: int | None = None


@message(103, MessageClass.CONTROL)
class SessionAnswer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    epoch: int
    view: int
    committed: int
    """The op of the last committed command: a worker ignores answers below one it has seen."""
    sequence: int
    """The sequence of the request that this answers."""
    register: bool = False
    """This boot is not registered: register first."""
    lease_s: float = 0.0
    granted: list[AttemptKey] = []
    """The attempts that may run for `lease_s`, counted from when the request was sent (R5)."""
    jobs: list[JobBrief] = []
    prepare: list[Preparation] = []
    go: list[GoOrder] = []
    stop: list[StopOrder] = []
    adjust: list[AdjustOrder] = []
    free: list[AttemptKey] = []
    """Attempts whose records are committed or of no use: the worker drops them."""
    more_time: list[MoreTime] = []
    interval_s: float = 1.0
    telemetry_interval_s: float = 1.0
    drained: bool = False
    managers: list[str] = []
    """host:port of all managers of the group in this epoch; empty: nothing new, or one of them is
    not known here yet."""
    membership: MembershipOrder | None = None
    """None: nothing new."""


@message(104, MessageClass.CONTROL)
class SessionPush(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something changed for this worker: send a session request now."""

    node: str = ""
    """Between managers: the worker, for which the receiver may relay, and its boot."""
    boot: str = ""


class TelemetryPart(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One attempt: everything after `after`, up to `upto`."""

    key: AttemptKey
    after: int
    """The sequence that the receiver last acknowledged; 0: the whole record."""
    upto: int
    joined_s: float = 0.0
    reports: list[msgspec.Raw] = []
    """An encoded `WindowReport` each (`encoded_reports`)."""
    health: list[msgspec.Raw] = []
    """An encoded `HealthReport` each."""
    errors: list[ErrorSample] = []
    lines: list[OutputLine] = []
    """The lines that the author printed since the last part; best effort."""
    width_s: int = 1
    """Seconds in a window; more than 1 in a whole record whose seconds were merged."""
    silent_from_s: float = 0.0
    """In a whole record: the time up to which its reports cover the workflow."""


@message(105, MessageClass.TELEMETRY, size=SizeClass.BULK, senders=FROM_WORKER, light=True)
class Telemetry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    node: str
    boot: str
    parts: list[TelemetryPart]
    relay: bool = False
    """The sender cannot reach the job's leader: the receiver relays this to it."""


@message(106, MessageClass.TELEMETRY)
class TelemetryAck(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    acks: list[tuple[AttemptKey, int]] = []
    """Everything up to this sequence has been added; 0: send the whole record."""
    interval_s: float = 1.0
    elsewhere: dict[JobId, str] = {}
    """Jobs that another manager leads, with its host:port; their parts were not added."""


@message(107, MessageClass.DATA, size=SizeClass.BULK, senders=(Role.WORKER, Role.CLIENT, Role.NODE))
class OfferBlob(msgspec.Struct, frozen=True):
    """The sender holds this blob; the receiver pulls it over the same link, then answers."""

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


class JobView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What clients see of a job."""

    job: JobId
    state: JobState
    file: str
    principal: str = ""
    key: str = ""
    created_at: float = 0.0
    """The wall clock of the manager that created it; only shown."""
    age_s: float = 0.0
    elapsed_s: float = 0.0
    leader: str = ""
    position: int = 0
    """The position in the queue, from 1; 0 if it does not wait."""
    workflows: list[WorkflowView] = []
    reason: str = ""
    """Why it ended or is ending: "cancelled by ann", "timeout after 70 s"."""
    exit_code: int | None = None
    """None while the job is not over."""
    result: str = ""
    """The digest of the result, once the job is over."""
    result_size: int = 0
    adjustments: list[str] = []
    """What was changed by hand, when and by whom; in the view of one job."""
    silent: list[str] = []
    """A line for each worker that runs shares of it and is not heard."""
    datacenters: list[PartView] = []
    """Of a job of the gates: its parts."""


@message(140, MessageClass.DISPATCH, size=SizeClass.BULK, senders=FROM_CLIENT)
class SubmitJob(msgspec.Struct, frozen=True, omit_defaults=True):
    key: str
    submission: Submission
    direct: bool = False
    """Create the job in this datacenter, although gates hand jobs over to it."""


@message(141, MessageClass.DISPATCH)
class JobAccepted(msgspec.Struct, frozen=True, omit_defaults=True):
    job: JobId
    created: bool
    """False: this key had created the job before."""
    read: ReadFacts | None = None


@message(142, MessageClass.DATA, size=SizeClass.BULK, senders=FROM_CLIENT)
class ListJobs(msgspec.Struct, frozen=True, omit_defaults=True):
    limit: int = 100


@message(143, MessageClass.DATA, size=SizeClass.BULK)
class JobList(msgspec.Struct, frozen=True, omit_defaults=True):
    jobs: list[JobView]
    read: ReadFacts | None = None


@message(144, MessageClass.DATA, size=SizeClass.BULK, senders=FROM_CLIENT)
class GetJob(msgspec.Struct, frozen=True):
    job: JobId


@message(145, MessageClass.DATA, size=SizeClass.BULK)
class JobStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    view: JobView
    manifest: FileManifest | None = None
    """The manifest of the job's file, for a client that follows a job of another."""
    read: ReadFacts | None = None


@message(146, MessageClass.CONTROL, senders=FROM_CLIENT)
class CancelJob(msgspec.Struct, frozen=True, omit_defaults=True):
    job: JobId
    now: bool = False
    """Cancel what runs instead of letting iterations end."""
    reason: str = ""
    """Why, in the client's words; recorded with its name."""


@message(147, MessageClass.CONTROL)
class CancelAccepted(msgspec.Struct, frozen=True, omit_defaults=True):
    state: JobState
    repeated: bool = False
    """It was being cancelled, or over, before."""
    read: ReadFacts | None = None


@message(148, MessageClass.CONTROL, senders=FROM_CLIENT)
class AdjustJob(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    job: JobId
    workflow: str = ""
    """Empty: the only test workflow, or all of them for pause and resume."""
    paused: bool | None = None
    rate_per_s: float | None = None
    vus: int | None = None
    extend_s: float | None = None
    """The sum of all extensions of the job's timeout that is wanted, within the cap."""
    request_id: str = ""
    """The same in every try of one request: a change of the load takes effect once (R13)."""
    reason: str = ""
    """Why, in the client's words; recorded with its name."""


@message(149, MessageClass.CONTROL)
class Adjusted(msgspec.Struct, frozen=True, omit_defaults=True):
    adjust_seq: int = 0
    """0: the load was not changed."""
    extended_s: float = 0.0
    read: ReadFacts | None = None


@message(150, MessageClass.DATA, senders=FROM_CLIENT)
class WhyJob(msgspec.Struct, frozen=True):
    job: JobId


@message(151, MessageClass.DATA)
class Explanation(msgspec.Struct, frozen=True):
    """Lines that say which state the job is in, which member leads it, and what it waits for."""

    lines: list[str]
    events: list[str] = []
    read: ReadFacts | None = None


class NodeView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    name: str
    role: Literal["manager", "worker", "gate"]
    address: str
    pid: int
    state: str
    boot: str
    cores: int = 0
    free: int = 0
    heard_s: float = 0.0
    """Seconds since it was last heard."""
    load: WorkerLoad | None = None
    """Of a worker: its last report; None: no report yet."""
    version: str = ""
    clock_s: float = 0.0
    """Of a manager: seconds that its wall clock is ahead of the median of the managers'."""
    region: str = ""
    """Of a gate: where it is."""
    same_name: str = ""
    """Of a manager or a gate: that another running process has its name, and where."""
    membership: str = ""
    """Of a silent or suspected node: one line that says which members hear it."""


@message(152, MessageClass.DATA, size=SizeClass.BULK, senders=FROM_CLIENT)
class ListNodes(msgspec.Struct, frozen=True, omit_defaults=True):
    datacenter: str = ""
    """Asked of a gate: the nodes of this datacenter; empty: the gates."""


@message(153, MessageClass.DATA, size=SizeClass.BULK)
class NodeList(msgspec.Struct, frozen=True, omit_defaults=True):
    datacenter: str
    nodes: list[NodeView]
    read: ReadFacts | None = None
    datacenters: list[DatacenterView] = []
    """Of a gate that was asked for no datacenter: all of them."""


@message(154, MessageClass.CONTROL, senders=FROM_CLIENT)
class DrainNode(msgspec.Struct, frozen=True, omit_defaults=True):
    node: str
    resume: bool = False
    within_s: float = DRAIN_TIMEOUT_S
    """How long its shares may go on; the others continue those that would take longer."""


@message(155, MessageClass.CONTROL)
class Draining(msgspec.Struct, frozen=True, omit_defaults=True):
    node: str
    running: int
    """The number of attempts that still run there."""
    read: ReadFacts | None = None


class StreamEvent(msgspec.Struct, frozen=True, tag="event"):
    """An event of the job: placed, started, a share lost, refilled, ended."""

    at_s: float
    text: str


class StreamLine(msgspec.Struct, frozen=True, tag="line"):
    prefix: str
    text: str


class StreamSnapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    snapshot: Snapshot


StreamItem = StreamEvent | StreamLine | StreamSnapshot


@message(156, MessageClass.DATA, size=SizeClass.BULK, senders=FROM_CLIENT)
class Follow(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Waits up to `wait_s` for items after `after`. `after` < 0: only the latest snapshot."""

    job: JobId
    after: int = 0
    wait_s: float = 10.0
    seen: tuple[str, int] = ("", 0)
    """The group, and the highest op of its answers that the client got."""
    reports: ReportCursor | None = None
    """Also asks for the reports after this, to merge them with those of other datacenters."""
    histograms: bool = False
    """From now on, the snapshots of the job have the histograms of all rows."""


@message(157, MessageClass.DATA, size=SizeClass.BULK)
class Followed(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    upto: int
    """The sequence number of the last item: the next `after`."""
    items: list[StreamItem] = []
    missed: int = 0
    """Items that were dropped before they could be sent."""
    more: bool = False
    """There are items after `upto` already: ask again, even if the job is over."""
    state: JobState
    position: int = 0
    exit_code: int | None = None
    result: str = ""
    result_size: int = 0
    reason: str = ""
    read: ReadFacts | None = None
    reports: JobReports | None = None
    """Of a job that is a datacenter's part and has started, if asked for."""


@message(158, MessageClass.DATA, senders=FROM_CLIENT)
class GetWorkflowResult(msgspec.Struct, frozen=True):
    """Asks for the result of a workflow that is over, while its job may go on."""

    job: JobId
    workflow: str


@message(159, MessageClass.DATA)
class WorkflowResultHeld(msgspec.Struct, frozen=True):
    """The blob with the result: of this workflow alone, or of the whole job if that is over."""

    blob: str
    size: int
