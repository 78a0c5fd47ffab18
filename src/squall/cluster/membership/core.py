"""One member's part of SWIM: probes, suspicions, refutations, gossip, comparison of views.

    core = MembershipCore(identity, parameters, rng, now, seeds=seeds)
    for effect in core.handle(Received(ping), now): ...
    for effect in core.tick(now): ...          # at core.deadline(), or a little later

The driver first hands over what has arrived, then ticks: after a stop of the process the answers
that wait in its socket come before the time-outs.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from squall.cluster.membership import coordinates
from squall.cluster.membership.effects import (
    Cause,
    Effect,
    Embedded,
    Event,
    LeaveRequested,
    OwnIdentity,
    PeerView,
    Received,
    Seed,
    SeedsChanged,
)
from squall.cluster.membership.messages import (
    EMBEDDED_MAX,
    Ack,
    Gossip,
    Message,
    Nack,
    PeerRecord,
    Ping,
    PingReq,
    Sync,
)
from squall.cluster.membership.parameters import Parameters
from squall.cluster.membership.swim.anti_entropy import AntiEntropy
from squall.cluster.membership.swim.outsiders import Outsiders
from squall.cluster.membership.swim.own_record import OwnRecord
from squall.cluster.membership.swim.peers import KnownPeer
from squall.cluster.membership.swim.probes import PeerProbes
from squall.cluster.membership.swim.shared import MembershipCounters, Shared
from squall.cluster.membership.swim.suspicions import Suspicions
from squall.cluster.membership.swim.transitions import Transitions
from squall.runtime.interfaces import NodeId
from squall.runtime.invariants import invariant

GAP_SHARE = 0.25
"""A tick that is later than this share of a probe interval means that the process stood still."""


class MembershipCore:
    """One member of a group of peers: watches the others and answers their probes."""

    def __init__(
        self,
        identity: OwnIdentity,
        parameters: Parameters,
        rng: Random,
        now: float,
        *,
        seeds: Sequence[Seed] = (),
        embedded: bytes = b"",
    ) -> None:
        """`now` and all later ones are readings of one monotonic clock."""
        shared = self._shared = Shared(identity, parameters, rng, now)
        self._transitions = transitions = Transitions(shared)
        self._probes = PeerProbes(shared, transitions)
        self._suspicions = Suspicions(shared, transitions, self._probes)
        self._outsiders = Outsiders(shared, transitions, self._probes)
        self._anti_entropy = AntiEntropy(shared, transitions)
        self._own_record = OwnRecord(shared)
        transitions.on_own_record = self._own_record.heard
        transitions.on_suspected = self._suspicions.suspected
        transitions.on_met = self._outsiders.ask_at_once
        transitions.on_present = self._present
        self._probes.on_failed = self._suspicions.probe_failed
        self._probes.on_seed = self._outsiders.seed_answered
        self._gossip_due = False
        self._last_gossip = now
        self._outsiders.set_seeds(seeds)
        self._embed(embedded)
        # Members that start together must not probe in step.
        timers, interval = shared.timers, parameters.probe_interval_s
        timers.at(now, self._outsiders.look)
        timers.at(now + interval * rng.random(), self._probe_round)
        timers.at(now + parameters.sync_interval_s * rng.random(), self._compare)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handles one event; returns the effects for the driver."""
        self._enter(now)
        match event:
            case Received(message):
                self._receive(message)
            case SeedsChanged(seeds):
                self._outsiders.set_seeds(seeds)
            case Embedded(state):
                self._embed(state)
            case LeaveRequested():
                self._own_record.leave()
        return self._exit()

    def tick(self, now: float) -> list[Effect]:
        """Does what is due. A call long after `deadline()` means that this process stood still:
        every open time limit then moves by the gap, so no peer is declared dead because of it."""
        self._enter(now)
        for call in self._shared.timers.due(now):
            call()
        return self._exit()

    def deadline(self) -> float:
        """When the next tick is due. It may become earlier with each call of `handle`."""
        return self._shared.timers.first

    def members(self, now: float) -> list[PeerView]:
        """Every known member but this one, by name; also the dead, until they are forgotten."""
        shared = self._shared
        return [shared.view(peer, now) for _, peer in sorted(shared.table.by_node.items())]

    def member(self, node: NodeId, now: float) -> PeerView | None:
        peer = self._shared.peer_of(node)
        return None if peer is None else self._shared.view(peer, now)

    @property
    def counters(self) -> MembershipCounters:
        return self._shared.counters

    @property
    def incarnation(self) -> int:
        """This member's own incarnation."""
        return self._shared.own.incarnation

    @property
    def health(self) -> int:
        """The local health score: 0 (healthy) to 8 (slow, or badly connected)."""
        return self._shared.health.score

    @property
    def coordinate(self) -> coordinates.Coordinate:
        """This member's own coordinate."""
        return self._shared.vivaldi.own

    # Each call.

    def _enter(self, now: float) -> None:
        shared = self._shared
        gap = now - shared.timers.first
        shared.now = max(now, shared.now)
        if gap > GAP_SHARE * shared.parameters.probe_interval_s:
            self._stood_still(gap)

    def _stood_still(self, gap: float) -> None:
        """This process was stopped, or its loop was late: for its peers no time limit has passed
        (C17)."""
        shared = self._shared
        shared.counters.gaps += 1
        shared.health.was_late(gap / shared.parameters.probe_interval_s)
        shared.timers.move(gap)
        self._probes.stood_still()
        self._suspicions.stood_still(gap)

    def _exit(self) -> list[Effect]:
        shared = self._shared
        # The gossip timer runs only while records wait: a calm group sends probes alone.
        if len(shared.queue) and not self._gossip_due:
            self._gossip_due = True
            interval = shared.parameters.gossip_interval_s
            shared.timers.at(max(shared.now, self._last_gossip + interval), self._gossip)
        out, shared.out = shared.out, []
        return out

    # What repeats.

    def _probe_round(self) -> None:
        shared = self._shared
        interval = shared.parameters.probe_interval_s
        if not self._own_record.is_leaving:
            self._probes.next_of_round()
            self._suspicions.watch_isolation()
        # A member that distrusts itself probes more rarely (Lifeguard): it accuses fewer peers.
        shared.timers.at(shared.now + interval * shared.health.multiplier, self._probe_round)

    def _gossip(self) -> None:
        shared = self._shared
        self._gossip_due = False
        self._last_gossip = shared.now
        for peer in shared.table.draw(shared.rng, shared.parameters.gossip_fanout):
            gossip = shared.gossip_for(peer)
            if gossip:
                record = peer.record
                shared.send(record.address, record.role, Gossip(shared.own, gossip))

    def _compare(self) -> None:
        if not self._own_record.is_leaving:
            self._anti_entropy.compare()
        wait = self._anti_entropy.every_s()
        self._shared.timers.at(self._shared.now + wait, self._compare)

    # What arrives.

    def _receive(self, message: Message) -> None:
        shared = self._shared
        sender = message.sender
        if sender.node == shared.identity.node and sender.boot == shared.identity.boot:
            return
        self._own_record.changed = False
        self._transitions.apply(sender, Cause.PROBE)
        peer = shared.peer_of(sender.node)
        if peer is not None and peer.record.boot == sender.boot:
            self._heard(peer, message)
        else:
            # A message of a boot that another one replaced says nothing about the present boot.
            peer = None
        if not isinstance(message, Sync):
            for record in message.gossip:
                self._transitions.apply(record)
        match message:
            case Ping():
                self._answer(message, peer)
            case PingReq():
                self._probes.probe_for(message)
            case Ack():
                self._probes.answered(message)
            case Nack():
                self._probes.refused(message)
            case Gossip():
                pass
            case Sync():
                self._anti_entropy.received(message)
        if self._own_record.changed and not isinstance(message, Ping):
            # The sender holds something wrong of this member. The answer to a ping carries the new
            # record; anything else gets it as a message of its own.
            gossip = shared.gossip_for(peer)
            shared.send(sender.address, sender.role, Gossip(shared.own, gossip))

    def _heard(self, peer: KnownPeer, message: Message) -> None:
        shared = self._shared
        peer.heard_at = shared.now
        if isinstance(message, Ping) or (isinstance(message, Ack) and message.reached is None):
            peer.health = message.health
            peer.embedded = message.state
            if message.coordinate:
                coordinate = coordinates.unpack(message.coordinate)
                if coordinate is None:
                    shared.counters.coordinates_refused += 1
                else:
                    peer.coordinate, peer.coordinate_at = coordinate, shared.now
        self._outsiders.ask_at_once(peer)

    def _answer(self, ping: Ping, peer: KnownPeer | None) -> None:
        """Answers at once, in the call that received the ping (MEMB-38). If another boot of the
        sender outranks it, the answer carries that record, so that the sender can raise its
        incarnation."""
        shared = self._shared
        known: PeerRecord | None = None
        if peer is None:
            stored = shared.peer_of(ping.sender.node)
            known = None if stored is None else stored.record
        gossip = shared.gossip_for(peer, beside=len(shared.embedded))
        if known is not None:
            gossip = (known, *gossip[:-1]) if gossip else (known,)
        ack = Ack(
            seq=ping.seq,
            sender=shared.own,
            health=shared.health.score,
            coordinate=shared.vivaldi.own.pack(),
            state=shared.embedded,
            gossip=gossip,
        )
        shared.send(ping.sender.address, ping.sender.role, ack)
        if ping.rtt_s > 0.0 and peer is not None and peer.coordinate and not shared.health.score:
            # Two-sided: the sender's round trip tells this member as much as its own would (CG-1).
            shared.vivaldi.update(peer.coordinate, ping.rtt_s)

    def _present(self, peer: KnownPeer) -> None:
        """Notes that a peer was confirmed or came back."""
        table = self._shared.table
        self._probes.ring.add(peer.node)
        # The first peer of a member that has just joined: one comparison shows it the whole group.
        if len(table.present) == 1 and not table.dead:
            self._anti_entropy.compare_with(peer)
        elif peer.attempts == 0 or table.dead:
            self._anti_entropy.revived(peer)

    def _embed(self, state: bytes) -> None:
        invariant(len(state) <= EMBEDDED_MAX, f"embedded state has {len(state)} bytes")
        self._shared.embedded = state
