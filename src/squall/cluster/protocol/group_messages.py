"""The messages between managers, and those of operators to a group.

A client that may submit jobs may also see the status; handing over or changing the members takes
the cluster's own secret. Every request names the wanted state, so that repeating it is harmless.
The numbers 160 to 179 belong to this module.
"""

from __future__ import annotations

import msgspec

from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.protocol.messages import FROM_CLIENT
from squall.cluster.wire.catalogue import SizeClass, message
from squall.cluster.wire.header import MessageClass
from squall.stats.reports import ErrorSample
from squall.stats.thresholds.judge import ThresholdResult


@message(160, MessageClass.CONTROL)
class MemberNote(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The state of a manager, sent to all others that it knows. Nothing is decided by it."""

    address: str
    """The address at which others reach it."""
    known: dict[str, str] = {}
    """The addresses at which it reaches the others."""
    pid: int = 0
    version: str = ""
    status: str = ""
    """The status of its log: forming, learner, normal, view change."""
    leads: bool = False
    group: str = ""
    storage: str = ""
    epoch: int = 0
    view: int = 0
    applied: int = 0
    committed: int = 0
    stale_s: float = 0.0
    """Seconds since it last heard from the primary."""
    speaks: int = 0
    """The highest command version that it can apply."""
    disk_free: int = -1
    """Bytes; negative: not known."""
    alarms: int = 0
    wall_s: float = 0.0
    """Its wall clock, to be compared with the others' (R10)."""
    region: str = ""
    """Where it is, as its flags say: members of one region are lost together."""
    datagrams: int = 0
    """The port at which it receives datagrams; 0: it takes no part in membership."""


class MemberView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One manager, as the answering manager knows it."""

    name: str
    address: str
    state: str
    """leads, follows, electing, forming, silent, failed, waits (to be admitted)."""
    is_member: bool = True
    storage: str = ""
    epoch: int = 0
    view: int = 0
    applied: int = 0
    committed: int = 0
    behind: int = 0
    """Committed commands that it has not applied yet."""
    heard_s: float = -1.0
    """Seconds since its last note; negative: never heard."""
    stale_s: float = 0.0
    speaks: int = 0
    disk_free: int = -1
    alarms: int = 0
    version: str = ""
    pid: int = 0
    boot: str = ""
    clock_s: float = 0.0
    """Seconds that its wall clock is ahead of the median of the managers'; 0: not known."""
    region: str = ""


@message(161, MessageClass.DATA, senders=FROM_CLIENT)
class AskGroup(msgspec.Struct, frozen=True):
    """Asks for the status of the group. Every manager answers, also without a quorum."""


@message(162, MessageClass.DATA)
class GroupView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    group: str
    reported_by: str = msgspec.field(name="told_by")
    leader: str = ""
    """Empty: this manager knows of no primary."""
    epoch: int = 0
    view: int = 0
    quorum: int = 1
    active_version: int = 1
    members: list[MemberView] = []
    alarms: list[str] = []
    role: str = "manager"
    """What its members are: managers or gates."""
    """The last alarms of the answering manager."""
    degraded_durability: str = ""
    """The region that holds a quorum of the members by itself: what is committed may be lost with
    it. Empty: no region does (R15)."""


@message(163, MessageClass.CONTROL)
class HandOver(msgspec.Struct, frozen=True):
    leader: str
    """The primary that is to hand over; if another leads already, nothing happens."""


@message(164, MessageClass.CONTROL)
class HandedOver(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    leader: str
    took_ms: float = 0.0
    """From the request until the next primary led; 0 if another led already."""


@message(165, MessageClass.CONTROL)
class ChangeMembers(msgspec.Struct, frozen=True, kw_only=True):
    """Removes `gone` and adds `added`; one of each is a replacement."""

    gone: list[str] = []
    added: dict[str, str] = {}
    """Name and host:port."""


@message(166, MessageClass.CONTROL)
class MembersChanged(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    epoch: int
    members: list[str]
    repeated: bool = False
    """Nothing had to be changed."""


# Between the primary and the leader of a job.


@message(167, MessageClass.CONTROL)
class NameInUse(msgspec.Struct, frozen=True):
    """Two running processes have the name of the receiver, which is one of them."""

    text: str


@message(170, MessageClass.DATA, size=SizeClass.BULK)
class AskCut(msgspec.Struct, frozen=True):
    """Asks for the record of an attempt that is about to be declared lost."""

    key: AttemptKey


@message(171, MessageClass.DATA, size=SizeClass.BULK)
class Cut(msgspec.Struct, frozen=True):
    record: bytes = b""
    """An encoded `AttemptRecord`; empty: no report reached this manager."""


@message(172, MessageClass.DATA, size=SizeClass.BULK)
class AskJudged(msgspec.Struct, frozen=True):
    """Asks for the results of a job's thresholds, judged second by second."""

    job: JobId


@message(173, MessageClass.DATA, size=SizeClass.BULK)
class Judged(msgspec.Struct, frozen=True):
    results: list[ThresholdResult] = []


@message(174, MessageClass.CONTROL)
class ReportAbort(msgspec.Struct, frozen=True):
    """A threshold ends the job; repeated until the job is being stopped."""

    job: JobId
    text: str


@message(175, MessageClass.CONTROL)
class AbortReceived(msgspec.Struct, frozen=True):
    pass


# From the leader of a job to another member.


class CopyPart(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The reports of a running attempt after `after`, up to `upto`, from its job's leader."""

    key: AttemptKey
    worker: str
    after: int
    """The sequence up to which the receiver has the reports; 0: this begins with the first."""
    upto: int
    joined_s: float = 0.0
    silent_from_s: float = 0.0
    width_s: int = 1
    """Seconds in a window."""
    reports: list[msgspec.Raw] = []
    """An encoded `WindowReport` each (`encoded_reports`)."""
    health: list[msgspec.Raw] = []
    """An encoded `HealthReport` each."""
    errors: list[ErrorSample] = []


@message(176, MessageClass.DATA, size=SizeClass.BULK)
class StoreCopies(msgspec.Struct, frozen=True):
    """Copies that the receiver keeps in memory until the job is over."""

    parts: list[bytes]
    """An encoded `CopyPart` each."""


@message(177, MessageClass.DATA, size=SizeClass.BULK)
class CopiesStored(msgspec.Struct, frozen=True):
    acks: list[tuple[AttemptKey, int]] = []
    """The sequence up to which the receiver has each attempt; 0: send it from the first report."""


# From a client that cannot reach the member that answers, and from the manager that relays.


@message(178, MessageClass.DATA, size=SizeClass.BULK, senders=FROM_CLIENT)
class Relay(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A request that the receiver sends on to the member that leads, once."""

    number: int
    """The type of the request, and its encoded body."""
    body: bytes
    hops: int = 0
    """1: a manager sent it on; the receiver answers it itself."""
    name: str = ""
    """The client that asked, by its credential, and whether that is an operator's."""
    operator: bool = False


@message(179, MessageClass.DATA, size=SizeClass.BULK)
class RelayAnswer(msgspec.Struct, frozen=True):
    number: int
    body: bytes
