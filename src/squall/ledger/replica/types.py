"""The nouns of a group: members, configurations, log entries, what a member must keep.

Nothing here changes; a configuration is a fact of the log (`LogEntry` of kind FORM or
MEMBERS) and never of a flag. Numbers in `Timers` are those of docs/replication.md.
"""

from __future__ import annotations

import enum
from hashlib import blake2b
from typing import NewType

import msgspec

from squall.api.errors import UsageError
from squall.ledger.interface import Fence, GroupMs, OpNumber
from squall.runtime.interfaces import NodeId

StorageId = NewType("StorageId", str)
"""Made with an empty data directory; a lost disk is another storage."""
GroupId = NewType("GroupId", str)
Checksum = NewType("Checksum", bytes)

NO_GROUP = GroupId("")
NO_CHECKSUM = Checksum(b"")
NO_FENCE = Fence(0, -1)
"""Below every fence in which anything was ever stored."""
CHECKSUM_BYTES = 16
FORMED_SIZES = (1, 3, 5)


class Member(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A node together with its disk: only both have acknowledged what they did."""

    node: NodeId
    storage: StorageId


class Config(msgspec.Struct, frozen=True, array_like=True):
    """The members of one epoch, sorted by node id."""

    epoch: int
    members: tuple[Member, ...]

    @property
    def quorum(self) -> int:
        return len(self.members) // 2 + 1

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(member.node for member in self.members)

    def admits(self, member: Member) -> bool:
        return member in self.members

    def primary(self, view: int) -> Member:
        return self.members[view % len(self.members)]

    def next_view(self, above: int, member: Member) -> int:
        """The smallest view over `above` that belongs to `member`."""
        size = len(self.members)
        return above + 1 + (self.members.index(member) - above - 1) % size


def formed_config(members: tuple[Member, ...]) -> Config:
    """The first configuration; two members survive no failure and are refused."""
    if len(members) not in FORMED_SIZES:
        raise UsageError(
            f"a group of {len(members)} is refused: it survives no more failures than a smaller "
            "one; use 1, 3 or 5 members"
        )
    return Config(0, tuple(sorted(members)))


def is_single_step(old: Config, new: Config) -> bool:
    """Replace one, one more, one less, or from one to three."""
    before, after = set(old.members), set(new.members)
    gone, added = len(before - after), len(after - before)
    if new.epoch != old.epoch + 1 or len(set(new.nodes)) != len(new.members) or not after:
        return False
    return (gone, added) in ((1, 1), (0, 1), (1, 0)) or (
        len(before) == 1 and len(after) == 3 and gone == 0
    )


class Kind(enum.IntEnum):
    FORM = 0
    """Op 1: the group's id and first members."""
    COMMAND = 1
    VIEW = 2
    """The first entry of a view; carries nothing."""
    MEMBERS = 3
    """The last entry of its epoch: the members of the next."""
    ACTIVATE = 4
    """From here on commands of this version may be proposed."""


class Formation(msgspec.Struct, frozen=True, array_like=True):
    """Body of a FORM entry."""

    group: GroupId
    config: Config
    facts: bytes = b""
    """What the layer above wants in op 1 (lease length, digest of timers)."""


class LogEntry(msgspec.Struct, frozen=True, array_like=True):
    op: OpNumber
    fence: Fence
    """In which it was proposed."""
    group_ms: GroupMs
    kind: Kind
    version: int
    body: bytes
    previous: Checksum
    checksum: Checksum


def make_entry(
    op: int,
    fence: Fence,
    group_ms: int,
    kind: Kind,
    body: bytes,
    *,
    previous: Checksum,
    version: int = 0,
) -> LogEntry:
    checksum = checksum_of(op, fence, group_ms, kind, version, body, previous)
    return LogEntry(OpNumber(op), fence, GroupMs(group_ms), kind, version, body, previous, checksum)


def checksum_of(
    op: int, fence: Fence, group_ms: int, kind: Kind, version: int, body: bytes, previous: Checksum
) -> Checksum:
    digest = blake2b(previous, digest_size=CHECKSUM_BYTES)
    digest.update(b"%d %d %d %d %d %d|" % (op, fence.epoch, fence.view, group_ms, kind, version))
    digest.update(body)
    return Checksum(digest.digest())


def is_whole(entry: LogEntry) -> bool:
    return entry.checksum == checksum_of(
        entry.op,
        entry.fence,
        entry.group_ms,
        entry.kind,
        entry.version,
        entry.body,
        entry.previous,
    )


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One step of what a member must keep; replayed in order it gives log and promise.

    The log is cut after `keep` (negative: not cut) and `entries` are appended, in the same
    step in which the promise changes, so that no crash can part them.
    """

    fence: Fence
    last_normal: Fence
    keep: int
    entries: tuple[LogEntry, ...]
    commit: OpNumber
    """Known to be committed; a lower bound."""
    group_ms: GroupMs
    wall_ms: int = 0
    """Wall clock of the writer; says how long a member was away, for the group clock only."""


class Base(msgspec.Struct, frozen=True, array_like=True):
    """What a checkpoint stands for: the log up to `op`, committed and applied."""

    op: OpNumber = OpNumber(0)
    checksum: Checksum = NO_CHECKSUM
    group_ms: GroupMs = GroupMs(0)
    group: GroupId = GroupId("")
    config: Config | None = None
    active_version: int = 1


class Recovered(msgspec.Struct):
    """What a member finds on its disk at the start."""

    storage: StorageId
    base: Base = Base()
    fence: Fence = NO_FENCE
    last_normal: Fence = NO_FENCE
    entries: list[LogEntry] = msgspec.field(default_factory=list[LogEntry])
    commit: int = 0
    group_ms: int = 0
    away_ms: int = 0
    """Wall time since the last record, within 0 .. 24 h."""
    mending: str = ""
    """What of its log is damaged: it acknowledged more than is here."""


class Status(enum.Enum):
    FORMING = "forming"
    """Knows no group: an empty disk. Neither acknowledges nor votes."""
    LEARNER = "learner"
    """Takes committed state; its storage is not (or no longer) a member."""
    NORMAL = "normal"
    VIEW_CHANGE = "view change"


class Timers(msgspec.Struct, frozen=True):
    heartbeat_s: float
    check_quorum_s: float
    follower_timeout_s: float
    stagger_s: float
    jitter_s: float
    sync_limit_s: float = 2.0
    """A primary whose disk takes longer steps down."""

    def __post_init__(self) -> None:
        if self.check_quorum_s >= self.follower_timeout_s:
            raise UsageError("check_quorum_s must be shorter than follower_timeout_s")
        if self.follower_timeout_s < 8 * self.heartbeat_s:
            raise UsageError("follower_timeout_s must be at least 8 heartbeats")


LAN = Timers(0.25, 1.5, 2.0, 0.3, 0.3)
WAN = Timers(1.0, 6.0, 8.0, 1.0, 1.0)
FAST = Timers(0.05, 0.3, 0.4, 0.05, 0.05)
