"""The measurements behind docs/membership.md, one function each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from lab.membership.clusters import Make, fill
from lab.membership.event_queue import EventQueue, SimulatedNode
from squall.cluster.membership.effects import Cause, PeerChanged, State

SETTLE_S = 5.0


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


@dataclass
class Deaths:
    """Collects which member declared which one dead, and when."""

    declared: list[tuple[float, SimulatedNode, str]] = field(
        default_factory=list[tuple[float, SimulatedNode, str]]
    )
    """By a suspicion that ran out at the observer."""
    held: list[tuple[float, SimulatedNode, str]] = field(
        default_factory=list[tuple[float, SimulatedNode, str]]
    )
    """Also by gossip."""

    def of(self, victim: SimulatedNode) -> dict[int, float]:
        """When each observer declared a node dead."""
        return {id(node): when for when, node, dead in self.held if dead == victim.name}

    def take(self, node: SimulatedNode, changed: PeerChanged, now: float) -> None:
        entry = (now, node, changed.member.node)
        if changed.after is State.DEAD:
            self.held.append(entry)
            if changed.cause is Cause.PROBE:
                self.declared.append(entry)


@dataclass
class CrashTimes:
    first_s: list[float] = field(default_factory=list[float])
    all_s: list[float] = field(default_factory=list[float])
    missed: int = 0
    """Crashes that not all members knew at the end."""


def crash_times(make: Make, members: int, crashes: int, seed: int, loss: float = 0.0) -> CrashTimes:
    """One crash after the other in one group, a new victim each time."""
    deaths = Deaths()
    rng = Random(f"crash {members} {seed}")
    queue = EventQueue(rng, loss=loss, on_changed=deaths.take)
    nodes = fill(queue, make, members)
    result = CrashTimes()
    queue.run(SETTLE_S)
    for _ in range(crashes):
        up = [node for node in nodes if node.is_up]
        if len(up) <= max(2, 0.8 * members):
            # The group must keep its size: begin anew.
            queue = EventQueue(rng, loss=loss, on_changed=deaths.take)
            nodes = up = fill(queue, make, members)
            queue.run(SETTLE_S)
        queue.run(queue.now + rng.uniform(0.0, 2.0))
        victim = rng.choice(up)
        deaths.held.clear()
        queue.crash(victim)
        began, wanted = queue.now, len(up) - 1
        while queue.now < began + 60.0:
            queue.run(queue.now + 0.5)
            known = deaths.of(victim)
            if len(known) == wanted:
                break
        known = deaths.of(victim)
        if len(known) < wanted:
            result.missed += 1
            continue
        result.first_s.append(min(known.values()) - began)
        result.all_s.append(max(known.values()) - began)
    return result


@dataclass
class FalseDeaths:
    node_hours: float = 0.0
    declared: int = 0
    """A suspicion of a healthy member ran out at an observer."""
    held: int = 0
    """Observers that took a healthy member for dead, also by gossip."""

    @property
    def per_node_hour(self) -> float:
        return self.declared / self.node_hours


def false_deaths(
    make: Make,
    members: int,
    seconds: float,
    seed: int,
    *,
    loss: float = 0.0,
    slow_share: float = 0.0,
    turn_s: float = 0.0,
) -> FalseDeaths:
    """No member crashes or stops, so every death is false."""
    deaths = Deaths()
    rng = Random(f"false {members} {loss} {seed}")
    queue = EventQueue(rng, loss=loss, on_changed=deaths.take)
    slow = int(members * slow_share)
    fill(queue, make, members, turn_of=lambda number: 10 * turn_s if number < slow else turn_s)
    queue.run(seconds)
    return FalseDeaths(
        members * seconds / 3600.0,
        len(deaths.declared),
        len(deaths.held),
    )


def paused_deaths(make: Make, members: int, paused: int, seconds: float, seed: int) -> FalseDeaths:
    """Some members stop again and again, for 0.1 to 32 s, and run for 0.01 to 16 s between: the
    experiment of the Lifeguard paper. A death is false if its member runs at that moment."""
    rng = Random(f"pause {members} {paused} {seed}")
    result = FalseDeaths(members * seconds / 3600.0)

    def changed(node: SimulatedNode, effect: PeerChanged, now: float) -> None:
        if effect.after is not State.DEAD:
            return
        if not queue.nodes[effect.member.address].is_paused:
            result.held += 1
            if effect.cause is Cause.PROBE:
                result.declared += 1

    queue = EventQueue(rng, on_changed=changed)
    nodes = fill(queue, make, members)

    def stop(node: SimulatedNode) -> None:
        queue.pause(node)
        queue.at(queue.now + log_uniform(rng, 0.1, 32.0), go_on, node)

    def go_on(node: SimulatedNode) -> None:
        queue.resume(node)
        queue.at(queue.now + log_uniform(rng, 0.01, 16.0), stop, node)

    for node in rng.sample(nodes, paused):
        queue.at(SETTLE_S + log_uniform(rng, 0.01, 16.0), stop, node)
    queue.run(SETTLE_S + seconds)
    return result


def log_uniform(rng: Random, least: float, most: float) -> float:
    return math.exp(rng.uniform(math.log(least), math.log(most)))


@dataclass(frozen=True)
class TrafficRate:
    messages: float
    bytes: float


def traffic(make: Make, members: int, seconds: float, seed: int) -> TrafficRate:
    """The traffic of a node in a calm group, per second."""
    queue = EventQueue(Random(f"traffic {members} {seed}"), counts_bytes=True)
    fill(queue, make, members)
    queue.run(10.0)
    before = queue.traffic.messages, queue.traffic.bytes
    queue.run(10.0 + seconds)
    share = members * seconds
    return TrafficRate(
        (queue.traffic.messages - before[0]) / share, (queue.traffic.bytes - before[1]) / share
    )


def heal_time(make: Make, members: int, cut_s: float, seed: int, within_s: float) -> float:
    """Seconds from the end of a 50/50 partition until all hold all for alive; infinite if they do
    not within `within_s`."""
    rng = Random(f"heal {members} {seed}")
    queue = EventQueue(rng)
    nodes = fill(queue, make, members)
    side = {id(node): number % 2 for number, node in enumerate(nodes)}
    wrong: set[tuple[int, str]] = set()

    def changed(node: SimulatedNode, effect: PeerChanged, now: float) -> None:
        pair = id(node), str(effect.member.node)
        if effect.after is State.ALIVE:
            wrong.discard(pair)
        else:
            wrong.add(pair)

    queue.on_changed = changed
    queue.run(SETTLE_S)
    queue.is_cut = lambda one, other: side[id(one)] != side[id(other)]
    queue.run(queue.now + cut_s)
    queue.is_cut = None
    healed = queue.now
    while queue.now < healed + within_s:
        queue.run(queue.now + 0.25)
        if not wrong:
            return queue.now - healed
    return math.inf
