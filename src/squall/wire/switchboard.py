"""What all conversations of one process share, so that it is said once.

Composition by callbacks: the wire asks through them and knows nobody above it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from squall.runtime.interfaces import Runtime, TLSContext
from squall.runtime.tasks import TaskRunner
from squall.wire.catalogue import Catalogue, MessageType
from squall.wire.claims import ClaimCheck
from squall.wire.counters import WireCounters
from squall.wire.dispatch import Admit, Handlers
from squall.wire.frames import BufferBudget
from squall.wire.header import MessageClass
from squall.wire.keepalive import KeepAlive
from squall.wire.keyring import Identity, Keyring
from squall.wire.limits import WireLimits
from squall.wire.profile import Profile
from squall.wire.secrets import Secrets


def _nobody(*_: object) -> None:
    pass


def _nothing(message_class: MessageClass) -> bool:
    return False


@dataclass(slots=True)
class Switchboard:
    runtime: Runtime
    keyring: Keyring
    admit: Admit
    tasks: TaskRunner
    handlers: Handlers
    passes: Callable[[MessageClass], bool] = _nothing
    """Whether there is room for what is handled at once, without a slot of its own."""
    profile: Profile = field(default_factory=Profile)
    limits: WireLimits = field(default_factory=WireLimits)
    counters: WireCounters = field(default_factory=WireCounters)
    listen_tls: TLSContext | None = None
    dial_tls: TLSContext | None = None
    claims: ClaimCheck | None = None
    on_heard: Callable[[Identity], None] = _nobody
    """An authentic frame of this peer arrived: called before any queue."""
    on_error: Callable[[Exception], None] = _nobody
    """A handler raised something that is no typed error."""
    on_undelivered: Callable[[MessageType, object, str], None] = _nobody
    """A one-way message that was queued and not sent, and why. TELEMETRY is not told."""
    budget: BufferBudget = field(init=False)
    keepalive: KeepAlive = field(init=False)

    def __post_init__(self) -> None:
        self.budget = BufferBudget(self.limits.buffers_max)
        self.keepalive = KeepAlive(self.runtime.clock, self.limits.ping_interval_s)

    @property
    def catalogue(self) -> Catalogue:
        return self.handlers.catalogue


def make_keyring(runtime: Runtime, secrets: Secrets, cluster: str) -> Keyring:
    """The keyring of this boot; make it once."""
    return Keyring(
        secrets,
        cluster=cluster,
        node=runtime.node,
        boot=runtime.boot,
        entropy=runtime.entropy,
    )
