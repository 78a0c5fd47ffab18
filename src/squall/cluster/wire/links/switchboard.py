"""What all channels of one process share: keys, limits, handlers, counters, callbacks.

The wire calls the node above it through these callbacks only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from squall.cluster.wire.catalogue import Catalogue, MessageType
from squall.cluster.wire.counters import WireCounters
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.limits import WireLimits
from squall.cluster.wire.links.dispatch import Admit, Handlers
from squall.cluster.wire.links.frames import BufferBudget
from squall.cluster.wire.links.keepalive import KeepAlive
from squall.cluster.wire.negotiation import Profile
from squall.cluster.wire.seal.certificate_claims import ClaimCheck, certificate_claims
from squall.cluster.wire.seal.keyring import Identity, Keyring
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.interfaces import Address, BootId, Runtime, TLSContext
from squall.runtime.names import Names
from squall.runtime.tasks import TaskRunner

if TYPE_CHECKING:
    from squall.cluster.wire.links.channel import Channel


def _ignore(*_: object) -> None:
    pass


def _nothing(message_class: MessageClass) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class LinkTLS:
    """The contexts of mutual TLS. With them every peer must show a certificate that claims
    its role."""

    listen: TLSContext
    dial: TLSContext


@dataclass(slots=True)
class Switchboard:
    """The shared parts of a process's links; exactly one per boot."""

    runtime: Runtime
    keyring: Keyring
    admit: Admit
    tasks: TaskRunner
    handlers: Handlers
    passes: Callable[[MessageClass], bool] = _nothing
    """Whether there is room for a brief handler, which takes no slot."""
    profile: Profile = field(default_factory=Profile)
    limits: WireLimits = field(default_factory=WireLimits)
    counters: WireCounters = field(default_factory=WireCounters)
    tls: LinkTLS | None = None
    """None: the links are sealed, but without certificates."""
    on_refused: Callable[[Address, Exception], None] = _ignore
    """A connection to our listener got no session, and why."""
    on_heard: Callable[[Identity], None] = _ignore
    """An authentic frame of this peer arrived; called before the frame is queued or handled."""
    on_error: Callable[[Exception], None] = _ignore
    """A handler raised something other than `RemoteError`."""
    on_undelivered: Callable[[MessageType, object, str], None] = _ignore
    """A queued one-way message was not sent, and why. Not called for TELEMETRY."""
    budget: BufferBudget = field(init=False)
    names: Names = field(init=False)
    newest: dict[BootId, Channel] = field(init=False)
    """The last control link that was made to each process, while it is up. A listener keeps one
    link of a kind for each process that dials it, whatever address leads there. The name would not
    do: the managers of two datacenters may have the same."""
    keepalive: KeepAlive = field(init=False)

    def __post_init__(self) -> None:
        self.budget = BufferBudget(self.limits.buffers_max)
        self.names = Names(self.runtime)
        self.newest = {}
        self.keepalive = KeepAlive(self.runtime.clock, self.limits.ping_interval_s)

    @property
    def claims(self) -> ClaimCheck | None:
        return certificate_claims if self.tls is not None else None

    @property
    def catalogue(self) -> Catalogue:
        return self.handlers.catalogue


def make_keyring(runtime: Runtime, secrets: Secrets, cluster: str) -> Keyring:
    """Makes the keyring of this boot. Call it once: a second one would repeat nonces."""
    return Keyring(
        secrets,
        cluster=cluster,
        node=runtime.node,
        boot=runtime.boot,
        entropy=runtime.entropy,
    )
