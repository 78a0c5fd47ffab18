"""What the core wants done, in order. The driver does it and decides nothing.

A send that reveals a promise names the record that must be durable first; the driver
holds it back. Records become durable in the order of their numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from squall.ledger.interface import Fence, GroupMs
from squall.ledger.replica.messages import Packet
from squall.ledger.replica.types import Config, LogEntry, Record
from squall.runtime.interfaces import NodeId


@dataclass(frozen=True, slots=True)
class Persist:
    number: int
    record: Record


@dataclass(frozen=True, slots=True)
class Send:
    to: tuple[NodeId, ...]
    packet: Packet
    after: int
    """Number of the record that must be durable first; 0: at once."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Committed, in order, each exactly once per boot."""

    entries: tuple[LogEntry, ...]


@dataclass(frozen=True, slots=True)
class Serves:
    """This member leads and everything it inherited is committed."""

    fence: Fence


@dataclass(frozen=True, slots=True)
class SteppedDown:
    """Whatever was submitted here and is not applied has an unknown outcome."""

    fence: Fence
    reason: str


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A round that began after these were asked was acknowledged by a quorum."""

    tokens: tuple[int, ...]
    fence: Fence
    commit: int
    """The commit number when the round began, at least: what a strong read waits for."""


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EnteredEpoch:
    config: Config
    is_member: bool


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """The log to catch up with is gone at that peer: take its checkpoint."""

    source: NodeId
    op: int


@dataclass(frozen=True, slots=True)
class MembersAnswer:
    """Of a membership change: proposed (its entry is in the log) or refused."""

    token: int
    refusal: str


@dataclass(frozen=True, slots=True)
class Mended:
    """What a damaged disk had lost is in the log again, once that record is durable."""

    number: int


@dataclass(frozen=True, slots=True)
class Diverged:
    """Two histories below the commit number: this replica must stop and keep its files."""

    text: str


@dataclass(frozen=True, slots=True)
class ClockTaken:
    """A new primary continues the group clock from here."""

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
