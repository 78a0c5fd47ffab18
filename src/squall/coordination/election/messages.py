"""The events that the election core takes and the effects that it returns. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from squall.coordination.records.schemas import LeaseRecord


class Role(Enum):
    """The state of one boot in the election; `core` has the diagram."""

    OBSERVING = "observing"
    FOLLOWING = "following"
    STANDING = "standing"
    PREPARING = "preparing"
    LEADING = "leading"
    CLOSING = "closing"
    DRAINING = "draining"
    RETIRED = "retired"


# Roles that hold the lease and renew it.
HOLDING = (Role.PREPARING, Role.LEADING, Role.CLOSING)
# Reasons for which a holder ends its term by itself: it then releases the lease.
PLANNED = frozenset({"stopped", "forced", "unhealthy"})


class Purpose(Enum):
    """Why the lease record is written."""

    STAND = "stand"
    RENEW = "renew"
    RELEASE = "release"
    DEPOSE = "depose"


@dataclass(frozen=True, slots=True)
class SeenLease:
    """The lease record as it was read. `lease` is None if its signature or epoch was wrong."""

    version: str
    epoch: int
    lease: LeaseRecord | None


# Events.


@dataclass(frozen=True, slots=True)
class LeaseRead:
    """A read ended; `seen` is None if there is no record."""

    seen: SeenLease | None


@dataclass(frozen=True, slots=True)
class LeaseWritten:
    """The store took the write."""

    request: WriteLease
    version: str


@dataclass(frozen=True, slots=True)
class LeaseRefused:
    """The store refused the write: it holds another version or a higher epoch."""

    request: WriteLease


@dataclass(frozen=True, slots=True)
class LeaseUnanswered:
    """The write got no answer: it may have happened, or may happen later."""

    request: WriteLease


@dataclass(frozen=True, slots=True)
class RankKnown:
    """The answer to `FindRank`: the member's place among the live eligible ones, from 0."""

    rank: int


@dataclass(frozen=True, slots=True)
class Resign:
    """The holder ends its term by itself, for a reason of `PLANNED`."""

    reason: str
    successor: str = ""


@dataclass(frozen=True, slots=True)
class Fenced:
    """The store refused a write of this epoch, or this boot was declared dead."""

    epoch: int


@dataclass(frozen=True, slots=True)
class WorkEnded:
    """All work of the last term has stopped."""


@dataclass(frozen=True, slots=True)
class Retire:
    """This boot ends: the member stops, or goes on as a new boot."""


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


# Effects.


@dataclass(frozen=True, slots=True)
class ReadLease:
    """Read the lease record, then report `LeaseRead`."""


@dataclass(frozen=True, slots=True)
class FindRank:
    """Find the member's rank, then report `RankKnown`."""


@dataclass(frozen=True, slots=True)
class WriteLease:
    """Write the record, then report `LeaseWritten`, `LeaseRefused` or `LeaseUnanswered`."""

    purpose: Purpose
    expect: str | None
    """The version to replace; None expects no record."""
    lease: LeaseRecord
    sent_at: float


@dataclass(frozen=True, slots=True)
class Promote:
    """Begin a term: the member leads."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Demote:
    """End the term: work must stop."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """A cold start entered its next phase, after so long in the one before."""

    phase: str
    duration_s: float


@dataclass(frozen=True, slots=True)
class HolderChanged:
    """Another member leads than at the last read."""

    old: str
    lease: LeaseRecord
    vacant_s: float | None = None
    """How long the namespace had no leader before, if this member saw it."""


@dataclass(frozen=True, slots=True)
class WriteFenced:
    """The store refused a write of that epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Regressed:
    """The store shows an epoch below one that this member saw: it lost data."""

    seen: int
    found: int


@dataclass(frozen=True, slots=True)
class TermRenewed:
    """The holder goes on for another term under the same epoch."""

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
