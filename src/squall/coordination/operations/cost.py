"""Computes the requests of an idle namespace to its store, and their price on S3. Pure.

The numbers follow from the timers: one heartbeat per member and interval, one renewal of the lease
per interval, the reads of the lease by the others, the listings of the monitor, and the leader's
polling of its inbox. A test counts the real requests to an S3 server and compares. Signals, tickets
and records of the application come on top.

Prices are AWS list prices for S3 Standard in us-east-1.
"""

from __future__ import annotations

import math

import msgspec

from squall.coordination.members.health_rules import CHECKS_PER_INTERVAL
from squall.coordination.members.housekeeping import CLEANUP_S
from squall.coordination.members.monitor import CYCLES_PER_STANDBYS
from squall.coordination.members.standbys import STANDBY_READS
from squall.coordination.timing import Timing

HOURS_A_MONTH = 720.0
# US dollars for a PUT or a LIST.
WRITE_PRICE = 0.005 / 1000
# US dollars for a GET or HEAD. A DELETE is free.
READ_PRICE = 0.0004 / 1000
LISTED_AT_ONCE = 1000
# The part of an interval after which a follower on S3 reads the lease again.
BEATS_PER_LEASE_READ = 0.8
# Polls of a stream that a caller waits on: fast at first, then every two seconds.
POLLS_A_MINUTE = 33.0
READS_PER_POLL = 2.0
# Kinds of records in an idle group: registrations, cleanups, probes, inboxes.
KINDS_SWEPT = 4


class StoreRequests(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one hour."""

    writes: float
    reads: float
    lists: float

    @property
    def price(self) -> float:
        """In US dollars per hour."""
        return (self.writes + self.lists) * WRITE_PRICE + self.reads * READ_PRICE


def s3_requests(timing: Timing, members: int, waits: int = 0) -> StoreRequests:
    """The requests of so many members, one of which leads. `waits` is the number of streams that
    are polled all the time besides the leader's inbox: idle queue workers, blocked callers."""
    beats = 3600.0 / timing.heartbeat_interval
    cycles = 3600.0 / (timing.monitor_interval * CHECKS_PER_INTERVAL)
    standbys = cycles / CYCLES_PER_STANDBYS
    pages = math.ceil(members / LISTED_AT_ONCE)
    cleanups = 3600.0 / CLEANUP_S
    polls = 60.0 * POLLS_A_MINUTE * READS_PER_POLL
    return StoreRequests(
        # Beats and renewals; a cleanup writes its guard and its report.
        writes=(members + 1) * beats + 2.0 * cleanups,
        # A renewal first checks that its member is registered.
        reads=(members - 1) * beats / BEATS_PER_LEASE_READ
        + beats
        + standbys * min(members - 1, STANDBY_READS)
        + polls * (1 + waits)
        + 2.0 * cleanups,
        lists=pages * (cycles + standbys) + cleanups * (3 * pages + KINDS_SWEPT),
    )


def beats_an_hour(timing: Timing, members: int) -> float:
    """Heartbeats per hour: the base load of stores without a price per request."""
    return members * 3600.0 / timing.heartbeat_interval
