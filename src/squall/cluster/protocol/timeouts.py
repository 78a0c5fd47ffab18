"""The timeouts of requests between nodes.

The defaults fit sockets. A network with round trips of seconds, such as one over an object store,
has its own: a timeout that is shorter than a round trip can never succeed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from squall.cluster.wire.blob_transfer import CHUNK_TIMEOUT_S
from squall.cluster.wire.limits import WireLimits

LINK_LIMITS = WireLimits(dial_timeout_s=3.0, backoff_cap_s=1.0)
"""A manager that restarts is back in a second, and leases run meanwhile: dial again soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTimeouts:
    """How long each kind of request may take."""

    limits: WireLimits = field(default=LINK_LIMITS)
    """The limits of the links that a worker or a client dials."""
    request_s: float = 2.0
    """A worker's session; twice the session interval if that is longer."""
    register_s: float = 10.0
    telemetry_s: float = 5.0
    offer_s: float = 60.0
    """An offered record, which the manager pulls before it answers."""
    chunk_s: float = CHUNK_TIMEOUT_S
    """One chunk of a blob."""
    connect_s: float = 3.0
    """How long a client waits for one manager before it tries the next."""
    answer_s: float = 10.0
    query_s: float = 4.0
    """A status query; much shorter than the wait of a running job's client."""
    upload_s: float = 120.0
    silence_s: float = 3.0
    """A client does not take a shorter silence for the loss of its manager, however little patience
    it has: links are pinged after 1.5 s, and that is looked at once a second."""
    follow_pause_s: float = 0.0
    """The pause between two follow requests, where each of them is expensive."""
