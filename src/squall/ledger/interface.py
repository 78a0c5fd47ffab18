"""What a node sees of its group's log, whether the group has one member or five.

A command is submitted as bytes, becomes an entry with an op number and a group time, is
committed, then applied to the state machine of every member in the same order. Nothing
here decides anything about jobs or workers: planning is the submitter's, apply only
checks and stores.

The promises of `submit`:
- it returns `Committed`: the command is durable on a quorum and applied here;
- `NotPrimary`: the command is not in the log and never will be by this call;
- `OutcomeUnknown`: it may be committed, now or later, or never. Submitters make their
  commands compare-and-set, so that to submit again is harmless.

Whatever else a caller cancels or times out, is an unknown outcome too.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import NewType, Protocol

import msgspec

from squall.api.errors import SquallError
from squall.runtime.interfaces import NodeId

OpNumber = NewType("OpNumber", int)
"""Position of an entry in the log, from 1."""
GroupMs = NewType("GroupMs", int)
"""Milliseconds of the group clock; never goes back, survives a change of primary."""
Digest = NewType("Digest", str)
"""SHA-256 of a blob, in hex."""


class Fence(msgspec.Struct, frozen=True, order=True, array_like=True):
    """Who may act: compared lexicographically, only within one group."""

    epoch: int
    view: int


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A committed command as the state machine sees it."""

    op: OpNumber
    group_ms: GroupMs
    version: int
    body: bytes


class Committed(msgspec.Struct, frozen=True):
    op: OpNumber
    group_ms: GroupMs
    result: bytes
    """What apply answered; the same on all members."""


class ReadLevel(enum.Enum):
    STRONG = "strong"
    """Sees every command committed before the read began; waits for a round."""
    SESSION = "session"
    """Sees at least `minimum_op`."""
    STALE = "stale"
    """What this member has applied, at once."""


class NotPrimary(SquallError):
    """Submit elsewhere: `primary` leads, or nobody is known to."""

    def __init__(self, primary: NodeId | None) -> None:
        who = f"{primary} does" if primary else "no primary is known"
        super().__init__(f"this member does not lead its group; {who}")
        self.primary = primary


class TryLater(NotPrimary):
    """This member leads and cannot take the command now, because its disk is full or too
    much waits; as with `NotPrimary`, the command is not in the log and never will be by
    this call."""

    def __init__(self, primary: NodeId, reason: str) -> None:
        super().__init__(primary)
        self.args = (f"the group cannot take commands now: {reason}; try again later",)


class OutcomeUnknown(SquallError):
    """The command may be committed or not."""


class LedgerFailed(SquallError):
    """The log on this member can no longer be written or trusted; the node gives up its
    role and never retries on the same open files."""


class LedgerDamaged(LedgerFailed):
    """What was durable cannot be read back: repair it from peers or from a backup. Every
    file stays as it is."""


class Capture(Protocol):
    """A state as it was at one op number; later commands do not change it."""

    def slices(self) -> Iterator[bytes]:
        """The state in pieces of bounded size, so that encoding never holds the loop."""
        ...


class StateMachine(Protocol):
    """Deterministic and total: the same entries give the same state and results on every
    member, and no entry raises. A bad command yields a rejection as its result."""

    @property
    def version(self) -> int:
        """The highest command version that this code can apply."""
        ...

    def apply(self, entry: Entry) -> bytes: ...

    def capture(self) -> Capture:
        """Cheap: records are immutable, tables are copied, nothing is encoded yet."""
        ...

    def load(self, slices: Iterable[bytes]) -> None:
        """Replaces the state by one that was captured."""
        ...


class Blobs(Protocol):
    """Content-addressed, durable before it is named; kept while referenced."""

    async def put(self, data: bytes) -> Digest:
        """Durable on this member when it returns (and on a quorum, for a group)."""
        ...

    async def get(self, digest: Digest) -> bytes:
        """KeyError when this member lacks it and nobody can give it."""
        ...

    async def has(self, digest: Digest) -> bool: ...


Applied = Callable[[Entry, bytes], None]
"""Called on the loop after each entry was applied, with its result; must not raise."""
RoleChanged = Callable[["Fence | None"], None]
"""With the fence in which this member now leads and serves, or None when it stopped. One
that is registered while the member leads is told so in a later turn of the loop."""


class Ledger(Protocol):
    """The facade over one member of a group."""

    @property
    def fence(self) -> Fence: ...
    @property
    def is_primary(self) -> bool:
        """Leads and serves: everything inherited is committed."""
        ...

    @property
    def primary(self) -> NodeId | None: ...
    @property
    def applied(self) -> OpNumber: ...
    @property
    def active_version(self) -> int:
        """The highest command version that may be submitted: every member can apply it."""
        ...

    @property
    def blobs(self) -> Blobs: ...

    def group_ms(self) -> GroupMs:
        """The group clock now; at least that of the last applied entry."""
        ...

    async def submit(self, body: bytes, *, version: int = 1) -> Committed:
        """At most 256 kB. Raises NotPrimary (of which TryLater is one), OutcomeUnknown,
        LedgerFailed."""
        ...

    async def read(self, level: ReadLevel, minimum_op: OpNumber = OpNumber(0)) -> OpNumber:
        """Returns when the local state machine may be read at that level, with the op it
        has applied. Raises NotPrimary for STRONG on another member."""
        ...

    async def confirm(self) -> Fence:
        """Waits for a heartbeat round that began after this call and was acknowledged by
        a quorum in this view; what an execution lease rests on. Raises NotPrimary."""
        ...

    def on_applied(self, callback: Applied) -> None: ...
    def on_role(self, callback: RoleChanged) -> None: ...
