"""The interface of a group's log, for every group size and for a log in a store.

A node submits a command as bytes. The log turns it into an entry with an op number and a
group time, commits it, and every member applies it to its state machine in the same order.
The ledger knows nothing about jobs or workers: the submitter decides, apply checks and stores
(R3).

The outcomes of `submit`:
- it returns `Committed`: the command is durable on a quorum and applied here;
- it raises `NotPrimary`: this call did not and will not put the command into the log;
- it raises `OutcomeUnknown`: the command may be committed now, later or never. Submitters use
  compare-and-set commands, so that submitting again is harmless.

A call that was cancelled or timed out has an unknown outcome too.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import NewType, Protocol

import msgspec

from squall.api.errors import SquallError
from squall.cluster.wire.blob_transfer import BlobSource
from squall.runtime.interfaces import NodeId
from squall.runtime.metrics import Registry

OpNumber = NewType("OpNumber", int)
"""Position of an entry in the log, from 1."""
GroupMs = NewType("GroupMs", int)
"""Milliseconds of the group clock, which never goes back, not even when the primary changes
(R10)."""
Digest = NewType("Digest", str)
"""SHA-256 of a blob, in hex."""


class Fence(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """Identifies one term of one primary. Within a group fences are ordered lexicographically,
    and only the primary with the highest one may act (R2)."""

    epoch: int
    view: int


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A committed command as the state machine sees it."""

    op: OpNumber
    group_ms: GroupMs
    version: int
    body: bytes


class Committed(msgspec.Struct, frozen=True):
    """The result of a command that was committed and applied."""

    op: OpNumber
    group_ms: GroupMs
    result: bytes
    """The result of `StateMachine.apply`; the same on all members."""


class ReadLevel(enum.Enum):
    """How recent the state must be that a read sees."""

    STRONG = "strong"
    """Sees every command committed before the read began; waits for a heartbeat round (R2)."""
    SESSION = "session"
    """Sees at least `minimum_op`."""
    STALE = "stale"
    """Sees what this member has applied, without waiting."""


class NotPrimary(SquallError):
    """This member does not lead: submit to `primary`, or retry later if it is None."""

    def __init__(self, primary: NodeId | None) -> None:
        who = f"{primary} does" if primary else "no primary is known"
        super().__init__(f"this member does not lead its group; {who}")
        self.primary = primary


class TryLater(NotPrimary):
    """This member leads but cannot accept the command now, because its disk is full or its
    queues are. As with `NotPrimary`, this call did not put the command into the log."""

    def __init__(self, primary: NodeId, reason: str) -> None:
        super().__init__(primary)
        self.args = (f"the group cannot take commands now: {reason}; try again later",)


class OutcomeUnknown(SquallError):
    """The command may or may not be committed."""


class LedgerFailed(SquallError):
    """This member's log can no longer be written or trusted: the node gives up its role and
    never retries on the open files."""


class LedgerDamaged(LedgerFailed):
    """Durable bytes cannot be read back: repair the member from its peers or from a backup.
    The ledger leaves every file unchanged."""


class Capture(Protocol):
    """A state as it was at one op number; later commands do not change it."""

    def slices(self) -> Iterator[bytes]:
        """The encoded state in pieces of bounded size; the event loop runs between two."""
        ...


class StateMachine(Protocol):
    """Applies commands deterministically and totally (R3): the same entries give the same state
    and results on every member, and no entry raises. A bad command results in a rejection."""

    @property
    def version(self) -> int:
        """The highest command version that this code can apply."""
        ...

    def apply(self, entry: Entry) -> bytes: ...

    def capture(self) -> Capture:
        """Captures the current state. It is cheap: it copies tables of immutable records and
        encodes nothing yet."""
        ...

    def load(self, slices: Iterable[bytes]) -> None:
        """Replaces the state by a captured one."""
        ...


class Blobs(Protocol):
    """Stores content by its hash, durable before a command names it and kept while commands
    reference it (R9)."""

    async def put(self, data: bytes) -> Digest:
        """Returns when the blob is durable on a quorum of the group."""
        ...

    async def get(self, digest: Digest) -> bytes:
        """Raises KeyError if neither this member nor a reachable one has the blob."""
        ...

    async def has(self, digest: Digest) -> bool:
        """Whether this member holds the blob. It says nothing about a quorum: use `ensure` before
        a command names the blob."""
        ...

    async def ensure(self, digest: Digest) -> bool:
        """Returns True when the blob is durable on a quorum, which every call asks again;
        False if no reachable member has the blob. Raises TryLater if no quorum takes it."""
        ...

    async def size(self, blob: str) -> int | None:
        """The size of a blob that this or another member holds, else None; see
        `squall.cluster.wire.blob_transfer.BlobSource`."""
        ...

    async def read(self, blob: str, offset: int, length: int) -> bytes: ...

    async def store(self, blob: str, content: bytes) -> None:
        """Like `put`, for content whose hash the caller has checked."""
        ...

    @property
    def own(self) -> BlobSource:
        """The blobs on this member alone, without asking other members."""
        ...


Applied = Callable[[Entry, bytes], None]
"""Called on the event loop after each applied command, with its result; must not raise."""
RoleChanged = Callable[["Fence | None"], None]
"""Called with its fence when this member begins to lead and serve, and with None when it
stops. A callback that is registered while the member leads is called in a later turn of the
event loop."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """A member's status in its group, sent to its peers and shown to operators."""

    status: str = "normal"
    group: str = ""
    """The id of the group, or of its log in a store: op numbers of two logs cannot be compared.
    "" while it is unknown."""
    storage: str
    """The storage id of this member's disk."""
    members: dict[str, str] | None
    """The storage id that the log admits for each node; None while the group is unknown."""
    committed: int
    stale_s: float = 0.0
    """How far a STALE read may lie in the past."""


class Ledger(Protocol):
    """A node's access to its group's log; a member of a group of managers implements it, and so
    does the leader of a log in a store."""

    failure: LedgerFailed | None
    """Why the ledger stopped, else None. The node stops with it."""

    @property
    def fence(self) -> Fence: ...
    @property
    def is_primary(self) -> bool:
        """True if this member leads and serves: everything it inherited is committed (R2)."""
        ...

    @property
    def primary(self) -> NodeId | None: ...
    @property
    def applied(self) -> OpNumber: ...
    @property
    def active_version(self) -> int:
        """The highest command version that nodes may submit; every member can apply it."""
        ...

    @property
    def is_alone(self) -> bool:
        """True if this member is its own quorum, so `confirm` returns at once while it leads."""
        ...

    @property
    def blobs(self) -> Blobs: ...

    def standing(self) -> Standing: ...

    def group_ms(self) -> GroupMs:
        """The group clock's time, at least that of the last applied entry."""
        ...

    async def submit(self, body: bytes, *, version: int = 1) -> Committed:
        """Commits a command of at most 256 kB. Raises NotPrimary (TryLater is a subclass),
        OutcomeUnknown, LedgerFailed."""
        ...

    async def read(self, level: ReadLevel, minimum_op: OpNumber = OpNumber(0)) -> OpNumber:
        """Waits until the local state machine is recent enough for `level`; returns the op it
        has applied. Raises NotPrimary for STRONG unless this member leads."""
        ...

    async def confirm(self) -> Fence:
        """Waits until a quorum acknowledges, in this view, a heartbeat round that began after
        this call. The primary grants execution leases only after it (R5). Raises NotPrimary."""
        ...

    def on_applied(self, callback: Applied) -> None: ...
    def on_role(self, callback: RoleChanged) -> None: ...

    def add_metrics(self, registry: Registry) -> None:
        """Registers the metrics of this member's own log."""
        ...

    async def step_aside(self, within_s: float) -> bool:
        """Asks another member to lead, before a stop; True if this one no longer leads."""
        ...

    async def close(self) -> None:
        """Stops leading and closes the log. Safe to repeat."""
        ...
