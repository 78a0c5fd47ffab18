"""What managers tell each other about themselves, and what operators ask of a group.

Whoever may submit jobs may also look; to hand over or to change the members takes the
cluster's own secret. Every wish names the state that is wanted, so that to send it again
is harmless. The numbers 160 to 179 belong to this module.
"""

from __future__ import annotations

import msgspec

from squall.nodes.identity import AttemptKey, JobId
from squall.nodes.messages import FROM_CLIENT
from squall.stats.reports import ErrorSample, HealthReport, WindowReport
from squall.stats.thresholds import ThresholdResult
from squall.wire.catalogue import SizeClass, message
from squall.wire.header import MessageClass


@message(160, MessageClass.CONTROL)
class MemberNote(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How a manager is; told to all others it knows. Nothing is decided by it."""

    address: str
    """Where others reach it."""
    known: dict[str, str] = {}
    """Where it reaches the others."""
    pid: int = 0
    version: str = ""
    status: str = ""
    """Of its log: forming, learner, normal, view change."""
    leads: bool = False
    group: str = ""
    storage: str = ""
    epoch: int = 0
    view: int = 0
    applied: int = 0
    committed: int = 0
    stale_s: float = 0.0
    """Since it last heard who leads."""
    speaks: int = 0
    """The highest command version that it can apply."""
    disk_free: int = -1
    """Bytes; negative: not known."""
    alarms: int = 0


class MemberView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One manager as the answering one knows it."""

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
    """Commands that are committed somewhere and not applied there."""
    heard_s: float = -1.0
    """Since its last sign of life; negative: never."""
    stale_s: float = 0.0
    speaks: int = 0
    disk_free: int = -1
    alarms: int = 0
    version: str = ""
    pid: int = 0
    boot: str = ""


@message(161, MessageClass.DATA, senders=FROM_CLIENT)
class AskGroup(msgspec.Struct, frozen=True):
    """Answered by every manager from what it knows, also without a quorum."""


@message(162, MessageClass.DATA)
class GroupView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    group: str
    told_by: str
    leader: str = ""
    """Empty: nobody, as far as this manager knows."""
    epoch: int = 0
    view: int = 0
    quorum: int = 1
    active_version: int = 1
    members: list[MemberView] = []
    alarms: list[str] = []
    """Texts of the last ones at the answering manager."""


@message(163, MessageClass.CONTROL)
class HandOver(msgspec.Struct, frozen=True):
    leader: str
    """Who leads now and shall not; if another leads already, nothing happens."""


@message(164, MessageClass.CONTROL)
class HandedOver(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    leader: str
    took_ms: float = 0.0
    """From the wish until the next one led; 0 when it led already."""


@message(165, MessageClass.CONTROL)
class ChangeMembers(msgspec.Struct, frozen=True, kw_only=True):
    """`gone` shall be no members, `added` shall be; one of each is a replacement."""

    gone: list[str] = []
    added: dict[str, str] = {}
    """Name and host:port."""


@message(166, MessageClass.CONTROL)
class MembersChanged(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    epoch: int
    members: list[str]
    repeated: bool = False
    """They were so before."""


# Between the primary and the leader of a job.


@message(170, MessageClass.DATA, size=SizeClass.BULK)
class AskCut(msgspec.Struct, frozen=True):
    """What reached the job's leader of an attempt that is about to be declared lost."""

    key: AttemptKey


@message(171, MessageClass.DATA, size=SizeClass.BULK)
class Cut(msgspec.Struct, frozen=True):
    record: bytes = b""
    """An encoded `AttemptRecord`; empty: nothing reached it."""


@message(172, MessageClass.DATA, size=SizeClass.BULK)
class AskJudged(msgspec.Struct, frozen=True):
    """What the thresholds of a job said, second by second."""

    job: JobId


@message(173, MessageClass.DATA, size=SizeClass.BULK)
class Judged(msgspec.Struct, frozen=True):
    results: list[ThresholdResult] = []


@message(174, MessageClass.CONTROL)
class TellAbort(msgspec.Struct, frozen=True):
    """A threshold ends the job; told again until the job is being stopped."""

    job: JobId
    text: str


@message(175, MessageClass.CONTROL)
class AbortHeard(msgspec.Struct, frozen=True):
    pass


# From the leader of a job to another member.


class CopyPart(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Of a running attempt: what its job's leader heard after `after`, up to `upto`."""

    key: AttemptKey
    worker: str
    after: int
    """The sequence up to which the receiver has it; 0: it begins with this."""
    upto: int
    joined_s: float = 0.0
    silent_from_s: float = 0.0
    width_s: int = 1
    """Seconds in a window."""
    reports: list[WindowReport] = []
    health: list[HealthReport] = []
    errors: list[ErrorSample] = []


@message(176, MessageClass.DATA, size=SizeClass.BULK)
class KeepCopies(msgspec.Struct, frozen=True):
    """Kept in memory until the job is over."""

    parts: list[bytes]
    """An encoded `CopyPart` each."""


@message(177, MessageClass.DATA, size=SizeClass.BULK)
class CopiesKept(msgspec.Struct, frozen=True):
    acks: list[tuple[AttemptKey, int]] = []
    """Up to where each is kept; 0: nothing of it is, send it from the beginning."""
