"""The table of the other members, and what is known of each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from squall.cluster.membership.coordinates import Coordinate
from squall.cluster.membership.effects import State
from squall.cluster.membership.messages import PeerRecord
from squall.cluster.membership.round_trips import RoundTripEstimate
from squall.runtime.interfaces import NodeId

REACH_KEPT_S = 60.0
"""How long it is remembered through whom a peer was reached."""


@dataclass(slots=True, eq=False)
class Suspicion:
    """Why a peer is suspect, and until when it can refute.

    A confirmation never moves `deadline` back: it is always computed from `started` (MEMB-47)."""

    started: float
    shortest_s: float
    longest_s: float
    confirmations: int
    """Suspectors beside the first after which it lasts its shortest time."""
    suspectors: list[NodeId]
    deadline: float = 0.0
    evidence_at: float | None = None
    """When this member's own probe failed last; None: it only heard of the suspicion."""
    was_due: bool = False
    """The deadline passed without evidence of this member's own."""


@dataclass(slots=True, eq=False)
class KnownPeer:
    """One boot of one other member. `record.status` is what gossip passes on, `state` is this
    member's own view: a peer with an ALIVE record is UNCONFIRMED until it answers a ping."""

    record: PeerRecord
    state: State
    since: float
    """When it entered `state`."""
    known_since: float
    """When this boot was first heard of."""
    heard_at: float | None = None
    """Its last message."""
    health: int = 0
    embedded: bytes = b""
    coordinate: Coordinate | None = None
    coordinate_at: float = 0.0
    rtt: RoundTripEstimate | None = None
    reached_by: dict[NodeId, float] | None = None
    unreached_by: dict[NodeId, float] | None = None
    suspicion: Suspicion | None = None
    """Exactly while SUSPECT."""
    attempts: int = 0
    """Pings sent while UNCONFIRMED."""
    asked_at: float = -math.inf
    next_attempt: float = 0.0
    was_reported: bool = False
    """A `Silent` warning was given."""
    probes: int = 0
    """Own probes under way."""

    @property
    def node(self) -> NodeId:
        return self.record.node

    @property
    def last_rtt_s(self) -> float:
        return self.rtt.mean_ms / 1000.0 if self.rtt is not None else 0.0

    def add_round_trip(self, rtt_s: float) -> None:
        if self.rtt is None:
            self.rtt = RoundTripEstimate()
        self.rtt.add(rtt_s * 1000.0)

    def note_reach(self, by: NodeId, now: float, *, reached: bool) -> None:
        """Notes whether a member reached the peer; the newest note of each member counts."""
        if self.reached_by is None or self.unreached_by is None:
            self.reached_by, self.unreached_by = {}, {}
        here, there = self.reached_by, self.unreached_by
        if not reached:
            here, there = there, here
        here.pop(by, None)
        here[by] = now
        there.pop(by, None)
        while here and now - next(iter(here.values())) > REACH_KEPT_S:
            del here[next(iter(here))]

    def reach(self, now: float, *, reached: bool) -> tuple[NodeId, ...]:
        noted = self.reached_by if reached else self.unreached_by
        return tuple(by for by, at in (noted or {}).items() if now - at <= REACH_KEPT_S)


@dataclass
class PeerTable:
    """All known peers, with an index of those that are present, dead and unconfirmed."""

    by_node: dict[NodeId, KnownPeer] = field(default_factory=dict[NodeId, KnownPeer])
    present: dict[NodeId, KnownPeer] = field(default_factory=dict[NodeId, KnownPeer])
    """ALIVE and SUSPECT, in any order."""
    suspects: dict[NodeId, KnownPeer] = field(default_factory=dict[NodeId, KnownPeer])
    dead: dict[NodeId, KnownPeer] = field(default_factory=dict[NodeId, KnownPeer])
    unconfirmed: dict[NodeId, KnownPeer] = field(default_factory=dict[NodeId, KnownPeer])
    left: dict[NodeId, KnownPeer] = field(default_factory=dict[NodeId, KnownPeer])
    _present_list: list[KnownPeer] | None = None

    def place(self, peer: KnownPeer, state: State, now: float) -> None:
        """Puts a new or known peer into a state. Only `Transitions` calls it."""
        self._remove(peer)
        peer.state, peer.since = state, now
        if state is State.FORGOTTEN:
            self.by_node.pop(peer.node, None)
            return
        self.by_node[peer.node] = peer
        for index in self._indices(state):
            index[peer.node] = peer

    def _remove(self, peer: KnownPeer) -> None:
        if self.by_node.get(peer.node) is peer:
            for index in self._indices(peer.state):
                index.pop(peer.node, None)
        self._present_list = None

    def _indices(self, state: State) -> tuple[dict[NodeId, KnownPeer], ...]:
        match state:
            case State.ALIVE:
                return (self.present,)
            case State.SUSPECT:
                return (self.present, self.suspects)
            case State.DEAD:
                return (self.dead,)
            case State.LEFT:
                return (self.left,)
            case State.UNCONFIRMED:
                return (self.unconfirmed,)
            case State.FORGOTTEN:
                return ()

    @property
    def size(self) -> int:
        """Members of the group that are not known to be gone, with this one."""
        return len(self.present) + 1

    def draw(self, rng: Random, many: int, *, without: NodeId | None = None) -> list[KnownPeer]:
        """Different present members, at most `many`."""
        listed = self._present_list
        if listed is None:
            listed = self._present_list = list(self.present.values())
        if len(listed) <= many + 1:
            drawn = [peer for peer in listed if peer.node != without]
            rng.shuffle(drawn)
            return drawn[:many]
        chosen = [listed[at] for at in rng.sample(range(len(listed)), many + 1)]
        return [peer for peer in chosen if peer.node != without][:many]


class Ring:
    """A shuffled round over nodes. Each round has a new order, and a new node enters at a random
    place, so that the time between two probes of one node is at most two rounds."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._order: list[NodeId] = []
        self._members: set[NodeId] = set()
        self._at = 0

    def add(self, node: NodeId) -> None:
        if node in self._members:
            return
        self._members.add(node)
        place = self._rng.randint(0, len(self._order))
        self._order.insert(place, node)
        if place < self._at:
            self._at += 1

    def round(self, wanted: dict[NodeId, KnownPeer]) -> Iterator[KnownPeer]:
        """The next nodes of the ring that are in `wanted`, at most one round. Others drop out."""
        for _ in range(len(self._order) + 1):
            if self._at >= len(self._order):
                self._order = [node for node in self._order if node in wanted]
                self._members = set(self._order)
                self._rng.shuffle(self._order)
                self._at = 0
                if not self._order:
                    return
            peer = wanted.get(self._order[self._at])
            self._at += 1
            if peer is not None:
                yield peer
