"""The settings of a worker."""

from __future__ import annotations

import msgspec

from squall.cluster.protocol.timeouts import RequestTimeouts
from squall.cluster.protocol.timers import Timers
from squall.cluster.wire.links.switchboard import LinkTLS
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.interfaces import Address


class FormerProcess(msgspec.Struct, frozen=True):
    pid: int
    ended_at: float
    """By CLOCK_BOOTTIME: when the process and all that it started were gone."""


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The identity and settings of one worker."""

    datacenter: str
    managers: tuple[Address, ...]
    cores: int
    secrets: Secrets
    cluster: str
    timers: Timers
    tls: LinkTLS | None = None
    version: str = ""
    python: str = ""
    descriptors: int = 0
    """The sockets that one core process may open; 0: unknown."""
    metrics: Address | None = None
    """The address of /metrics, /healthz and /readyz; None: they are not served."""
    timeouts: RequestTimeouts = RequestTimeouts()
    """How long requests to managers may take on the network between them."""
    former: FormerProcess | None = None
    """The main process that this one replaces, if a launcher saw its end."""
    membership: bool = False
    """It takes part in membership if the managers say so."""
    drain_s: float = 0.0
    """How long a stop lets running shares go on, unless other workers continue them."""
    deliver_s: float = 8.0
    """How long a stop then waits for shares to end and for managers to take their records."""
