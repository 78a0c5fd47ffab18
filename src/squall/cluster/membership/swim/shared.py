"""The state that the parts of one member's core share: identity, time, table, queue, effects."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from squall.cluster.membership import records
from squall.cluster.membership.coordinates import Vivaldi
from squall.cluster.membership.effects import (
    Cause,
    Effect,
    OwnIdentity,
    PeerChanged,
    PeerView,
    SendDatagram,
    State,
)
from squall.cluster.membership.messages import (
    MemberRole,
    Message,
    PeerRecord,
    PeerStatus,
)
from squall.cluster.membership.parameters import Parameters
from squall.cluster.membership.swim.gossip_queue import GossipQueue
from squall.cluster.membership.swim.local_health import LocalHealth
from squall.cluster.membership.swim.peers import KnownPeer, PeerTable
from squall.cluster.membership.swim.timers import TimerHeap
from squall.cluster.wire.catalogue import SizeClass
from squall.runtime.interfaces import Address, NodeId

_BODY_FIXED_BYTES = 140
"""Keys and numbers of the largest message, with room for the coordinate."""
COORDINATE_KEPT_S = 30.0
"""An older coordinate of a peer counts with a growing error (CG-6)."""
RTT_MIN_S = 0.001


@dataclass
class MembershipCounters:
    """Counts the events of this member, for metrics."""

    probes: int = 0
    probes_failed: int = 0
    indirect_probes: int = 0
    suspicions: int = 0
    refutations: int = 0
    """Suspicions and deaths of this member itself that it refuted."""
    deaths_declared: int = 0
    """By a suspicion that ran out here."""
    deaths_heard: int = 0
    """By gossip."""
    deaths_held: int = 0
    """Held back because too many members fell silent at once."""
    leaves: int = 0
    restarts: int = 0
    gaps: int = 0
    """Stops of this process that moved its time limits."""
    records_refused: int = 0
    coordinates_refused: int = 0
    syncs: int = 0


class Shared:
    """State of one member that several parts use."""

    def __init__(
        self, identity: OwnIdentity, parameters: Parameters, rng: Random, now: float
    ) -> None:
        self.identity = identity
        self.parameters = parameters
        self.rng = rng
        self.now = now
        self.out: list[Effect] = []
        self.timers = TimerHeap()
        self.table = PeerTable()
        self.health = LocalHealth()
        self.vivaldi = Vivaldi(rng)
        self.counters = MembershipCounters()
        self.embedded = b""
        self.own = PeerRecord(
            identity.node, identity.boot, 0, PeerStatus.ALIVE, identity.role, identity.address
        )
        self.queue = GossipQueue(lambda: parameters.transmissions(self.table.size))
        self.is_silent = False
        """After `NameTaken` this member sends nothing."""
        self._sequence = 0

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def send(self, to: Address, role: MemberRole, message: Message) -> None:
        if not self.is_silent:
            self.out.append(SendDatagram(to, role, message))

    def gossip_for(
        self, receiver: KnownPeer | None, *, beside: int = 0, correct: bool = True
    ) -> tuple[PeerRecord, ...]:
        """The records for a message. If this member suspects the receiver or has seen it end, that
        record comes first (the buddy system of Lifeguard), so that the receiver refutes it as soon
        as it can. `beside`: bytes of variable fields other than the sender's record."""
        first = None
        if correct and receiver is not None and receiver.record.status is not PeerStatus.ALIVE:
            first = receiver.record
        used = _BODY_FIXED_BYTES + records.size(self.own) + beside
        return self.queue.take(SizeClass.DATAGRAM.value - used, first)

    def changed(self, peer: KnownPeer, before: State | None, cause: Cause) -> None:
        """Reports one transition; `peer` is in its new state."""
        self.out.append(PeerChanged(self.view(peer, self.now), before, peer.state, cause))

    def rtt_upper_s(self, peer: KnownPeer) -> float:
        """Upper bound of the round trip: direct samples, else coordinates, else the default."""
        parameters = self.parameters
        if peer.rtt is not None:
            bound = peer.rtt.upper_ms / 1000.0
        elif peer.coordinate is not None and self.vivaldi.own.samples > 0:
            own = self.vivaldi.own
            stale = max((self.now - peer.coordinate_at) / COORDINATE_KEPT_S, 1.0)
            bound = own.distance_s(peer.coordinate) + own.error_s(peer.coordinate) * stale
        else:
            bound = parameters.rtt_default_s
        return min(max(bound, RTT_MIN_S), parameters.rtt_max_s)

    def view(self, peer: KnownPeer, now: float) -> PeerView:
        record = peer.record
        return PeerView(
            node=record.node,
            boot=record.boot,
            role=record.role,
            address=record.address,
            state=peer.state,
            incarnation=record.incarnation,
            since_s=now - peer.since,
            heard_s=None if peer.heard_at is None else now - peer.heard_at,
            heard_by=peer.reach(now, reached=True),
            unheard_by=peer.reach(now, reached=False),
            rtt_s=peer.last_rtt_s or None,
            rtt_upper_s=self.rtt_upper_s(peer),
            health=peer.health,
            embedded=peer.embedded,
            coordinate=peer.coordinate,
        )

    def peer_of(self, node: NodeId) -> KnownPeer | None:
        return self.table.by_node.get(node)
