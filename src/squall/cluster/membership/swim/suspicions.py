"""Suspicions: how long a peer has to refute one, and what this member does meanwhile.

A suspicion begins at its longest time. Each further suspector shortens it, counted from its start,
so a confirmation never postpones it. This member declares a death only on evidence of its own: a
probe of its own that failed, and no message since (C61). A member that only heard of
the suspicion probes the peer itself before it declares anything.
"""

from __future__ import annotations

import math

from squall.cluster.membership.effects import ObserverIsolated, State
from squall.cluster.membership.messages import PeerStatus
from squall.cluster.membership.swim.peers import KnownPeer, Suspicion
from squall.cluster.membership.swim.probes import PeerProbes
from squall.cluster.membership.swim.shared import Shared
from squall.cluster.membership.swim.transitions import Transitions
from squall.runtime.interfaces import NodeId

ISOLATION_MEMBERS_MIN = 4
"""Below this number of other members, "more than half" means too little."""


def lasts_s(suspicion: Suspicion) -> float:
    """T(c) of Lifeguard: the longest time without confirmation, the shortest with enough."""
    confirmed = len(suspicion.suspectors) - 1
    if suspicion.confirmations <= 0:
        return suspicion.shortest_s
    share = math.log(confirmed + 1) / math.log(suspicion.confirmations + 1)
    span = suspicion.longest_s - suspicion.shortest_s
    return max(suspicion.shortest_s, suspicion.longest_s - share * span)


class Suspicions:
    def __init__(self, shared: Shared, transitions: Transitions, probes: PeerProbes) -> None:
        self._shared = shared
        self._transitions = transitions
        self._probes = probes
        self._deaths: list[float] = []
        """When this member declared its last deaths."""
        self._isolated = False

    def suspected(self, peer: KnownPeer, by: tuple[NodeId, ...]) -> None:
        """Starts the suspicion of a peer, or confirms it: further members suspect the peer too."""
        suspicion = peer.suspicion
        for node in by:
            peer.note_reach(node, self._shared.now, reached=False)
        if suspicion is None:
            self._begin(peer, by)
            return
        known = len(suspicion.suspectors)
        suspicion.suspectors += [node for node in by if node not in suspicion.suspectors]
        if len(suspicion.suspectors) > known:
            deadline = suspicion.started + lasts_s(suspicion)
            if deadline < suspicion.deadline:
                suspicion.deadline = deadline
                self._schedule(peer, suspicion)

    def probe_failed(self, peer: KnownPeer) -> None:
        """Takes the evidence of a failed probe: neither the peer nor a proxy answered in time."""
        shared = self._shared
        own = shared.identity.node
        self._transitions.suspect(peer, own)
        suspicion = peer.suspicion
        if suspicion is None:
            return
        began = suspicion.evidence_at is None
        # The newest failure counts: a message of the peer after it cancels the evidence (C61).
        suspicion.evidence_at = shared.now
        if began:
            self._ping_again(peer, suspicion)
        if suspicion.deadline <= shared.now:
            self._expire(peer, suspicion)

    def stood_still(self, gap_s: float) -> None:
        """Moves all suspicions by the time this process stood still. Peers could not reach it to
        refute, so each keeps its remaining time and needs to fail a new probe."""
        shared = self._shared
        for peer in shared.table.suspects.values():
            suspicion = peer.suspicion
            if suspicion is not None:
                suspicion.started += gap_s
                suspicion.deadline += gap_s
                suspicion.evidence_at = None
                suspicion.was_due = False

    def watch_isolation(self) -> bool:
        """Whether more than half of the members fell silent at once, which is more likely a fault
        of this member's own network (ARCH-124)."""
        shared = self._shared
        table = shared.table
        window = shared.parameters.suspicion_max_s(table.size)
        self._deaths = [at for at in self._deaths if shared.now - at < window]
        silent = len(table.suspects) + len(self._deaths)
        members = len(table.present) + len(self._deaths)
        isolated = members >= ISOLATION_MEMBERS_MIN and 2 * silent > members
        if isolated != self._isolated:
            self._isolated = isolated
            shared.out.append(ObserverIsolated(isolated, silent, members))
        return isolated

    def _begin(self, peer: KnownPeer, by: tuple[NodeId, ...]) -> None:
        shared = self._shared
        parameters, members = shared.parameters, shared.table.size
        stretch = shared.health.multiplier
        suspicion = peer.suspicion = Suspicion(
            started=shared.now,
            shortest_s=parameters.suspicion_min_s(members) * stretch,
            longest_s=parameters.suspicion_max_s(members) * stretch,
            confirmations=max(min(parameters.confirmations, members - 2), 0),
            suspectors=list(by),
        )
        suspicion.deadline = suspicion.started + lasts_s(suspicion)
        self._schedule(peer, suspicion)
        own = shared.identity.node
        if own not in by and shared.rng.random() * (members - 2) < parameters.verifiers:
            # Some look for themselves at once: an independent opinion within one probe, whatever
            # the size of the group, and the suspect hears what is said of it.
            self._probes.probe(peer)

    def _schedule(self, peer: KnownPeer, suspicion: Suspicion) -> None:
        shared = self._shared
        # The last ping before the end: a peer that woke up meanwhile still answers it.
        last = suspicion.deadline - shared.parameters.probe_interval_s / 4
        if last > shared.now:
            shared.timers.at(last, lambda: self._ping_last(peer, suspicion))
        deadline = suspicion.deadline
        shared.timers.at(deadline, lambda: self._due(peer, suspicion))

    def _due(self, peer: KnownPeer, suspicion: Suspicion) -> None:
        # Timers are never cancelled: the suspicion may be refuted, or have another deadline now.
        if peer.suspicion is suspicion and suspicion.deadline <= self._shared.now:
            self._expire(peer, suspicion)

    def _ping_last(self, peer: KnownPeer, suspicion: Suspicion) -> None:
        if peer.suspicion is suspicion and suspicion.evidence_at is not None:
            self._probes.ping_suspect(peer)

    def _ping_again(self, peer: KnownPeer, suspicion: Suspicion) -> None:
        """Pings the suspect every half interval, until it refutes or its time is over."""
        shared = self._shared
        if peer.suspicion is not suspicion or suspicion.deadline <= shared.now:
            return
        self._probes.ping_suspect(peer)
        again = shared.now + shared.parameters.probe_interval_s / 2
        shared.timers.at(again, lambda: self._ping_again(peer, suspicion))

    def _expire(self, peer: KnownPeer, suspicion: Suspicion) -> None:
        shared = self._shared
        if peer.state is not State.SUSPECT or peer.record.status is not PeerStatus.SUSPECT:
            return
        heard = peer.heard_at
        evidence = suspicion.evidence_at
        if evidence is None or (heard is not None and heard > evidence):
            # All that only heard of the suspicion come here at about the same time, when the death
            # is probably under way to them: they wait a moment before they look for themselves.
            wait = shared.rng.random() * shared.parameters.probe_interval_s
            if suspicion.was_due:
                self._probes.probe(peer)
                wait += 2 * self._probes.longest_s(peer)
            suspicion.was_due = True
            shared.timers.at(shared.now + wait, lambda: self._due(peer, suspicion))
            return
        # More than half of the group is silent: this member is probably the one cut off, and its
        # verdicts would be wrong. The hold is bounded, so that a real mass failure is reported.
        hold_until = suspicion.started + shared.parameters.isolation_hold_s
        if shared.now < hold_until and self.watch_isolation():
            shared.counters.deaths_held += 1
            again = min(shared.now + shared.parameters.probe_interval_s, hold_until)
            shared.timers.at(again, lambda: self._due(peer, suspicion))
            return
        self._deaths.append(shared.now)
        self._transitions.declare_dead(peer)
