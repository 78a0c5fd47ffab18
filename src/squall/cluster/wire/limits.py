"""The section `[wire]`: timeouts, queue sizes and bounds of links, and their rules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from squall.api.errors import ConfigError
from squall.cluster.wire.catalogue import SizeClass
from squall.cluster.wire.header import OVERHEAD
from squall.cluster.wire.negotiation import LinkKind
from squall.runtime.backoff import Backoff


@dataclass(frozen=True)
class WireLimits:
    """Limits of one process's links."""

    dial_timeout_s: float = 5.0
    handshake_timeout_s: float = 5.0
    failed_close_s: float = 1.0
    """Silence before a listener closes a connection that failed its handshake."""
    handshakes_max: int = 4_096
    """Connections under handshake. A further one takes the place of the one that has waited
    longest without a proof, or is sent away if all are new."""
    handshakes_per_address: int = 1_024
    """The same for the connections from one address."""
    handshake_grace_s: float = 0.25
    """How long a connection may wait before another can take its place. An honest peer proves
    itself with its first bytes, but a busy loop may not have read them yet."""
    ping_interval_s: float = 1.0
    dead_after_s: float = 5.0
    """A link without a sign of life for this time is closed."""
    partial_frame_s: float = 20.0
    """The longest time in which a frame may stay unfinished."""
    stall_s: float = 10.0
    """The longest time in which a peer may take no byte of what is sent to it."""
    backoff_base_s: float = 0.1
    backoff_cap_s: float = 5.0
    buffers_max: int = 256 * 1024 * 1024
    """Bytes of unfinished frames, all links together."""
    queue_messages: int = 500
    queue_overflow_messages: int = 100
    """Room beyond `queue_messages`, where new TELEMETRY replaces the oldest."""
    queue_bytes: int = 16 * 1024 * 1024
    control_queue_messages: int = 1_000
    control_queue_bytes: int = 16 * 1024 * 1024
    calls_max: int = 10_000
    """Pending requests of one channel."""

    def __post_init__(self) -> None:
        if self.dead_after_s < 2 * self.ping_interval_s:
            raise ConfigError(
                f"dead_after_s = {self.dead_after_s:g} must be at least twice "
                f"ping_interval_s = {self.ping_interval_s:g}, or one lost ping closes a link"
            )
        if self.backoff_base_s > self.backoff_cap_s:
            raise ConfigError(
                f"backoff_base_s = {self.backoff_base_s:g} is above "
                f"backoff_cap_s = {self.backoff_cap_s:g}"
            )

    @cached_property
    def redial(self) -> Backoff:
        """The wait before a broken link is dialled again. All of it is drawn at random: a
        manager that restarts must not meet a thousand workers at once."""
        return Backoff(2 * self.backoff_base_s, cap_s=self.backoff_cap_s, jitter=1.0)

    @cached_property
    def quiet_s(self) -> float:
        """A link is pinged after this much silence. It is a little more than an interval, so a
        peer that reports every second is never pinged. It leaves two intervals before
        `dead_after_s`: one until the next check sends the ping, one for the answer."""
        return min(1.5 * self.ping_interval_s, self.dead_after_s - 2 * self.ping_interval_s)

    @cached_property
    def idle_quiet_s(self) -> float:
        """The same for an idle bulk link. The control link already shows whether the peer is alive;
        pinging bulk links as often would take a fifth of what a manager sends. The next use
        restarts the measured silence, so a broken bulk link is found as fast as any other."""
        return 4.0 * self.dead_after_s

    def body_max(self, link: LinkKind) -> int:
        size = SizeClass.BULK if link is LinkKind.BULK else SizeClass.CONTROL
        return size.value

    def frame_cap(self, link: LinkKind) -> int:
        return self.body_max(link) + OVERHEAD

    def high_water(self, link: LinkKind) -> int:
        """Bytes handed to the network before messages wait in the outbox instead, where a more
        important class can still overtake them."""
        return 2 * SizeClass.CONTROL.value if link is LinkKind.CONTROL else SizeClass.BULK.value
