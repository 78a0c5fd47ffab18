"""Makes the lease record of each step of an election. Pure; `core` decides when to write one."""

from __future__ import annotations

import msgspec

from squall.coordination.election.messages import SeenLease
from squall.coordination.records.schemas import HeartbeatPace, LeaseRecord
from squall.coordination.stores.interface import Record
from squall.coordination.timing import Timing

# Elections that a record remembers: one more than the five in ten minutes that count as flapping.
RECENT = 6


def next_epoch(seen: SeenLease | Record | None, highest: int, wall_s: float) -> int:
    """The epoch of a candidacy: above that of the record and the highest that the member saw.

    Without a record it is also not below the wall clock's seconds. A store that lost its data has
    forgotten its epochs, and a member that starts now never knew them: from 1 on it would repeat
    the fencing tokens of earlier leaders.
    """
    if seen is None:
        return max(highest + 1, int(wall_s))
    return max(seen.epoch, highest) + 1


def candidate_lease(
    before: LeaseRecord | None,
    *,
    epoch: int,
    member_id: str,
    boot: int,
    number: int,
    elected_at: float,
    term_ends_at: float,
    lease_ttl: float,
    pace: HeartbeatPace | None,
    min_term: float = 0.0,
) -> LeaseRecord:
    """The record of a candidate. `number` distinguishes the candidacies of one boot."""
    standbys = before.standbys if before is not None else ()
    recent = before.recent if before is not None else ()
    return LeaseRecord(
        epoch=epoch,
        member_id=member_id,
        boot=boot,
        token=f"{member_id}.{boot}.{number}",
        elected_at=elected_at,
        renewals=0,
        lease_ttl=lease_ttl,
        term_ends_at=term_ends_at,
        standbys=tuple(each for each in standbys if each != member_id),
        live=before.live if before is not None else 0,
        pace=pace,
        recent=(*recent, round(elected_at, 3))[-RECENT:],
        min_term=min_term,
    )


def vacant_lease(
    member_id: str, boot: int, *, epoch: int, at: float, lease_ttl: float
) -> LeaseRecord:
    """Replaces a record of an epoch that had ended: no member leads until this one expires."""
    return LeaseRecord(
        epoch=epoch,
        member_id="",
        boot=0,
        token=f"{member_id}.{boot}.deposed",
        elected_at=at,
        renewals=0,
        lease_ttl=lease_ttl,
        term_ends_at=at,
    )


def renewed_lease(
    lease: LeaseRecord,
    *,
    number: int,
    term_ends_at: float,
    standbys: tuple[str, ...],
    live: int,
    signing_key: str,
    pace: HeartbeatPace | None,
) -> LeaseRecord:
    return msgspec.structs.replace(
        lease,
        renewals=number,
        term_ends_at=term_ends_at,
        standbys=standbys or lease.standbys,
        live=live or lease.live,
        signing_key=signing_key or lease.signing_key,
        pace=pace or lease.pace,
    )


def released_lease(
    lease: LeaseRecord, *, number: int, successor: str, standbys: tuple[str, ...]
) -> LeaseRecord:
    return msgspec.structs.replace(
        lease,
        renewals=number,
        released=True,
        successor=successor,
        standbys=standbys or lease.standbys,
    )


def candidacy_delay_s(
    rank: int, lease: LeaseRecord | None, member_id: str, timing: Timing
) -> float:
    """How long a candidate of this rank waits for those before it."""
    delay_s = min(rank * timing.rank_delay, timing.rank_delay_cap)
    if lease is not None and lease.successor not in ("", member_id):
        # The last holder named another member: that one goes first, if it lives.
        delay_s += timing.heartbeat_interval
    return delay_s
