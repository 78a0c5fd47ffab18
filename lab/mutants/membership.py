"""Mutants of membership: known bugs, each switched on by name.

They patch the real classes for one run; the product contains no switch for them.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from squall.cluster.membership import records
from squall.cluster.membership.core import MembershipCore
from squall.cluster.membership.effects import Cause, State
from squall.cluster.membership.messages import PeerRecord, PeerStatus
from squall.cluster.membership.swim import suspicions
from squall.cluster.membership.swim.outsiders import Outsiders
from squall.cluster.membership.swim.peers import KnownPeer
from squall.cluster.membership.swim.suspicions import Suspicions
from squall.cluster.membership.swim.transitions import Transitions
from squall.runtime.interfaces import NodeId

MUTANTS = {
    "confirmation_resets_timer": "a confirmation starts the time of a suspicion anew",
    "dead_never_probed": "a dead member is not probed again, so healed partitions stay apart",
    "observer_gap_ignored": "a member that stood still takes its time limits for passed",
    "equal_incarnation_alive_wins": "ALIVE beats suspicion and death of the same incarnation",
    "callback_twice": "a death that is heard again calls back again",
}


@contextmanager
def mutated(name: str | None) -> Generator[None]:
    with ExitStack() as stack:
        if name == "confirmation_resets_timer":
            stack.enter_context(patch.object(Suspicions, "suspected", _suspected))
        if name == "dead_never_probed":
            stack.enter_context(patch.object(Outsiders, "_probe_dead", _probe_none))
        if name == "observer_gap_ignored":
            stack.enter_context(patch.object(MembershipCore, "_stood_still", _ignore_gap))
        if name == "equal_incarnation_alive_wins":
            stack.enter_context(patch.object(records, "is_newer", _is_newer))
        if name == "callback_twice":
            stack.enter_context(patch.object(Transitions, "apply", _apply))
        yield


_REAL_SUSPECTED = Suspicions.suspected
_REAL_APPLY = Transitions.apply


def _suspected(self: Suspicions, peer: KnownPeer, by: tuple[NodeId, ...]) -> None:
    suspicion = peer.suspicion
    _REAL_SUSPECTED(self, peer, by)
    if suspicion is not None:
        suspicion.deadline = self._shared.now + suspicions.lasts_s(suspicion)
        self._schedule(peer, suspicion)


def _probe_none(self: Outsiders) -> None: ...


def _ignore_gap(self: MembershipCore, gap: float) -> None: ...


def _is_newer(record: PeerRecord, than: PeerRecord) -> bool:
    if record.incarnation != than.incarnation:
        return record.incarnation > than.incarnation
    if record.boot != than.boot:
        return False
    if record.status is PeerStatus.ALIVE:
        return than.status is not PeerStatus.ALIVE
    return record.status.rank > than.status.rank


def _apply(self: Transitions, record: PeerRecord, cause: Cause = Cause.GOSSIP) -> None:
    peer = self._shared.peer_of(record.node)
    if peer is not None and peer.state is State.DEAD and record == peer.record:
        self._shared.changed(peer, State.ALIVE, cause)
    _REAL_APPLY(self, record, cause)
