"""The numbers of the wire, with what they must satisfy together. Lengths are in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from squall.api.errors import ConfigError
from squall.wire.catalogue import SizeClass
from squall.wire.header import OVERHEAD
from squall.wire.profile import LinkKind


@dataclass(frozen=True)
class WireLimits:
    dial_timeout_s: float = 5.0
    handshake_timeout_s: float = 5.0
    failed_close_s: float = 1.0
    """How long a peer that failed its handshake is left without an answer."""
    handshakes_max: int = 4_096
    """Connections that have not proved themselves yet; more are closed at once."""
    ping_interval_s: float = 1.0
    dead_after_s: float = 5.0
    """A link on which nothing was heard for so long is closed."""
    partial_frame_s: float = 20.0
    """How long a frame may stay unfinished."""
    stall_s: float = 10.0
    """How long a peer may take no byte of what waits for it."""
    backoff_base_s: float = 0.1
    backoff_cap_s: float = 5.0
    buffers_max: int = 256 * 1024 * 1024
    """Unfinished frames of all links together."""
    queue_messages: int = 500
    queue_overflow_messages: int = 100
    """Beyond `queue_messages`; from there on the newest TELEMETRY replaces the oldest."""
    queue_bytes: int = 16 * 1024 * 1024
    control_queue_messages: int = 1_000
    control_queue_bytes: int = 16 * 1024 * 1024
    calls_max: int = 10_000
    """Requests of one link that wait for their answers."""

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
    def quiet_s(self) -> float:
        """A link is asked for a sign only after so long without one: a little more than an
        interval, because who tells something every second is then never asked. What is heard
        now is not known to be the last, so its peer is asked an interval later at most, and
        has another one to answer."""
        return min(1.5 * self.ping_interval_s, self.dead_after_s - 2 * self.ping_interval_s)

    @cached_property
    def idle_quiet_s(self) -> float:
        """The same for a bulk link on which nothing was asked for a while. Whether its peer
        lives is known from the control link, and there are as many of both: asked as often,
        they would cost a manager a fifth of what it sends. Silence counts anew from its next
        use on, so a broken one is found as fast as any when it is needed."""
        return 4.0 * self.dead_after_s

    def frame_cap(self, link: LinkKind) -> int:
        size = SizeClass.BULK if link is LinkKind.BULK else SizeClass.CONTROL
        return size.value + OVERHEAD

    def high_water(self, link: LinkKind) -> int:
        """Bytes handed to the network before messages wait in their queue instead, where
        a dearer class can still overtake them."""
        return 2 * SizeClass.CONTROL.value if link is LinkKind.CONTROL else SizeClass.BULK.value
