"""The rules that every observer must keep at every moment."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from lab.sim.checks import check
from squall.cluster.membership.core import MembershipCore
from squall.cluster.membership.effects import Cause, PeerChanged, State
from squall.cluster.membership.swim.peers import Suspicion
from squall.runtime.interfaces import BootId, NodeId

ALLOWED: dict[State | None, set[State]] = {
    None: {State.UNCONFIRMED},
    State.UNCONFIRMED: {State.ALIVE, State.DEAD, State.LEFT, State.FORGOTTEN},
    State.ALIVE: {State.SUSPECT, State.DEAD, State.LEFT},
    State.SUSPECT: {State.ALIVE, State.DEAD, State.LEFT},
    State.DEAD: {State.ALIVE, State.FORGOTTEN},
    State.LEFT: {State.ALIVE, State.FORGOTTEN},
}
"""Every transition that exists. Only a confirmed member can be suspected."""


@dataclass(eq=False)
class ObserverChecks:
    """The rules of one boot of one observer. `is_well` says whether another node runs and has been
    reachable for a while, so that its death would be false."""

    name: str
    is_well: Callable[[NodeId, BootId], bool]
    states: dict[tuple[NodeId, BootId], tuple[State, int]] = field(
        default_factory=dict[tuple[NodeId, BootId], tuple[State, int]]
    )
    """The last reported state and incarnation."""
    deadlines: dict[Suspicion, float] = field(default_factory=dict[Suspicion, float])
    gaps: int = 0

    def changed(self, effect: PeerChanged) -> None:
        """Each transition follows from the last one, so none is reported twice or left out."""
        member = effect.member
        key = member.node, member.boot
        what = f"{self.name} on {member.node}: {effect.before} to {effect.after}"
        known, incarnation = self.states.get(key, (None, -1))
        if known is None and effect.before is not None:
            # A tombstone that was heard of before the member itself is taken in without a report.
            check(effect.before in (State.DEAD, State.LEFT), f"{what}, reported without a begin")
        elif known is State.DEAD and effect.before is None:
            # Another boot outranked it and nothing was kept of it. It runs all the same, and
            # outranks the other one in turn: two processes have one name.
            check(member.incarnation > incarnation, f"{what} again, with an old incarnation")
        else:
            check(known is effect.before, f"{what}, but {known} was reported last")
        check(effect.after in ALLOWED[effect.before], f"{what} is no transition")
        if effect.before in (State.DEAD, State.LEFT) and effect.after is State.ALIVE:
            check(member.incarnation > incarnation, f"{what} without a higher incarnation")
        if effect.after is State.FORGOTTEN:
            self.states.pop(key, None)
        else:
            self.states[key] = effect.after, member.incarnation
        if effect.after is State.DEAD and effect.cause is Cause.PROBE:
            well = self.is_well(member.node, member.boot)
            check(not well, f"{what} although it runs and is in reach")

    def stepped(self, core: MembershipCore) -> None:
        """No suspicion is ever postponed, unless the observer itself stood still (MEMB-47)."""
        if core.counters.gaps != self.gaps:
            self.gaps = core.counters.gaps
            self.deadlines.clear()
        suspects = core._shared.table.suspects
        if not suspects:
            self.deadlines.clear()
            return
        for peer in suspects.values():
            suspicion = peer.suspicion
            check(suspicion is not None, f"{self.name}: {peer.node} is suspect without a suspicion")
            if suspicion is None:
                continue
            before = self.deadlines.get(suspicion, suspicion.deadline)
            check(
                suspicion.deadline <= before + 1e-9,
                f"{self.name} postponed the suspicion of {peer.node}",
            )
            self.deadlines[suspicion] = suspicion.deadline
