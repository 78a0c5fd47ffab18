"""What a namespace asks of its store while nothing happens, and what S3 takes for it. Pure.

The figures follow from the timers: one heartbeat per member and interval, one renewal of the
lease per interval, the looks of the others at it, the monitor's listing, the coordinator's
polling of its inbox. A test counts what members really ask of an S3 server and compares. Work
comes on top: each signal, ticket and record of an application.

Prices are AWS list prices for S3 Standard in us-east-1.
"""

from __future__ import annotations

import math

import msgspec

from squall.coordination.health import CHECKS_PER_INTERVAL
from squall.coordination.timing import Timing

HOURS_A_MONTH = 720.0
WRITE_PRICE = 0.005 / 1000
"""US dollars for a PUT or a LIST."""
READ_PRICE = 0.0004 / 1000
"""For a GET or HEAD. A DELETE is free."""
LISTED_AT_ONCE = 1000
LOOKS_PER_BEAT = 0.8
"""The part of an interval after which a follower on S3 looks at the lease again."""
CYCLES_PER_STANDBYS = 3
STANDBYS_READ = 20
POLLS_A_MINUTE = 33.0
"""Of a stream that somebody waits on: quick at first, then every two seconds."""
READS_PER_POLL = 2.0
UPKEEP_S = 300.0
KINDS_SWEPT = 4
"""That a group has which does nothing: registrations, cleanups, probes, inboxes."""


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """In one hour."""

    writes: float
    reads: float
    lists: float

    @property
    def price(self) -> float:
        """US dollars an hour."""
        return (self.writes + self.lists) * WRITE_PRICE + self.reads * READ_PRICE


def s3_requests(timing: Timing, members: int, waits: int = 0) -> Requests:
    """Of so many members, of which one leads; `waits` is how many streams are waited on all
    the time besides the coordinator's inbox: idle workers of queues, blocked callers."""
    beats = 3600.0 / timing.heartbeat_interval
    cycles = 3600.0 / (timing.monitor_interval * CHECKS_PER_INTERVAL)
    standbys = cycles / CYCLES_PER_STANDBYS
    pages = math.ceil(members / LISTED_AT_ONCE)
    upkeeps = 3600.0 / UPKEEP_S
    polls = 60.0 * POLLS_A_MINUTE * READS_PER_POLL
    return Requests(
        # Beats and renewals; a cleanup guards itself and leaves its result.
        writes=(members + 1) * beats + 2.0 * upkeeps,
        # A renewal first looks whether its member still lives.
        reads=(members - 1) * beats / LOOKS_PER_BEAT
        + beats
        + standbys * min(members - 1, STANDBYS_READ)
        + polls * (1 + waits)
        + 2.0 * upkeeps,
        lists=pages * (cycles + standbys) + upkeeps * (3 * pages + KINDS_SWEPT),
    )


def beats_an_hour(timing: Timing, members: int) -> float:
    """What every other store has to bear; nobody takes money for it."""
    return members * 3600.0 / timing.heartbeat_interval
