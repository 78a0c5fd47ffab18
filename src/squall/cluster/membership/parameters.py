"""The parameters of membership and their profiles; docs/membership.md has the origin of each."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from squall.cluster.membership.messages import MemberRole
from squall.runtime.invariants import invariant


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Times are seconds. The multiplier of the local health score stretches the probe interval,
    the probe timeout and the suspicion, all three."""

    probe_interval_s: float = 1.0
    probe_timeout_s: float = 0.3
    """Wait for a direct answer, beside the round trip. The indirect probes have the rest of the
    interval."""
    indirect_probes: int = 3
    suspicion_mult: float = 1.5
    """Shortest suspicion = this x max(1, log10 n) x probe interval."""
    suspicion_max_mult: float = 6.0
    """Longest suspicion = this x the shortest."""
    confirmations: int = 3
    """Suspectors beside the first one after which a suspicion lasts its shortest time."""
    verifiers: int = 4
    """Members, on average, that probe a suspect as soon as they hear of it."""
    gossip_interval_s: float = 0.2
    gossip_fanout: int = 3
    retransmit_mult: int = 4
    """A record is sent this x ceil(log10(n + 1)) times by each member."""
    sync_interval_s: float = 30.0
    """Up to 32 members; longer above, as memberlist does."""
    reprobe_s: float = 2.0
    """A dead member is probed by some member about this often; at the latest every 4 s (S)."""
    dead_kept_s: float = 3600.0
    """A dead member is probed, and a tombstone kept, for this long."""
    unconfirmed_warn_s: float = 60.0
    leave_s: float = 1.0
    isolation_hold_s: float = 60.0
    rtt_default_s: float = 0.225
    """Upper bound of an unknown round trip: 150 ms and a deviation of 75 ms."""
    rtt_max_s: float = 1.0

    def __post_init__(self) -> None:
        invariant(
            0 < self.probe_timeout_s < self.probe_interval_s,
            "the probe timeout is not below the probe interval",
        )

    def suspicion_min_s(self, members: int) -> float:
        scale = max(1.0, math.log10(max(members, 1)))
        return self.suspicion_mult * scale * self.probe_interval_s

    def suspicion_max_s(self, members: int) -> float:
        return self.suspicion_max_mult * self.suspicion_min_s(members)

    def transmissions(self, members: int) -> int:
        return self.retransmit_mult * math.ceil(math.log10(members + 1))

    def sync_every_s(self, members: int) -> float:
        """Constant traffic: twice the members, one more multiple of the interval."""
        if members <= 32:
            return self.sync_interval_s
        return self.sync_interval_s * (math.ceil(math.log2(members) - 5) + 1)


LAN = Parameters()
FAST = replace(
    LAN,
    probe_interval_s=0.2,
    probe_timeout_s=0.06,
    gossip_interval_s=0.05,
    sync_interval_s=6.0,
    reprobe_s=0.5,
    leave_s=0.3,
    isolation_hold_s=15.0,
    rtt_default_s=0.05,
    rtt_max_s=0.2,
)
"""For tests and small clusters that must notice a crash within 3 s."""
WAN = replace(
    LAN,
    probe_interval_s=2.0,
    probe_timeout_s=0.8,
    suspicion_mult=3.0,
    gossip_interval_s=0.5,
    gossip_fanout=4,
    sync_interval_s=60.0,
    leave_s=3.0,
)
"""Gates."""


@dataclass(frozen=True)
class Confirmation:
    """What happens to a peer that only gossip named and that never answers (ROUTE-35)."""

    passive_s: float
    attempts: int
    attempt_interval_s: float = 5.0

    @property
    def total_s(self) -> float:
        """It is forgotten after this time, without a suspicion."""
        return self.passive_s + self.attempts * self.attempt_interval_s


CONFIRMATIONS = {
    MemberRole.GATE: Confirmation(120.0, 5),
    MemberRole.MANAGER: Confirmation(90.0, 3),
    MemberRole.WORKER: Confirmation(180.0, 0),
}
