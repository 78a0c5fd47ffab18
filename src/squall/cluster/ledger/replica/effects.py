"""The effects that the core returns. The driver carries them out in order and decides nothing.

A send that reveals a promise names the record that must be durable first; the driver holds
the send back until then (R11). Records become durable in the order of their numbers.
"""

from __future__ import annotations

import msgspec

from squall.cluster.ledger.interface import Fence, GroupMs
from squall.cluster.ledger.replica.messages import Packet
from squall.cluster.ledger.replica.types import Config, LogEntry, StepRecord
from squall.runtime.interfaces import NodeId


class Persist(msgspec.Struct, frozen=True):
    """Writes a record to disk; the driver reports back when it is durable."""

    number: int
    record: StepRecord


class Send(msgspec.Struct, frozen=True):
    """Sends a packet to members, at once or after a record is durable (R11)."""

    to: tuple[NodeId, ...]
    packet: Packet
    after: int
    """Number of the record that must be durable first; 0 sends at once."""


class Apply(msgspec.Struct, frozen=True):
    """Applies committed entries, in order; each op is applied exactly once per boot."""

    entries: tuple[LogEntry, ...]


class Serves(msgspec.Struct, frozen=True):
    """This member leads, and every entry that it inherited is committed (R2)."""

    fence: Fence


class SteppedDown(msgspec.Struct, frozen=True):
    """This member no longer leads. A command submitted here and not yet applied has an unknown
    outcome."""

    fence: Fence
    reason: str


class Confirmed(msgspec.Struct, frozen=True):
    """A quorum acknowledged a round that began after these confirmations were requested (R2)."""

    tokens: tuple[int, ...]
    fence: Fence
    commit: int
    """At least the commit number when the round began; a strong read waits until it is applied."""


class Unconfirmed(msgspec.Struct, frozen=True):
    """The member stopped leading, or may not confirm: these requests get no confirmation."""

    tokens: tuple[int, ...]


class EnteredEpoch(msgspec.Struct, frozen=True):
    """This member entered the epoch of `config`, as a member or as a learner."""

    config: Config
    is_member: bool


class FetchSnapshot(msgspec.Struct, frozen=True):
    """The peer has trimmed the entries that this member needs: fetch its checkpoint."""

    source: NodeId
    op: int


class MembersAnswer(msgspec.Struct, frozen=True):
    """A membership change was proposed (its entry is in the log) or refused."""

    token: int
    refusal: str


class Mended(msgspec.Struct, frozen=True):
    """The log holds again what the damaged disk had lost, once this record is durable."""

    number: int


class Diverged(msgspec.Struct, frozen=True):
    """Two members disagree about a committed entry: this replica must stop and keep its files."""

    text: str


class ClockTaken(msgspec.Struct, frozen=True):
    """This member, as the new primary, continues the group clock from here (R10)."""

    group_ms: GroupMs
    all_restarted: bool


Effect = (
    Persist
    | Send
    | Apply
    | Serves
    | SteppedDown
    | Confirmed
    | Unconfirmed
    | EnteredEpoch
    | FetchSnapshot
    | MembersAnswer
    | Mended
    | Diverged
    | ClockTaken
)
