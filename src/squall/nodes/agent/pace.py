"""How fast a store is used as a network, and what the nodes on it may expect.

A store that wakes its readers and costs nothing per request is used at once. One file is
looked at every few milliseconds while there is traffic. On S3 every request costs money
and tens of milliseconds: what leaves is gathered, who listens looks about once a second, and who
dials looks often only while an answer is due, and not before one can be there.

`wire` and `patience` follow from it: a link must outlive the longest quiet that an honest
store makes (`round_trip_s` and a short outage), or keep-alives would cut what works.
"""

from __future__ import annotations

import msgspec

from squall.api.errors import ConfigError
from squall.nodes.patience import Patience
from squall.wire.limits import WireLimits

_FAST_WIRE = WireLimits(
    dial_timeout_s=3.0, ping_interval_s=2.0, dead_after_s=10.0, backoff_cap_s=1.0
)
"""A Redis that changes its primary is away for some seconds; links outlive that."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    flush_s: float = 0.0
    """Least time between two letters to one mailbox; what comes meanwhile goes together."""
    letter_bytes: int = 512 * 1024
    """Of stream content in one letter."""
    poll_s: float = 5.0
    """How long one look at the inbox waits; where nothing wakes us, how often who listens
    looks."""
    quiet_poll_s: float = 0.0
    """How often who only dials looks while no answer is due; 0: as who listens."""
    busy_poll_s: float = 0.0
    """The same while an answer is due; 0: the store wakes us."""
    busy_s: float = 0.0
    """So long after something was sent an answer is due."""
    first_look_s: float = 0.0
    """Where each look costs: so long after something was sent no answer can be there yet."""
    tidy_s: float = 0.02
    """Read letters are removed together, so long after the first of them."""
    quiet_tidy_s: float = 0.0
    """The same for who only dials and lists nothing, so that they are in nobody's way; 0: no
    difference."""
    inbox_letters: int = 1000
    """Unread letters of one mailbox; beyond it senders wait. Only streams count them."""
    ttl_s: float = 600.0
    """An inbox that nobody reads vanishes."""
    schedules_s: float = 1.0
    """How often who coordinates looks which schedules there are."""
    retry_s: float = 0.05
    retry_max_s: float = 0.5
    full_s: float = 10.0
    """A mailbox that stays full so long is taken for dead."""
    give_up_s: float = 10.0
    """A store that does not answer for so long ends all connections."""
    close_s: float = 1.0
    """How long the end of a network waits to tell its peers."""
    round_trip_s: float = 0.25
    """What a request and its answer take at most while all is well."""
    wire: WireLimits = _FAST_WIRE
    """For who listens."""
    patience: Patience = Patience(limits=_FAST_WIRE)
    """For who dials."""

    def __post_init__(self) -> None:
        for limits in (self.wire, self.patience.limits):
            quiet_s = limits.ping_interval_s + self.round_trip_s
            patient = limits.handshake_timeout_s >= 2 * self.round_trip_s
            if limits.dead_after_s < 2 * quiet_s or not patient:
                raise ConfigError(
                    f"links that die after {limits.dead_after_s:g} s of silence do not fit a "
                    f"store with round trips of {self.round_trip_s:g} s"
                )


AT_ONCE = Pace()
ONE_FILE = Pace(busy_poll_s=0.004, busy_s=0.5)

_S3_WIRE = WireLimits(
    dial_timeout_s=20.0,
    handshake_timeout_s=30.0,
    ping_interval_s=15.0,
    dead_after_s=60.0,
    partial_frame_s=120.0,
    stall_s=60.0,
    backoff_base_s=0.5,
    backoff_cap_s=5.0,
)
OBJECTS = Pace(
    flush_s=0.5,
    letter_bytes=4 * 1024 * 1024,
    poll_s=1.25,
    quiet_poll_s=2.0,
    busy_poll_s=0.5,
    busy_s=3.0,
    first_look_s=0.75,
    tidy_s=5.0,
    quiet_tidy_s=20.0,
    ttl_s=3600.0,
    schedules_s=10.0,
    retry_s=0.5,
    retry_max_s=2.0,
    full_s=60.0,
    give_up_s=60.0,
    close_s=3.0,
    round_trip_s=5.0,
    wire=_S3_WIRE,
    patience=Patience(
        limits=_S3_WIRE,
        request_s=12.0,
        register_s=30.0,
        telemetry_s=20.0,
        offer_s=180.0,
        chunk_s=120.0,
        connect_s=25.0,
        answer_s=30.0,
        query_s=45.0,
        upload_s=300.0,
        follow_pause_s=4.0,
    ),
)
PACES = {
    "memory": AT_ONCE,
    "redis": AT_ONCE,
    "rediss": AT_ONCE,
    "unix": AT_ONCE,
    "sqlite": ONE_FILE,
    "s3": OBJECTS,
}


def pace_of(url: str) -> Pace:
    scheme = url.partition(":")[0]
    pace = PACES.get(scheme)
    if pace is None:
        raise ConfigError(f"{scheme}: is not a store: use memory, sqlite, redis or s3")
    return pace
