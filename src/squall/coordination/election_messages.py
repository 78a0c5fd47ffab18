"""What the election core is told and what it asks for.

Plain data; `election` gives it its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from squall.coordination.records import LeaseRecord


class Role(Enum):
    OBSERVING = "observing"
    FOLLOWING = "following"
    STANDING = "standing"
    PREPARING = "preparing"
    LEADING = "leading"
    CLOSING = "closing"
    DRAINING = "draining"
    RETIRED = "retired"


HOLDING = (Role.PREPARING, Role.LEADING, Role.CLOSING)
PLANNED = frozenset({"stopped", "forced", "unhealthy"})
"""Reasons for which the holder itself ends its term, and releases the lease."""


class Purpose(Enum):
    """Why the lease record is written."""

    STAND = "stand"
    RENEW = "renew"
    RELEASE = "release"
    DEPOSE = "depose"


@dataclass(frozen=True, slots=True)
class Seen:
    """The lease record as it was read. `lease` is None if it could not be believed."""

    version: str
    epoch: int
    lease: LeaseRecord | None


# What comes in.


@dataclass(frozen=True, slots=True)
class LeaseRead:
    """`seen` is None when there is no record."""

    seen: Seen | None


@dataclass(frozen=True, slots=True)
class LeaseWritten:
    request: WriteLease
    version: str


@dataclass(frozen=True, slots=True)
class LeaseRefused:
    """Another version is there, or another epoch."""

    request: WriteLease


@dataclass(frozen=True, slots=True)
class LeaseUnanswered:
    """The write may have happened, or happen later."""

    request: WriteLease


@dataclass(frozen=True, slots=True)
class RankKnown:
    """The member's place among the live eligible ones."""

    rank: int


@dataclass(frozen=True, slots=True)
class Resign:
    """The holder wants to end its term: `stopped`, `forced` or `unhealthy`."""

    reason: str
    successor: str = ""


@dataclass(frozen=True, slots=True)
class Fenced:
    """A write of this epoch was refused, or this incarnation was declared dead."""

    epoch: int


@dataclass(frozen=True, slots=True)
class WorkEnded:
    """What was done under the last term has stopped."""


@dataclass(frozen=True, slots=True)
class Retire:
    """The member stops for good, or begins a new incarnation."""


Event = (
    LeaseRead
    | LeaseWritten
    | LeaseRefused
    | LeaseUnanswered
    | RankKnown
    | Resign
    | Fenced
    | WorkEnded
    | Retire
)


# What comes out.


@dataclass(frozen=True, slots=True)
class ReadLease:
    pass


@dataclass(frozen=True, slots=True)
class FindRank:
    pass


@dataclass(frozen=True, slots=True)
class WriteLease:
    purpose: Purpose
    expect: str | None
    """The version to replace; None: there must be no record."""
    lease: LeaseRecord
    sent_at: float


@dataclass(frozen=True, slots=True)
class Promote:
    epoch: int


@dataclass(frozen=True, slots=True)
class Demote:
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    phase: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class HolderChanged:
    old: str
    lease: LeaseRecord
    vacant_s: float | None = None
    """How long nobody led before, if this member saw that."""


@dataclass(frozen=True, slots=True)
class WriteFenced:
    """The store refused a write of that epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Regressed:
    """The store shows an epoch below one that was seen: it lost data."""

    seen: int
    found: int


@dataclass(frozen=True, slots=True)
class TermRenewed:
    epoch: int
    term_ends_at: float


Effect = (
    ReadLease
    | FindRank
    | WriteLease
    | Promote
    | Demote
    | PhaseChanged
    | HolderChanged
    | WriteFenced
    | Regressed
    | TermRenewed
)
