"""This member's own record: refutes what others claim of it, replaces a former boot, leaves."""

from __future__ import annotations

import msgspec

from squall.cluster.membership.effects import NameTaken
from squall.cluster.membership.messages import Gossip, PeerRecord, PeerStatus
from squall.cluster.membership.swim.shared import Shared
from squall.runtime.interfaces import BootId


class OwnRecord:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._outranked: dict[BootId, int] = {}
        """Other boots of this name, and the incarnation of each that this one has outranked."""
        self.is_leaving = False
        self.changed = False
        """Whoever is talked to now should hear of the new record at once."""

    def heard(self, record: PeerRecord) -> None:
        """Handles a record about this member's name."""
        shared = self._shared
        own = shared.own
        if record.boot != own.boot:
            self._other_boot(record)
        elif record.status is PeerStatus.ALIVE or self.is_leaving:
            if record.incarnation > own.incarnation:
                self._raise_above(record.incarnation)
        elif record.incarnation >= own.incarnation:
            # Only the accused itself may raise its incarnation, and only above the accusation.
            shared.counters.refutations += 1
            shared.health.refuted()
            self._raise_above(record.incarnation)

    def leave(self) -> None:
        """Sends the LEFT record to a few members at once; gossip spreads it further."""
        shared = self._shared
        if self.is_leaving:
            return
        self.is_leaving = True
        shared.own = msgspec.structs.replace(shared.own, status=PeerStatus.LEFT)
        shared.queue.add(shared.own)
        for peer in shared.table.draw(shared.rng, 2 * shared.parameters.gossip_fanout):
            message = Gossip(shared.own, shared.gossip_for(peer))
            shared.send(peer.record.address, peer.record.role, message)

    def _raise_above(self, incarnation: int) -> None:
        shared = self._shared
        shared.own = msgspec.structs.replace(shared.own, incarnation=incarnation + 1)
        shared.queue.add(shared.own)
        self.changed = True

    def _other_boot(self, record: PeerRecord) -> None:
        """A former boot of this node, which this one replaces; or a process under the same name. A
        former boot is over, so it never raises its incarnation again."""
        shared = self._shared
        if record.incarnation < shared.own.incarnation:
            return
        outranked = self._outranked.get(record.boot)
        if outranked is not None and record.incarnation > outranked:
            # Of two that live, the one with the smaller boot id gives way: without a rule they
            # would outrank each other for ever.
            shared.is_silent = record.boot > shared.own.boot
            shared.out.append(NameTaken(record.boot, shared.is_silent))
            if shared.is_silent:
                return
        self._outranked[record.boot] = record.incarnation
        self._raise_above(record.incarnation)
