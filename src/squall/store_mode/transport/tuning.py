"""How often each kind of store is polled as a network, and which timeouts its nodes need.

Redis wakes its readers and costs nothing per request, so nothing is delayed. An SQLite file is
polled every few milliseconds while there is traffic. On S3 every request costs money and tens of
milliseconds: outgoing data is gathered, a listener polls about once a second, and a process that
only dials polls often only while an answer is due, and not before one can be there.

`wire` and `request_timeouts` follow from that: a link must outlive the longest silence of a
healthy store (`round_trip_s` and a short outage), or keep-alives would cut working links.
"""

from __future__ import annotations

import msgspec

from squall.api.errors import ConfigError
from squall.cluster.protocol.timeouts import RequestTimeouts
from squall.cluster.wire.limits import WireLimits
from squall.runtime.backoff import Backoff

# A Redis failover takes some seconds; links outlive it.
_FAST_WIRE = WireLimits(
    dial_timeout_s=3.0, ping_interval_s=2.0, dead_after_s=10.0, backoff_cap_s=1.0
)


class TransportTuning(msgspec.Struct, frozen=True, kw_only=True):
    """How a network uses one kind of store."""

    flush_s: float = 0.0
    """Least time between two envelopes to one mailbox; what is queued meanwhile goes together."""
    envelope_bytes: int = 512 * 1024
    """Most stream content in one envelope."""
    poll_s: float = 5.0
    """How long one read of the inbox waits; without wake-ups, the poll interval of a
    listener."""
    quiet_poll_s: float = 0.0
    """Poll interval of a process that only dials while no answer is due; 0: as a listener."""
    busy_poll_s: float = 0.0
    """Poll interval while an answer is due; 0: the store wakes the reader."""
    busy_s: float = 0.0
    """How long after a send an answer is due."""
    first_poll_s: float = 0.0
    """How long after a send no answer can be there yet, so that polls would be wasted."""
    remove_s: float = 0.02
    """Envelopes that were read are removed together, this long after the first of them."""
    quiet_remove_s: float = 0.0
    """The same for a process that only dials; it does not list its inbox, so that they cost it
    nothing. 0: as `remove_s`."""
    inbox_envelopes: int = 1000
    """Unread envelopes of one mailbox; senders wait beyond it. Only streams count them."""
    ttl_s: float = 600.0
    """An inbox that is not read expires."""
    schedules_poll_s: float = 1.0
    """How often the coordinator reads the index of schedules."""
    retry: Backoff = Backoff(0.05, cap_s=0.5, jitter=0.5)
    """Delay after a failed request. Readers add jitter, so that they do not all ask a store at
    once when it comes back; a sender has none, because it waits only for its own mailbox."""
    full_s: float = 10.0
    """A mailbox that stays full for this long belongs to a dead process."""
    give_up_s: float = 10.0
    """All connections end after the store has not answered for this long."""
    close_s: float = 1.0
    """How long a closing network tries to notify its peers."""
    round_trip_s: float = 0.25
    """The longest time for a request and its answer on a healthy store."""
    wire: WireLimits = _FAST_WIRE
    """Limits of a listener."""
    request_timeouts: RequestTimeouts = RequestTimeouts(limits=_FAST_WIRE)
    """Timeouts of a process that dials."""

    def __post_init__(self) -> None:
        for limits in (self.wire, self.request_timeouts.limits):
            quiet_s = limits.ping_interval_s + self.round_trip_s
            handshake_fits = limits.handshake_timeout_s >= 2 * self.round_trip_s
            if limits.dead_after_s < 2 * quiet_s or not handshake_fits:
                raise ConfigError(
                    f"links that die after {limits.dead_after_s:g} s of silence do not fit a "
                    f"store with round trips of {self.round_trip_s:g} s"
                )


REDIS_TUNING = TransportTuning()
SQLITE_TUNING = TransportTuning(busy_poll_s=0.004, busy_s=0.5)

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
S3_TUNING = TransportTuning(
    flush_s=0.5,
    envelope_bytes=4 * 1024 * 1024,
    poll_s=1.25,
    quiet_poll_s=2.0,
    busy_poll_s=0.5,
    busy_s=3.0,
    first_poll_s=0.75,
    remove_s=5.0,
    quiet_remove_s=20.0,
    ttl_s=3600.0,
    schedules_poll_s=10.0,
    retry=Backoff(0.5, cap_s=2.0, jitter=0.5),
    full_s=60.0,
    give_up_s=60.0,
    close_s=3.0,
    round_trip_s=5.0,
    wire=_S3_WIRE,
    request_timeouts=RequestTimeouts(
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
        # Two round trips: pings are too rare here to show that a coordinator lives.
        silence_s=10.0,
        follow_pause_s=4.0,
    ),
)
TUNINGS = {
    "memory": REDIS_TUNING,
    "redis": REDIS_TUNING,
    "rediss": REDIS_TUNING,
    "unix": REDIS_TUNING,
    "sqlite": SQLITE_TUNING,
    "s3": S3_TUNING,
}


def tuning_of(url: str) -> TransportTuning:
    scheme = url.partition(":")[0]
    tuning = TUNINGS.get(scheme)
    if tuning is None:
        raise ConfigError(f"{scheme}: is not a store: use memory, sqlite, redis or s3")
    return tuning
