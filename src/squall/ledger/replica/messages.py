"""What members tell each other. Every message may be lost, repeated, late or reordered.

A packet names its sender with its storage and boot, and the fence in which it was made:
an acknowledgment or vote counts only from a member of the stored set, in that fence.
"""

from __future__ import annotations

import msgspec

from squall.ledger.interface import Fence
from squall.ledger.replica.types import Checksum, GroupId, LogEntry, Member
from squall.runtime.interfaces import BootId


class FormAsk(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """Whoever leads view 0 asks all: is your disk empty, and what is its id?"""


class FormAnswer(msgspec.Struct, frozen=True, tag=2, array_like=True):
    asker: BootId
    """An answer to a former boot of the asker says nothing."""


class Prepare(msgspec.Struct, frozen=True, tag=3, array_like=True):
    entries: tuple[LogEntry, ...]
    commit: int
    group_ms: int


class PrepareOk(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """All entries up to `op` are durable here; `checksum` is that of `op`."""

    op: int
    checksum: Checksum


class Heartbeat(msgspec.Struct, frozen=True, tag=5, array_like=True):
    round: int
    commit: int
    first: int
    """The oldest op that the primary still has in its log."""
    group_ms: int


class RoundAck(msgspec.Struct, frozen=True, tag=6, array_like=True):
    round: int
    primary: BootId
    op: int
    checksum: Checksum
    version: int


class PreVote(msgspec.Struct, frozen=True, tag=7, array_like=True):
    """Would you vote for me in `view`? Changes nothing."""

    view: int
    ask: int = 0
    """Which time this boot asks; the answer names it."""


class PreVoteOk(msgspec.Struct, frozen=True, tag=8, array_like=True):
    view: int
    ask: int = 0


class ViewChange(msgspec.Struct, frozen=True, tag=9, array_like=True):
    """The candidate promised the packet's fence and asks for votes."""

    hand_over: bool


class Vote(msgspec.Struct, frozen=True, tag=10, array_like=True):
    """The voter promised the packet's fence; this is its log."""

    last_normal: Fence
    op: int
    checksum: Checksum
    commit: int
    group_ms: int
    is_restarted: bool
    """The voter has not heard the group clock since it started; `group_ms` is old."""
    away_ms: int


class AskView(msgspec.Struct, frozen=True, tag=11, array_like=True):
    """I am not in your view: send StartView."""


class StartView(msgspec.Struct, frozen=True, tag=12, array_like=True):
    """The view's log ends at `op`; who lacks a part of it fetches that."""

    op: int
    checksum: Checksum
    commit: int
    group_ms: int


class Fetch(msgspec.Struct, frozen=True, tag=13, array_like=True):
    """`fence` None: committed entries only, from anybody. Else the log of that view."""

    first: int
    fence: Fence | None


class Entries(msgspec.Struct, frozen=True, tag=14, array_like=True):
    fence: Fence | None
    first: int
    entries: tuple[LogEntry, ...]
    commit: int
    snapshot: int
    """Not 0: entries up to here are gone, take a snapshot."""


class Newer(msgspec.Struct, frozen=True, tag=15, array_like=True):
    """Your fence is old; the packet has mine."""


class TakeOver(msgspec.Struct, frozen=True, tag=16, array_like=True):
    """The primary asks: lead the next view, now. Your log ends where mine does."""

    op: int
    checksum: Checksum


class Learn(msgspec.Struct, frozen=True, tag=17, array_like=True):
    """From one who is no member: how much of the committed state it holds."""

    op: int
    version: int


class VoteComing(msgspec.Struct, frozen=True, tag=18, array_like=True):
    """The promise of the packet's fence is on its way to my disk: wait for my vote."""


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
    group: GroupId
    sender: Member
    boot: BootId
    fence: Fence
    body: Body
