"""How long a node waits for its network, before it asks again or gives up.

The defaults fit sockets. A network with round trips of seconds, such as one over an
object store, brings its own: a wait that is shorter than a round trip never ends well.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from squall.wire.blobs import CHUNK_TIMEOUT_S
from squall.wire.limits import WireLimits

LINK_LIMITS = WireLimits(dial_timeout_s=3.0, backoff_cap_s=1.0)
"""A manager that restarts is back in a second, and leases do not wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    limits: WireLimits = field(default=LINK_LIMITS)
    """Of the links that a worker or a client dials."""
    request_s: float = 2.0
    """The answer of a worker's session; twice its interval if that is longer."""
    register_s: float = 10.0
    telemetry_s: float = 5.0
    offer_s: float = 60.0
    """A record that a manager pulls after it was offered."""
    chunk_s: float = CHUNK_TIMEOUT_S
    """One chunk of a blob."""
    connect_s: float = 3.0
    """How long a client waits for one manager before it tries the next."""
    answer_s: float = 10.0
    query_s: float = 4.0
    """A question is not worth a minute; a job that runs is."""
    upload_s: float = 120.0
    follow_pause_s: float = 0.0
    """Between two questions for what is new of a job, where each of them costs."""
