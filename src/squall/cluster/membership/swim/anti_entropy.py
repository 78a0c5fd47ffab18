"""Compares whole views over the control link, so that records which gossip lost still arrive.

Equal views exchange a digest and nothing else, so the traffic of a calm group does not grow with
its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from squall.cluster.membership.effects import SendSync
from squall.cluster.membership.messages import MemberRole, PeerRecord, PeerStatus, Sync
from squall.cluster.membership.swim.peers import KnownPeer
from squall.cluster.membership.swim.shared import Shared
from squall.cluster.membership.swim.transitions import Transitions


class AntiEntropy:
    def __init__(self, shared: Shared, transitions: Transitions) -> None:
        self._shared = shared
        self._transitions = transitions
        self._next_revival = 0.0

    def every_s(self) -> float:
        """The time to the next comparison, with a random part: members must not fall in step."""
        shared = self._shared
        base = shared.parameters.sync_every_s(shared.table.size)
        return base * shared.rng.uniform(0.8, 1.2)

    def compare(self) -> None:
        """Compares with a random member."""
        shared = self._shared
        reachable = [
            peer
            for peer in shared.table.draw(shared.rng, 16)
            if self._has_link(peer) and peer.record.status is PeerStatus.ALIVE
        ]
        if not reachable and shared.identity.role is MemberRole.WORKER:
            reachable = [peer for peer in shared.table.present.values() if self._has_link(peer)]
        if reachable:
            self.compare_with(shared.rng.choice(reachable))

    def compare_with(self, peer: KnownPeer) -> None:
        shared = self._shared
        if self._has_link(peer):
            shared.counters.syncs += 1
            self._send(peer.record, Sync(shared.own, self.digest()))

    def revived(self, peer: KnownPeer) -> None:
        """Reacts to an answer of a dead member: a partition may be over, and each side may hold the
        other for dead. One comparison between the sides brings all records across."""
        shared = self._shared
        if shared.now >= self._next_revival:
            self._next_revival = shared.now + shared.parameters.probe_interval_s
            self.compare_with(peer)

    def received(self, sync: Sync) -> None:
        """Handles a `Sync`, whose sender's record the core has applied already."""
        shared = self._shared
        for record in sync.records:
            self._transitions.apply(record)
        if not sync.reply:
            return
        digest = self.digest()
        if digest == sync.digest:
            return
        # The answer to records ends the exchange; the answer to a bare digest asks for records.
        shared.counters.syncs += 1
        answer = Sync(shared.own, digest, tuple(self._records()), reply=not sync.records)
        self._send(sync.sender, answer)

    def digest(self) -> int:
        """Equal for equal views, in any order."""
        shared = self._shared
        sum_of_all = _digest_of(shared.own)
        for peer in shared.table.present.values():
            sum_of_all += _digest_of(peer.record)
        return sum_of_all % 2**64

    def _records(self) -> Iterator[PeerRecord]:
        """The records of all confirmed members, and tombstones in the first half of their time:
        otherwise members could hand an old tombstone round for ever."""
        shared = self._shared
        for peer in shared.table.present.values():
            yield peer.record
        for peer in (*shared.table.dead.values(), *shared.table.left.values()):
            if shared.now - peer.since < shared.parameters.dead_kept_s / 2:
                yield peer.record

    def _send(self, to: PeerRecord, sync: Sync) -> None:
        if not self._shared.is_silent:
            self._shared.out.append(SendSync(to.node, to.address, sync))

    def _has_link(self, peer: KnownPeer) -> bool:
        """Whether this member can open a link to the peer. It cannot to a worker: workers only
        dial."""
        return peer.record.role is not MemberRole.WORKER


def _digest_of(record: PeerRecord) -> int:
    text = f"{record.node} {record.boot} {record.incarnation} {record.status.rank}"
    return crc32(text.encode())
