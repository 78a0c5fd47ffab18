"""The messages between members. Any message may be lost, repeated, delayed or reordered.

A packet names its sender (node, storage, boot) and the fence in which the sender made it. An
acknowledgment or vote counts only in that fence, and only from a member of the stored set.
"""

from __future__ import annotations

import msgspec

from squall.cluster.ledger.interface import Fence
from squall.cluster.ledger.replica.types import Checksum, GroupId, LogEntry, Member
from squall.runtime.interfaces import BootId


class FormAsk(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """The node that will lead view 0 asks every node whether its disk is empty, and for its id."""


class FormAnswer(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """The sender's disk is empty; the packet names its storage."""

    asker: BootId
    """The asker's boot: an answer to an earlier boot does not count."""


class Prepare(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """The primary sends entries to store, with its commit number and the group time."""

    entries: tuple[LogEntry, ...]
    commit: int
    group_ms: int


class PrepareOk(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """The sender has stored all entries up to `op` durably; `checksum` is that of `op`."""

    op: int
    checksum: Checksum


class Heartbeat(msgspec.Struct, frozen=True, tag=5, array_like=True):
    """The primary's heartbeat. Followers acknowledge it as a round unless `round` is 0."""

    round: int
    commit: int
    first: int
    """The oldest op that the primary still has in its log."""
    group_ms: int


class RoundAck(msgspec.Struct, frozen=True, tag=6, array_like=True):
    """Acknowledges a round to one boot of the primary, and reports the durable log."""

    round: int
    primary: BootId
    op: int
    checksum: Checksum
    version: int


class PreVote(msgspec.Struct, frozen=True, tag=7, array_like=True):
    """Asks whether the receiver would vote for the sender in `view`. It changes no state."""

    view: int
    ask: int = 0
    """Number of this pre-vote within the boot; the answer repeats it."""


class PreVoteOk(msgspec.Struct, frozen=True, tag=8, array_like=True):
    """The sender would vote for the receiver in `view`."""

    view: int
    ask: int = 0


class ViewChange(msgspec.Struct, frozen=True, tag=9, array_like=True):
    """The candidate has promised the packet's fence and asks for votes."""

    hand_over: bool


class Vote(msgspec.Struct, frozen=True, tag=10, array_like=True):
    """The voter has promised the packet's fence and describes its log."""

    last_normal: Fence
    op: int
    checksum: Checksum
    commit: int
    group_ms: int
    is_restarted: bool
    """The voter has not heard the group clock since it started; `group_ms` is old."""
    away_ms: int


class AskView(msgspec.Struct, frozen=True, tag=11, array_like=True):
    """The sender is not in the primary's view and asks for StartView."""


class StartView(msgspec.Struct, frozen=True, tag=12, array_like=True):
    """The primary starts a view whose log ends at `op`; a follower fetches what it lacks."""

    op: int
    checksum: Checksum
    commit: int
    group_ms: int
    asked: BootId = BootId("")
    """The boot whose AskView this answers; empty if no member asked."""


class Fetch(msgspec.Struct, frozen=True, tag=13, array_like=True):
    """Asks for entries from `first` on: of the log of view `fence`, or only committed entries,
    which any member can serve, if `fence` is None."""

    first: int
    fence: Fence | None


class Entries(msgspec.Struct, frozen=True, tag=14, array_like=True):
    """Answers a Fetch with entries, or with the op of a checkpoint to fetch instead."""

    fence: Fence | None
    first: int
    entries: tuple[LogEntry, ...]
    commit: int
    snapshot: int
    """If not 0, the sender has trimmed the entries up to here: fetch its checkpoint."""


class Newer(msgspec.Struct, frozen=True, tag=15, array_like=True):
    """The receiver's fence is old; the packet carries the sender's."""


class TakeOver(msgspec.Struct, frozen=True, tag=16, array_like=True):
    """The primary asks the receiver, whose log ends where its own does, to lead the next view."""

    op: int
    checksum: Checksum


class Learn(msgspec.Struct, frozen=True, tag=17, array_like=True):
    """A learner reports how much of the committed state it holds."""

    op: int
    version: int


class VoteComing(msgspec.Struct, frozen=True, tag=18, array_like=True):
    """The voter's disk is still writing the promise; the candidate should wait for the vote."""


Body = (
    FormAsk
    | FormAnswer
    | Prepare
    | PrepareOk
    | Heartbeat
    | RoundAck
    | PreVote
    | PreVoteOk
    | ViewChange
    | Vote
    | AskView
    | StartView
    | Fetch
    | Entries
    | Newer
    | TakeOver
    | Learn
    | VoteComing
)


class Packet(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A message with its group, its sender and the fence in which it was made."""

    group: GroupId
    sender: Member
    boot: BootId
    fence: Fence
    body: Body
