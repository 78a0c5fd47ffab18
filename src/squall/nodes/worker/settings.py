"""What a worker is started with."""

from __future__ import annotations

import msgspec

from squall.nodes.patience import Patience
from squall.nodes.timers import Timers
from squall.runtime.interfaces import Address
from squall.wire.secrets import Secrets


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    datacenter: str
    managers: tuple[Address, ...]
    cores: int
    secrets: Secrets
    cluster: str
    timers: Timers
    version: str = ""
    python: str = ""
    descriptors: int = 0
    """Sockets that one of its core processes may open; 0: unknown."""
    metrics: Address | None = None
    """Where /metrics, /healthz and /readyz are; None: nowhere."""
    patience: Patience = Patience()
    """How long it waits for its managers: what the network between them needs."""
    deliver_s: float = 8.0
    """How long a stop waits for shares to end and for their records to be taken."""
