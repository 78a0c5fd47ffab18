"""The data types of a group: members, configurations, log entries, records on disk.

All values are immutable. A configuration comes from the log (a `LogEntry` of kind FORM or
MEMBERS), never from a flag. docs/replication.md explains the numbers in `Timers`.
"""

from __future__ import annotations

import enum
from hashlib import blake2b
from typing import NewType

import msgspec

from squall.api.errors import UsageError
from squall.cluster.ledger.interface import Fence, GroupMs, OpNumber
from squall.runtime.interfaces import NodeId

StorageId = NewType("StorageId", str)
"""Identifies a data directory; created with it, so a replaced disk is another storage."""
GroupId = NewType("GroupId", str)
Checksum = NewType("Checksum", bytes)

NO_GROUP = GroupId("")
NO_CHECKSUM = Checksum(b"")
NO_FENCE = Fence(0, -1)
"""Lower than every fence in which a member stores anything."""
CHECKSUM_BYTES = 16
FORMED_SIZES = (1, 3, 5)


class Member(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A node together with its disk: promises and acknowledgments belong to the pair."""

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
        """Returns the smallest view above `above` that `member` leads."""
        size = len(self.members)
        return above + 1 + (self.members.index(member) - above - 1) % size


def formed_config(members: tuple[Member, ...]) -> Config:
    """Returns the first configuration; refuses sizes other than 1, 3 and 5."""
    if len(members) not in FORMED_SIZES:
        raise UsageError(
            f"a group of {len(members)} is refused: it survives no more failures than a smaller "
            "one; use 1, 3 or 5 members"
        )
    return Config(0, tuple(sorted(members)))


def is_single_step(old: Config, new: Config) -> bool:
    """Whether the change replaces, adds or removes one member, or grows one member to three."""
    before, after = set(old.members), set(new.members)
    gone, added = len(before - after), len(after - before)
    if new.epoch != old.epoch + 1 or len(set(new.nodes)) != len(new.members) or not after:
        return False
    return (gone, added) in ((1, 1), (0, 1), (1, 0)) or (
        len(before) == 1 and len(after) == 3 and gone == 0
    )


class Kind(enum.IntEnum):
    """What a log entry is: a command of the state machine, or a step of the group itself."""

    FORM = 0
    """Op 1: the group's id and first members."""
    COMMAND = 1
    VIEW = 2
    """The first entry of a view; carries nothing."""
    MEMBERS = 3
    """The last entry of its epoch; holds the members of the next."""
    ACTIVATE = 4
    """Allows commands of this version from here on."""


class Formation(msgspec.Struct, frozen=True, array_like=True):
    """Body of a FORM entry."""

    group: GroupId
    config: Config
    facts: bytes = b""
    """Facts that the layer above stores in op 1 (lease length, digest of timers)."""


class LogEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of the log. The garbage collector does not track entries: they hold no cycle,
    and a member holds very many."""

    op: OpNumber
    fence: Fence
    """The fence in which the primary proposed the entry."""
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
    previous: Checksum,
    version: int = 0,
) -> LogEntry:
    checksum = checksum_of(op, fence, group_ms, kind, version, body, previous)
    return LogEntry(OpNumber(op), fence, GroupMs(group_ms), kind, version, body, previous, checksum)


def checksum_of(
    op: int, fence: Fence, group_ms: int, kind: Kind, version: int, body: bytes, previous: Checksum
) -> Checksum:
    head = op, fence.epoch, fence.view, group_ms, kind, version
    content = b"%b%d %d %d %d %d %d|%b" % (previous, *head, body)
    return Checksum(blake2b(content, digest_size=CHECKSUM_BYTES).digest())


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


class StepRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One durable step of a member; replaying all records in order gives its log and promise.

    The record cuts the log after `keep` (not if negative), appends `entries` and changes the
    promise in one step, so that a crash cannot separate them.
    """

    fence: Fence
    last_normal: Fence
    keep: int
    entries: tuple[LogEntry, ...]
    commit: OpNumber
    """Lower bound of the commit number."""
    group_ms: GroupMs
    wall_ms: int = 0
    """Wall clock of the writer. Only the group clock uses it, for how long a member was away."""
    boot_ms: int = 0
    """CLOCK_BOOTTIME of the writer. It counts instead of the wall clock for a reader under the
    same kernel."""
    kernel: int = 0
    """A sum of the id of the writer's kernel boot; 0: unknown."""
    restart_op: int = 0
    """If not 0, the log goes on from this op: a peer's checkpoint replaced everything up to it, or
    a start dropped everything above it. Replay that does not hold the op has a hole (R2)."""
    restart_checksum: Checksum = NO_CHECKSUM


class Base(msgspec.Struct, frozen=True, array_like=True):
    """Describes the prefix of the log that a checkpoint replaces: committed, applied up to `op`."""

    op: OpNumber = OpNumber(0)
    checksum: Checksum = NO_CHECKSUM
    group_ms: GroupMs = GroupMs(0)
    group: GroupId = GroupId("")
    config: Config | None = None
    active_version: int = 1


class Recovered(msgspec.Struct):
    """The state that a member finds on its disk when it starts."""

    storage: StorageId
    base: Base = Base()
    fence: Fence = NO_FENCE
    last_normal: Fence = NO_FENCE
    entries: list[LogEntry] = msgspec.field(default_factory=list[LogEntry])
    commit: int = 0
    group_ms: int = 0
    away_ms: int = 0
    """Time since the last record, within 0 .. 24 h."""
    mending: str = ""
    """Describes the damage if the disk holds less than the member acknowledged; else empty."""


class Status(enum.Enum):
    """What a member may do in its group."""

    FORMING = "forming"
    """The disk is empty and the node knows no group. It neither acknowledges nor votes."""
    LEARNER = "learner"
    """Its storage is not, or no longer, a member; it only takes committed state."""
    NORMAL = "normal"
    VIEW_CHANGE = "view change"


MENDING = "mending"
"""Shown instead of the status of a member whose disk lost entries. It does not count for a
quorum until it holds the log of a view again."""


class Timers(msgspec.Struct, frozen=True):
    """The timeouts of a group; the checks below keep them consistent."""

    heartbeat_s: float
    check_quorum_s: float
    follower_timeout_s: float
    stagger_s: float
    jitter_s: float
    sync_limit_s: float = 2.0
    """A primary steps down if its disk takes longer than this."""

    def __post_init__(self) -> None:
        if self.check_quorum_s >= self.follower_timeout_s:
            raise UsageError("check_quorum_s must be shorter than follower_timeout_s")
        if self.follower_timeout_s < 8 * self.heartbeat_s:
            raise UsageError("follower_timeout_s must be at least 8 heartbeats")


LAN = Timers(0.25, 1.5, 2.0, 0.3, 0.3)
FAST = Timers(0.05, 0.3, 0.4, 0.05, 0.05)
