"""One member's part of SWIM: probes, suspicions, refutations, gossip, comparison of views.

    core = Membership(identity, parameters, random, now, seeds=seeds)
    for effect in core.handle(Received(ping), now): ...
    for effect in core.tick(now): ...          # at core.deadline(), or a little later

The driver first hands over what has arrived, then ticks: after a stop of the process the answers
that wait in its socket come before the time-outs.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from squall.cluster.membership.effects import Effect, Event, Identity, MemberView, Seed
from squall.cluster.membership.parameters import Parameters
from squall.runtime.interfaces import NodeId


class Membership:
    """Sees all members of one group of peers, and is seen by them."""

    def __init__(
        self,
        identity: Identity,
        parameters: Parameters,
        random: Random,
        now: float,
        *,
        seeds: Sequence[Seed] = (),
        embedded: bytes = b"",
    ) -> None:
        """`now` and all later ones are readings of one monotonic clock."""
        raise NotImplementedError

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Takes in one event."""
        raise NotImplementedError

    def tick(self, now: float) -> list[Effect]:
        """Does what is due. A call long after `deadline()` means that this process stood still:
        every open time limit then moves by the gap, and nobody is declared dead for it."""
        raise NotImplementedError

    def deadline(self) -> float:
        """When the next tick is due. It may become earlier with each call of `handle`."""
        raise NotImplementedError

    def members(self, now: float) -> list[MemberView]:
        """Every known member but this one, by name; also the dead, until they are forgotten."""
        raise NotImplementedError

    def member(self, node: NodeId, now: float) -> MemberView | None:
        raise NotImplementedError

    @property
    def incarnation(self) -> int:
        """Of this member."""
        raise NotImplementedError

    @property
    def health(self) -> int:
        """The local health score: 0 (healthy) to 8 (slow, or badly connected)."""
        raise NotImplementedError
