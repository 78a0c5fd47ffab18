"""Probes: the round over all members, indirect probes through proxies, pings as a proxy.

A probe asks its target directly, then `indirect_probes` proxies ask it too. It has failed when
neither has answered in time. Proxies answer in any case, with a nack if the target is silent: a
missing nack is evidence against this member's own network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from squall.cluster.membership import records
from squall.cluster.membership.messages import (
    Ack,
    MemberRole,
    Nack,
    PeerRecord,
    PeerStatus,
    Ping,
    PingReq,
)
from squall.cluster.membership.swim.peers import KnownPeer, Ring
from squall.cluster.membership.swim.shared import Shared
from squall.cluster.membership.swim.transitions import Transitions
from squall.runtime.interfaces import Address, BootId, NodeId

PROXY_WAIT_MAX_S = 5.0
"""A proxy waits no longer, whatever it is asked."""
PROXY_TASKS_MAX = 256
"""Pings for others at a time; a further request is answered with a nack at once."""
ROUND_TRIPS = 3
"""Legs of an indirect probe beside the direct one: a slow path lengthens the probe by as many."""


@dataclass(slots=True, eq=False)
class Probe:
    """A ping of this member that waits for its answer."""

    node: NodeId
    """Empty for the probe of a seed."""
    boot: BootId
    sent_at: float
    is_clean: bool = True
    """Whether its round trip is a sample: sent and answered without a stop between."""
    counts: bool = True
    """Whether its failure is evidence. A ping that only repeats a suspicion, or asks a dead, an
    unconfirmed peer or a seed, is none."""
    nacks_expected: set[NodeId] = field(default_factory=set[NodeId])
    proxies: int = 0


@dataclass(slots=True, eq=False)
class ProxyTask:
    """A ping on behalf of another member."""

    asker: PeerRecord
    asker_sequence: int
    target: NodeId


class PeerProbes:
    """`on_failed` is set once by the core."""

    def __init__(self, shared: Shared, transitions: Transitions) -> None:
        self._shared = shared
        self._transitions = transitions
        self.ring = Ring(shared.rng)
        self.on_failed: Callable[[KnownPeer], None] = lambda peer: None
        self.on_seed: Callable[[Address, PeerRecord], None] = lambda address, record: None
        """A seed was answered, by the member that sent the record."""
        self._open: dict[int, Probe] = {}
        self._seeds: dict[int, Address] = {}
        self._proxied: dict[int, ProxyTask] = {}

    # Own probes.

    def longest_s(self, peer: KnownPeer) -> float:
        """How long a probe of the peer takes until it has failed."""
        shared = self._shared
        stretched = shared.parameters.probe_interval_s * shared.health.multiplier
        return stretched + ROUND_TRIPS * shared.rtt_upper_s(peer)

    def next_of_round(self) -> None:
        """Probes the next member of the round that is under no probe yet."""
        for peer in self.ring.round(self._shared.table.present):
            if peer.probes == 0:
                self.probe(peer)
                return

    def probe(self, peer: KnownPeer) -> None:
        """A whole probe, whose failure is evidence against the peer."""
        if peer.probes > 0 or not peer.state.is_present:
            return
        shared = self._shared
        peer.probes += 1
        shared.counters.probes += 1
        sequence, probe = self._ping(peer)
        stretch = shared.health.multiplier
        wait = shared.parameters.probe_timeout_s * stretch + shared.rtt_upper_s(peer)
        ends = shared.now + self.longest_s(peer)
        shared.timers.at(shared.now + wait, lambda: self._ask_proxies(sequence, probe, ends))
        shared.timers.at(ends, lambda: self._end(sequence, probe, peer))

    def ping_suspect(self, peer: KnownPeer) -> None:
        """Pings a suspect once more, with the suspicion in its gossip, so that it can refute."""
        self._ping_only(peer)

    def ping_unconfirmed(self, peer: KnownPeer) -> None:
        peer.attempts += 1
        self._ping_only(peer)

    def ping_dead(self, peer: KnownPeer) -> None:
        self._ping_only(peer)

    def ping_seed(self, address: Address, role: MemberRole) -> None:
        shared = self._shared
        sequence = shared.next_sequence()
        self._seeds[sequence] = address
        shared.send(address, role, self._message(sequence, NodeId(""), None))
        shared.timers.at(
            shared.now + shared.parameters.probe_interval_s + shared.parameters.rtt_max_s,
            lambda: self._seeds.pop(sequence, None),
        )

    def _ping_only(self, peer: KnownPeer) -> None:
        """Sends a ping whose failure is no evidence against the peer."""
        shared = self._shared
        sequence, probe = self._ping(peer)
        probe.counts = False
        shared.timers.at(shared.now + self.longest_s(peer), lambda: self._open.pop(sequence, None))

    def _ping(self, peer: KnownPeer) -> tuple[int, Probe]:
        shared = self._shared
        sequence = shared.next_sequence()
        probe = self._open[sequence] = Probe(peer.node, peer.record.boot, shared.now)
        message = self._message(sequence, peer.node, peer)
        shared.send(peer.record.address, peer.record.role, message)
        return sequence, probe

    def _message(self, sequence: int, target: NodeId, peer: KnownPeer | None) -> Ping:
        shared = self._shared
        return Ping(
            seq=sequence,
            sender=shared.own,
            target=target,
            health=shared.health.score,
            coordinate=shared.vivaldi.own.pack(),
            rtt_s=0.0 if peer is None else round(peer.last_rtt_s, 6),
            state=shared.embedded,
            gossip=shared.gossip_for(peer, beside=len(shared.embedded) + len(target.encode())),
        )

    def _ask_proxies(self, sequence: int, probe: Probe, ends: float) -> None:
        shared = self._shared
        peer = shared.peer_of(probe.node)
        if self._open.get(sequence) is not probe or peer is None:
            return
        # Said at once, so that people see "the others hear it, only this one does not".
        peer.note_reach(shared.identity.node, shared.now, reached=False)
        proxies = shared.table.draw(
            shared.rng, shared.parameters.indirect_probes, without=probe.node
        )
        target = PeerRecord(
            peer.node,
            peer.record.boot,
            peer.record.incarnation,
            PeerStatus.ALIVE,
            peer.record.role,
            peer.record.address,
        )
        wait = (ends - shared.now) * 0.6
        for proxy in proxies:
            if proxy.record.status is not PeerStatus.ALIVE:
                continue
            shared.counters.indirect_probes += 1
            probe.nacks_expected.add(proxy.node)
            probe.proxies += 1
            gossip = shared.gossip_for(proxy, beside=records.size(target))
            request = PingReq(sequence, shared.own, target, round(wait, 4), gossip)
            shared.send(proxy.record.address, proxy.record.role, request)

    def _end(self, sequence: int, probe: Probe, peer: KnownPeer) -> None:
        """Ends a probe whose time is over."""
        peer.probes -= 1
        if self._open.get(sequence) is not probe:
            return
        del self._open[sequence]
        if not probe.counts or not peer.state.is_present or peer.record.boot != probe.boot:
            return
        shared = self._shared
        shared.counters.probes_failed += 1
        shared.health.nacks_missing(len(probe.nacks_expected))
        self.on_failed(peer)

    def stood_still(self) -> None:
        """Discards open probes after this process stood still: their answers may be lost, so they
        are no evidence, and their round trips are no samples."""
        for probe in self._open.values():
            probe.is_clean = False
            probe.counts = False

    # Answers.

    def answered(self, ack: Ack) -> None:
        """Handles an `Ack`, whose records the core has applied already."""
        shared = self._shared
        said = ack.reached or ack.sender
        seed = self._seeds.pop(ack.seq, None)
        if seed is not None:
            self.on_seed(seed, said)
            peer = shared.peer_of(said.node)
            if peer is not None and peer.record.boot == said.boot:
                self._transitions.confirm(peer)
            return
        if self._answer_asker(ack, said):
            return
        probe = self._open.get(ack.seq)
        # Another node at this address, or another boot, is no answer of the one that was asked.
        if probe is None or said.node != probe.node or said.boot != probe.boot:
            return
        del self._open[ack.seq]
        peer = shared.peer_of(said.node)
        if peer is None or peer.record.boot != said.boot:
            return
        by = shared.identity.node if ack.reached is None else ack.sender.node
        peer.note_reach(by, shared.now, reached=True)
        if probe.counts:
            shared.health.probe_answered()
        if ack.reached is None and probe.is_clean:
            self._sample(peer, shared.now - probe.sent_at)
        self._transitions.confirm(peer)

    def refused(self, nack: Nack) -> None:
        shared = self._shared
        probe = self._open.get(nack.seq)
        if probe is None or nack.sender.node not in probe.nacks_expected:
            return
        probe.nacks_expected.discard(nack.sender.node)
        peer = shared.peer_of(probe.node)
        if peer is not None:
            peer.note_reach(nack.sender.node, shared.now, reached=False)

    def _sample(self, peer: KnownPeer, rtt_s: float) -> None:
        """Adds the round trip of a direct answer to one ping: no other sample counts (CG-10)."""
        shared = self._shared
        rtt_s = min(max(rtt_s, 1e-6), shared.parameters.probe_interval_s)
        peer.add_round_trip(rtt_s)
        if peer.coordinate is not None and shared.health.score == 0:
            shared.vivaldi.update(peer.coordinate, peer.last_rtt_s)

    # For others.

    def probe_for(self, request: PingReq) -> None:
        """Pings the target of a `PingReq`; answers with an `Ack` or, if it is silent, a `Nack`."""
        shared = self._shared
        target = request.target
        asker = request.sender
        if target.node == shared.identity.node or not records.is_acceptable(target):
            return
        if len(self._proxied) >= PROXY_TASKS_MAX or request.timeout_s <= 0.0:
            shared.send(asker.address, asker.role, self._nack(request.seq, asker))
            return
        sequence = shared.next_sequence()
        task = self._proxied[sequence] = ProxyTask(asker, request.seq, target.node)
        known = shared.peer_of(target.node)
        message = self._message(sequence, target.node, known)
        shared.send(target.address, target.role, message)
        wait = min(request.timeout_s, PROXY_WAIT_MAX_S)
        shared.timers.at(shared.now + wait, lambda: self._give_up(sequence, task))

    def _answer_asker(self, ack: Ack, said: PeerRecord) -> bool:
        task = self._proxied.get(ack.seq)
        if task is None:
            return False
        if said.node != task.target or ack.reached is not None:
            return True
        del self._proxied[ack.seq]
        shared = self._shared
        known = shared.peer_of(task.asker.node)
        relayed = Ack(
            seq=task.asker_sequence,
            sender=shared.own,
            reached=said,
            gossip=shared.gossip_for(known, beside=records.size(said)),
        )
        shared.send(task.asker.address, task.asker.role, relayed)
        return True

    def _give_up(self, sequence: int, task: ProxyTask) -> None:
        if self._proxied.pop(sequence, None) is task:
            nack = self._nack(task.asker_sequence, task.asker)
            self._shared.send(task.asker.address, task.asker.role, nack)

    def _nack(self, sequence: int, asker: PeerRecord) -> Nack:
        shared = self._shared
        return Nack(sequence, shared.own, shared.gossip_for(shared.peer_of(asker.node)))
