"""Makes every change of a member's state: after a record, an answered probe, an expired suspicion.

Each transition has one function, and no other module places a peer. So each is reported once, ends
the suspicion that it must end, and is passed on (C21).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from squall.cluster.membership import records
from squall.cluster.membership.effects import Cause, State
from squall.cluster.membership.messages import PeerRecord, PeerStatus
from squall.cluster.membership.swim.peers import KnownPeer
from squall.cluster.membership.swim.shared import Shared
from squall.runtime.interfaces import NodeId

REFUSED_KEPT_S = 600.0
"""A peer that was forgotten unconfirmed is not taken from gossip again for this long (CG-16)."""
_ENDED = {PeerStatus.DEAD: State.DEAD, PeerStatus.LEFT: State.LEFT}


class Transitions:
    """Applies records to the table. The core sets the callbacks once."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._refused: dict[NodeId, tuple[PeerRecord, float]] = {}
        """Peers that were forgotten unconfirmed, and until when gossip about them is ignored."""
        self.on_own_record: Callable[[PeerRecord], None] = _ignore
        """A record about this member's own name."""
        self.on_suspected: Callable[[KnownPeer, tuple[NodeId, ...]], None] = _ignore_suspicion
        """A peer became suspect, or more members suspect it."""
        self.on_met: Callable[[KnownPeer], None] = _ignore_peer
        """An unknown member, or an unknown boot of one."""
        self.on_present: Callable[[KnownPeer], None] = _ignore_peer
        """A peer was confirmed, or came back from the dead."""

    def apply(self, record: PeerRecord, cause: Cause = Cause.GOSSIP) -> None:
        """Applies one record, which the member itself or another one sent."""
        shared = self._shared
        if not records.is_acceptable(record):
            shared.counters.records_refused += 1
            return
        if record.node == shared.identity.node:
            self.on_own_record(record)
            return
        peer = shared.peer_of(record.node)
        if peer is None:
            self._meet(record, cause)
        elif not records.is_newer(record, peer.record):
            if peer.suspicion is not None and self._repeats(record, peer.record):
                self._suspect_more(peer, record.suspectors)
        elif record.boot != peer.record.boot:
            self._restart(peer, record)
        else:
            self._accept(peer, record, cause)

    def confirm(self, peer: KnownPeer) -> None:
        """Confirms a peer that answered a ping of this member (MEMB-5, C3). A peer that is suspect,
        dead or gone must refute that first."""
        if peer.state is State.UNCONFIRMED and peer.record.status is PeerStatus.ALIVE:
            self._move(peer, State.ALIVE, Cause.PROBE)
            self._shared.queue.add(peer.record)
            self.on_present(peer)

    def suspect(self, peer: KnownPeer, by: NodeId) -> None:
        """Suspects a peer after a failed probe of `by`. Only a confirmed peer can be suspected
        (MEMB-10)."""
        if peer.state is State.ALIVE:
            record = peer.record
            self._accept(
                peer,
                msgspec.structs.replace(record, status=PeerStatus.SUSPECT, suspectors=(by,)),
                Cause.PROBE,
            )
        elif peer.state is State.SUSPECT:
            self._suspect_more(peer, (by,))

    def declare_dead(self, peer: KnownPeer) -> None:
        """Ends a peer whose suspicion expired at this member."""
        self._shared.counters.deaths_declared += 1
        ended = msgspec.structs.replace(peer.record, status=PeerStatus.DEAD, suspectors=())
        self._accept(peer, ended, Cause.PROBE)

    def forget(self, peer: KnownPeer) -> None:
        """Removes a peer: its tombstone is old enough, or the peer was never confirmed."""
        now = self._shared.now
        if peer.state is State.UNCONFIRMED:
            kept = {node: it for node, it in self._refused.items() if it[1] > now}
            self._refused = {**kept, peer.node: (peer.record, now + REFUSED_KEPT_S)}
        self._shared.queue.drop(peer.node)
        self._move(peer, State.FORGOTTEN, Cause.TIMEOUT)

    # The cases of a record.

    def _meet(self, record: PeerRecord, cause: Cause) -> None:
        """Adds an unknown member. If it is already gone, the table keeps only its tombstone, so
        that older records cannot bring it back (C62)."""
        shared = self._shared
        if cause is Cause.GOSSIP and self._was_refused(record):
            return
        state = _ENDED.get(record.status, State.UNCONFIRMED)
        peer = KnownPeer(record, state, shared.now, shared.now)
        shared.table.place(peer, state, shared.now)
        if state is State.UNCONFIRMED:
            shared.changed(peer, None, cause)
            self.on_met(peer)

    def _was_refused(self, record: PeerRecord) -> bool:
        refused, until = self._refused.get(record.node, (record, 0.0))
        return self._shared.now < until and not records.is_newer(record, refused)

    def _restart(self, peer: KnownPeer, record: PeerRecord) -> None:
        """Replaces a boot by another one that outranks it. The known boot has ended: its work is
        gone, although the node is here (C5)."""
        shared = self._shared
        peer.suspicion = None
        if peer.state.is_present:
            shared.counters.restarts += 1
            self._move(peer, State.DEAD, Cause.RESTART)
        elif peer.state is State.UNCONFIRMED:
            self._move(peer, State.FORGOTTEN, Cause.RESTART)
        shared.table.place(peer, State.FORGOTTEN, shared.now)
        shared.queue.drop(record.node)
        self._meet(record, Cause.RESTART)
        if record.status not in _ENDED:
            # The others hear that the old boot ended without waiting for their own confirmation.
            shared.queue.add(record)

    def _accept(self, peer: KnownPeer, record: PeerRecord, cause: Cause) -> None:
        """Applies a newer record of the same boot."""
        shared = self._shared
        peer.record = record
        if peer.state is State.UNCONFIRMED:
            if record.status in _ENDED:
                self._move(peer, _ENDED[record.status], cause)
            return
        shared.queue.add(record)
        if record.status is PeerStatus.ALIVE:
            self._revive(peer, cause)
        elif record.status is PeerStatus.SUSPECT:
            if peer.state is not State.SUSPECT:
                self._revive(peer, cause)
                shared.counters.suspicions += 1
            peer.suspicion = None
            if peer.state is not State.SUSPECT:
                self._move(peer, State.SUSPECT, cause)
            self.on_suspected(peer, record.suspectors)
        else:
            self._end(peer, record.status, cause)

    def _revive(self, peer: KnownPeer, cause: Cause) -> None:
        """Returns a peer to ALIVE after it refuted a suspicion or its death."""
        peer.suspicion = None
        before = peer.state
        if before is not State.ALIVE:
            self._move(peer, State.ALIVE, cause)
        if not before.is_present:
            self.on_present(peer)

    def _end(self, peer: KnownPeer, status: PeerStatus, cause: Cause) -> None:
        """Ends a peer. One that is gone already does not end a second time, even if it came back
        and ended unnoticed."""
        counters = self._shared.counters
        if not peer.state.is_present:
            return
        peer.suspicion = None
        if status is PeerStatus.LEFT:
            counters.leaves += 1
            cause = Cause.LEAVE
        elif cause is Cause.GOSSIP:
            counters.deaths_heard += 1
        self._move(peer, _ENDED[status], cause)

    def _repeats(self, record: PeerRecord, known: PeerRecord) -> bool:
        return (
            record.boot == known.boot
            and record.incarnation == known.incarnation
            and record.status is PeerStatus.SUSPECT
        )

    def _suspect_more(self, peer: KnownPeer, by: tuple[NodeId, ...]) -> None:
        """Adds members whose probes failed too. New suspectors are passed on, repetitions are
        not."""
        known = peer.record.suspectors
        fresh = tuple(node for node in by if node not in known)
        both = (known + fresh)[: records.SUSPECTORS_MAX]
        if len(both) > len(known):
            peer.record = msgspec.structs.replace(peer.record, suspectors=both)
            self._shared.queue.add(peer.record)
        self.on_suspected(peer, by)

    def _move(self, peer: KnownPeer, state: State, cause: Cause) -> None:
        before = peer.state
        self._shared.table.place(peer, state, self._shared.now)
        self._shared.changed(peer, before, cause)


def _ignore(record: PeerRecord) -> None:
    pass


def _ignore_peer(peer: KnownPeer) -> None:
    pass


def _ignore_suspicion(peer: KnownPeer, suspectors: tuple[NodeId, ...]) -> None:
    pass
