"""What the lease record says at each step of an election. Pure; `election` decides when.

It must never make a record of an epoch that was used before.
"""

from __future__ import annotations

import msgspec

from squall.coordination.records import LeaseRecord, Pace
from squall.coordination.timing import Timing

RECENT = 6
"""Elections that a record remembers: one more than may be within ten minutes."""


def stood_for(
    before: LeaseRecord | None,
    *,
    epoch: int,
    member_id: str,
    incarnation: int,
    number: int,
    elected_at: float,
    term_ends_at: float,
    lease_ttl: float,
    pace: Pace | None,
    min_term: float = 0.0,
) -> LeaseRecord:
    """That of a member that wants to lead; `number` is unique to its attempts."""
    standbys = before.standbys if before is not None else ()
    recent = before.recent if before is not None else ()
    return LeaseRecord(
        epoch=epoch,
        worker_id=member_id,
        incarnation=incarnation,
        token=f"{member_id}.{incarnation}.{number}",
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


def held_by_nobody(
    member_id: str, incarnation: int, *, epoch: int, at: float, lease_ttl: float
) -> LeaseRecord:
    """In place of an epoch that was used before: until it has passed nobody leads."""
    return LeaseRecord(
        epoch=epoch,
        worker_id="",
        incarnation=0,
        token=f"{member_id}.{incarnation}.deposed",
        elected_at=at,
        renewals=0,
        lease_ttl=lease_ttl,
        term_ends_at=at,
    )


def renewed(
    lease: LeaseRecord,
    *,
    number: int,
    term_ends_at: float,
    standbys: tuple[str, ...],
    live: int,
    signing_key: str,
    pace: Pace | None,
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


def given_up(
    lease: LeaseRecord, *, number: int, successor: str, standbys: tuple[str, ...]
) -> LeaseRecord:
    return msgspec.structs.replace(
        lease,
        renewals=number,
        released=True,
        successor=successor,
        standbys=standbys or lease.standbys,
    )


def stands_after_s(rank: int, lease: LeaseRecord | None, member_id: str, timing: Timing) -> float:
    """How long the one of that rank lets the others go first."""
    delay_s = min(rank * timing.rank_delay, timing.rank_delay_cap)
    if lease is not None and lease.successor not in ("", member_id):
        # Another one was named: it has the first word, if it is there.
        delay_s += timing.heartbeat_interval
    return delay_s
