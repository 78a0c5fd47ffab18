"""Probes the peers that are not present: silent seeds, unconfirmed peers, dead members.

A seed is probed for ever. A peer that only gossip named is pinged at once and then more rarely, and
is forgotten without a suspicion if it never answers. A dead member is probed until its tombstone
ends, so that the two halves of a healed partition find each other (C6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from squall.cluster.membership.effects import Seed, Silent, State
from squall.cluster.membership.messages import PeerRecord
from squall.cluster.membership.parameters import CONFIRMATIONS
from squall.cluster.membership.swim.peers import KnownPeer
from squall.cluster.membership.swim.probes import PeerProbes
from squall.cluster.membership.swim.shared import Shared
from squall.cluster.membership.swim.transitions import Transitions
from squall.runtime.interfaces import Address, NodeId

CONFIRMED_PER_INTERVAL = 20
"""Pings to unconfirmed peers in a probe interval. A newcomer to 500 members needs 25 intervals to
reach them all; its traffic stays bounded."""
ATTEMPT_WAIT_MAX = 10.0
"""Longest wait between two pings to a seed or an unconfirmed peer, in probe intervals."""
REPROBES_PER_DEAD = 2.0
"""Probes of a dead member by the whole group, on average, in `reprobe_s`: at this rate, one in
fifty waits is longer than twice `reprobe_s`."""
REPROBES_MAX = 64
"""Probes of the dead by one member in a probe interval."""


@dataclass(slots=True)
class _SeedState:
    seed: Seed
    since: float
    node: NodeId | None = None
    """Who answered there last."""
    attempts: int = 0
    next_attempt: float = 0.0
    was_reported: bool = False


class Outsiders:
    def __init__(self, shared: Shared, transitions: Transitions, probes: PeerProbes) -> None:
        self._shared = shared
        self._transitions = transitions
        self._probes = probes
        self._seeds: list[_SeedState] = []
        self._asked = 0
        """Pings to unconfirmed peers since the last look."""
        self._due_dead = shared.rng.random()
        self._dead_round: list[KnownPeer] = []

    def set_seeds(self, seeds: Sequence[Seed]) -> None:
        shared = self._shared
        known = {state.seed: state for state in self._seeds}
        self._seeds = [
            known.get(seed) or _SeedState(seed, shared.now)
            for seed in dict.fromkeys(seeds)
            if seed.address != shared.identity.address
        ]

    def seed_answered(self, address: Address, record: PeerRecord) -> None:
        for state in self._seeds:
            if state.seed.address == address:
                state.node, state.attempts, state.since = record.node, 0, self._shared.now

    def ask_at_once(self, peer: KnownPeer) -> None:
        """Pings a peer that this member just met or heard, if it is unconfirmed. Neither gossip
        about a peer nor the peer's own message confirms it; only an answer does (C3)."""
        silence = self._shared.now - peer.asked_at
        if peer.state is State.UNCONFIRMED and silence >= self._shared.parameters.probe_interval_s:
            self._ask(peer)

    def look(self) -> None:
        """Sends the pings that are due; called once per probe interval."""
        shared = self._shared
        self._asked = 0
        for state in self._seeds:
            self._look_at_seed(state)
        for peer in list(shared.table.unconfirmed.values()):
            self._look_at_unconfirmed(peer)
        self._probe_dead()
        self._forget_old()
        interval = shared.parameters.probe_interval_s
        shared.timers.at(shared.now + interval * shared.health.multiplier, self.look)

    def _look_at_seed(self, state: _SeedState) -> None:
        shared = self._shared
        peer = None if state.node is None else shared.peer_of(state.node)
        if (
            peer is not None
            and peer.record.address == state.seed.address
            and peer.state in (State.ALIVE, State.SUSPECT, State.DEAD)
        ):
            state.since = shared.now
            return
        waited = shared.now - state.since
        if waited >= shared.parameters.unconfirmed_warn_s and not state.was_reported:
            state.was_reported = True
            shared.out.append(Silent(state.seed.address, state.node, is_heard=False))
        if shared.now >= state.next_attempt:
            state.attempts += 1
            state.next_attempt = shared.now + self._wait(state.attempts)
            self._probes.ping_seed(state.seed.address, state.seed.role)

    def _look_at_unconfirmed(self, peer: KnownPeer) -> None:
        shared = self._shared
        age = shared.now - peer.known_since
        heard = peer.heard_at is not None and shared.now - peer.heard_at < age / 2
        if age >= shared.parameters.unconfirmed_warn_s and not peer.was_reported:
            peer.was_reported = True
            shared.out.append(Silent(peer.record.address, peer.node, is_heard=heard))
        if not heard and age >= CONFIRMATIONS[peer.record.role].total_s:
            self._transitions.forget(peer)
        elif shared.now >= peer.next_attempt:
            self._ask(peer)

    def _ask(self, peer: KnownPeer) -> None:
        if self._asked >= CONFIRMED_PER_INTERVAL:
            return
        self._asked += 1
        peer.asked_at = self._shared.now
        peer.next_attempt = self._shared.now + self._wait(peer.attempts + 1)
        self._probes.ping_unconfirmed(peer)

    def _wait(self, attempts: int) -> float:
        shared = self._shared
        intervals = min(2.0 ** min(attempts - 1, 10), ATTEMPT_WAIT_MAX)
        return intervals * shared.parameters.probe_interval_s * shared.rng.uniform(0.8, 1.2)

    def _probe_dead(self) -> None:
        """Probes this member's share of the dead; all members divide them."""
        shared = self._shared
        dead = shared.table.dead
        if not dead:
            return
        parameters = shared.parameters
        rate = REPROBES_PER_DEAD * len(dead) / (shared.table.size * parameters.reprobe_s)
        self._due_dead += min(rate * parameters.probe_interval_s, REPROBES_MAX)
        while self._due_dead >= 1.0:
            self._due_dead -= 1.0
            peer = self._next_dead()
            if peer is None:
                return
            self._probes.ping_dead(peer)

    def _next_dead(self) -> KnownPeer | None:
        shared = self._shared
        for _ in range(2):
            while self._dead_round:
                peer = self._dead_round.pop()
                if peer.state is State.DEAD and shared.peer_of(peer.node) is peer:
                    return peer
            self._dead_round = list(shared.table.dead.values())
            shared.rng.shuffle(self._dead_round)
        return None

    def _forget_old(self) -> None:
        shared = self._shared
        kept = shared.parameters.dead_kept_s
        for peer in (*shared.table.dead.values(), *shared.table.left.values()):
            if shared.now - peer.since >= kept:
                self._transitions.forget(peer)
