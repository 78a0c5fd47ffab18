"""SWIM without Lifeguard, with memberlist's LAN parameters: the baseline for Squall's core.

It follows the paper (Das, Gupta, Motivala 2002) with the additions that memberlist makes for every
profile: gossip of its own beside the piggyback, push and pull of the whole state, gossip to members
that died lately, and a death learned by push and pull counts as a suspicion. It lacks what
Lifeguard adds: nacks, the local health score, suspicions that confirmations shorten, and the buddy
system.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import msgspec

from squall.cluster.membership.effects import (
    Cause,
    Effect,
    Event,
    OwnIdentity,
    PeerChanged,
    PeerView,
    Received,
    SendDatagram,
    SendSync,
    State,
)
from squall.cluster.membership.messages import (
    Ack,
    Gossip,
    Message,
    PeerRecord,
    PeerStatus,
    Ping,
    PingReq,
    Sync,
)
from squall.cluster.membership.swim.gossip_queue import GossipQueue
from squall.cluster.membership.swim.timers import TimerHeap
from squall.runtime.interfaces import NodeId

PROBE_INTERVAL_S = 1.0
PROBE_TIMEOUT_S = 0.5
INDIRECT_CHECKS = 3
SUSPICION_MULT = 4
RETRANSMIT_MULT = 4
GOSSIP_INTERVAL_S = 0.2
GOSSIP_NODES = 3
GOSSIP_TO_THE_DEAD_S = 30.0
PUSH_PULL_S = 30.0
GOSSIP_ROOM = 900
_STATES = {
    PeerStatus.ALIVE: State.ALIVE,
    PeerStatus.SUSPECT: State.SUSPECT,
    PeerStatus.DEAD: State.DEAD,
}


@dataclass(slots=True, eq=False)
class _Peer:
    record: PeerRecord
    since: float


class PlainSwim:
    """One member. Every member it knows is confirmed: it starts with the whole group."""

    def __init__(
        self, identity: OwnIdentity, rng: Random, now: float, group: list[PeerRecord]
    ) -> None:
        self.own = PeerRecord(
            identity.node, identity.boot, 0, PeerStatus.ALIVE, identity.role, identity.address
        )
        self._rng = rng
        self._now = now
        self._out: list[Effect] = []
        self._timers = TimerHeap()
        self._peers = {
            record.node: _Peer(record, now) for record in group if record.node != identity.node
        }
        self._queue = GossipQueue(
            lambda: RETRANSMIT_MULT * math.ceil(math.log10(len(self._peers) + 2))
        )
        self._ring: list[_Peer] = []
        self._sequence = 0
        self._open: dict[int, NodeId] = {}
        self._proxied: dict[int, PingReq] = {}
        for call, interval in (
            (self._probe_round, PROBE_INTERVAL_S),
            (self._gossip, GOSSIP_INTERVAL_S),
            (self._push_pull, PUSH_PULL_S),
        ):
            self._timers.at(now + interval * rng.random(), call)

    def handle(self, event: Event, now: float) -> list[Effect]:
        self._now = now
        if isinstance(event, Received):
            self._receive(event.message)
        return self._exit()

    def tick(self, now: float) -> list[Effect]:
        self._now = now
        for call in self._timers.due(now):
            call()
        return self._exit()

    def deadline(self) -> float:
        return self._timers.first

    def _exit(self) -> list[Effect]:
        out, self._out = self._out, []
        return out

    def _send(self, record: PeerRecord, message: Message) -> None:
        self._out.append(SendDatagram(record.address, record.role, message))

    def _alive(
        self, many: int, without: NodeId | None = None, dead_too: bool = False
    ) -> list[_Peer]:
        peers = [
            peer
            for peer in self._peers.values()
            if peer.record.node != without
            and (
                peer.record.status is not PeerStatus.DEAD
                or (dead_too and self._now - peer.since < GOSSIP_TO_THE_DEAD_S)
            )
        ]
        return self._rng.sample(peers, min(many, len(peers)))

    # What repeats.

    def _probe_round(self) -> None:
        self._timers.at(self._now + PROBE_INTERVAL_S, self._probe_round)
        for _ in range(len(self._peers) + 1):
            if not self._ring:
                self._ring = list(self._peers.values())
                self._rng.shuffle(self._ring)
            if not self._ring:
                return
            peer = self._ring.pop()
            if peer.record.status is not PeerStatus.DEAD:
                self._probe(peer)
                return

    def _probe(self, peer: _Peer) -> None:
        sequence = self._ping(peer.record)
        self._open[sequence] = peer.record.node
        self._timers.at(self._now + PROBE_TIMEOUT_S, lambda: self._ask_proxies(sequence, peer))
        self._timers.at(self._now + PROBE_INTERVAL_S, lambda: self._end(sequence, peer))

    def _ping(self, target: PeerRecord) -> int:
        self._sequence += 1
        ping = Ping(self._sequence, self.own, target.node, gossip=self._queue.take(GOSSIP_ROOM))
        self._send(target, ping)
        return self._sequence

    def _ask_proxies(self, sequence: int, peer: _Peer) -> None:
        if sequence in self._open:
            for proxy in self._alive(INDIRECT_CHECKS, without=peer.record.node):
                self._send(proxy.record, PingReq(sequence, self.own, peer.record, 0.5))

    def _end(self, sequence: int, peer: _Peer) -> None:
        if self._open.pop(sequence, None) is None or peer.record.status is not PeerStatus.ALIVE:
            return
        own = self.own.node
        self._apply(
            msgspec.structs.replace(peer.record, status=PeerStatus.SUSPECT, suspectors=(own,)),
            Cause.PROBE,
        )

    def _gossip(self) -> None:
        self._timers.at(self._now + GOSSIP_INTERVAL_S, self._gossip)
        if len(self._queue) == 0:
            return
        for peer in self._alive(GOSSIP_NODES, dead_too=True):
            gossip = self._queue.take(GOSSIP_ROOM)
            if gossip:
                self._send(peer.record, Gossip(self.own, gossip))

    def _push_pull(self) -> None:
        members = len(self._peers) + 1
        scale = 1 if members <= 32 else math.ceil(math.log2(members) - 5) + 1
        self._timers.at(self._now + PUSH_PULL_S * scale, self._push_pull)
        for peer in self._alive(1):
            self._sync(peer.record, reply=True)

    def _sync(self, to: PeerRecord, *, reply: bool) -> None:
        known = tuple(peer.record for peer in self._peers.values())
        self._out.append(SendSync(to.node, to.address, Sync(self.own, 0, known, reply)))

    # What arrives.

    def _receive(self, message: Message) -> None:
        self._apply(message.sender)
        if isinstance(message, Sync):
            for record in message.records:
                self._merge(record)
            if message.reply:
                self._sync(message.sender, reply=False)
            return
        for record in message.gossip:
            self._apply(record)
        if isinstance(message, Ping):
            ack = Ack(message.seq, self.own, gossip=self._queue.take(GOSSIP_ROOM))
            self._send(message.sender, ack)
        elif isinstance(message, PingReq):
            self._proxied[self._ping(message.target)] = message
        elif isinstance(message, Ack):
            request = self._proxied.pop(message.seq, None)
            if request is not None:
                self._send(request.sender, Ack(request.seq, self.own, reached=message.sender))
            else:
                self._open.pop(message.seq, None)

    def _merge(self, record: PeerRecord) -> None:
        if record.status is PeerStatus.DEAD:
            record = msgspec.structs.replace(record, status=PeerStatus.SUSPECT)
        self._apply(record)

    def _apply(self, record: PeerRecord, cause: Cause = Cause.GOSSIP) -> None:
        if record.node == self.own.node:
            if record.status is not PeerStatus.ALIVE and record.incarnation >= self.own.incarnation:
                self.own = msgspec.structs.replace(self.own, incarnation=record.incarnation + 1)
                self._queue.add(self.own)
            return
        peer = self._peers[record.node]
        known = peer.record
        newer = (record.incarnation, record.status.rank) > (known.incarnation, known.status.rank)
        if not newer or (known.status is PeerStatus.DEAD and record.status is PeerStatus.SUSPECT):
            return
        peer.record = record
        self._queue.add(record)
        if record.status is not known.status:
            peer.since = self._now
            self._changed(peer, known.status, cause)
        if record.status is PeerStatus.SUSPECT:
            members = len(self._peers) + 1
            wait = SUSPICION_MULT * max(1.0, math.log10(members)) * PROBE_INTERVAL_S
            self._timers.at(self._now + wait, lambda: self._expire(peer, record))

    def _expire(self, peer: _Peer, suspected: PeerRecord) -> None:
        if peer.record is suspected:
            ended = msgspec.structs.replace(suspected, status=PeerStatus.DEAD, suspectors=())
            self._apply(ended, Cause.PROBE)

    def _changed(self, peer: _Peer, before: PeerStatus, cause: Cause) -> None:
        record = peer.record
        view = PeerView(
            node=record.node,
            boot=record.boot,
            role=record.role,
            address=record.address,
            state=_STATES[record.status],
            incarnation=record.incarnation,
            since_s=0.0,
            heard_s=None,
            heard_by=(),
            unheard_by=(),
            rtt_s=None,
            rtt_upper_s=0.0,
            health=0,
            embedded=b"",
            coordinate=None,
        )
        self._out.append(PeerChanged(view, _STATES[before], view.state, cause))
