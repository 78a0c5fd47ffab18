"""Groups of members in the light simulator: starts, crashes, stops, restarts, partitions."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from lab.membership import measures
from lab.membership.clusters import fill, identity_of, lifeguard
from lab.membership.event_queue import EventQueue, SimulatedNode
from squall.cluster.membership.core import MembershipCore
from squall.cluster.membership.effects import (
    Cause,
    Effect,
    Embedded,
    LeaveRequested,
    PeerChanged,
    Seed,
    SeedsChanged,
    SendDatagram,
    State,
)
from squall.cluster.membership.messages import MemberRole, Nack, PingReq
from squall.cluster.membership.parameters import CONFIRMATIONS, FAST, LAN, Parameters
from squall.cluster.membership.swim.outsiders import ATTEMPT_WAIT_MAX
from squall.runtime.interfaces import Address, NodeId

LIFEGUARD = lifeguard(LAN)


class Group:
    """Members with the log of all their transitions."""

    def __init__(self, seed: int = 1, *, loss: float = 0.0) -> None:
        self.log: list[tuple[float, str, PeerChanged]] = []
        self.queue = EventQueue(Random(seed), loss=loss, on_changed=self._note)
        self.nodes: list[SimulatedNode] = []

    def _note(self, node: SimulatedNode, effect: PeerChanged, now: float) -> None:
        self.log.append((now, node.name, effect))

    def filled(self, members: int) -> Group:
        """All of them know each other already."""
        self.nodes = fill(self.queue, LIFEGUARD, members)
        self.run(3.0)
        return self

    def start(self, number: int, seeds: Sequence[Address], boot: int = 0) -> SimulatedNode:
        """A process that knows its seeds only."""
        core = MembershipCore(
            identity_of(number, boot),
            LAN,
            Random(f"{number} {boot}"),
            self.queue.now,
            seeds=[Seed(address) for address in seeds],
        )
        identity = identity_of(number)
        node = self.queue.add(identity.node, identity.address, core)
        self.nodes.append(node)
        return node

    def run(self, seconds: float) -> None:
        self.queue.run(self.queue.now + seconds)

    def core(self, node: SimulatedNode) -> MembershipCore:
        assert isinstance(node.core, MembershipCore)
        return node.core

    def sees(self, observer: SimulatedNode, node: SimulatedNode) -> State | None:
        found = self.core(observer).member(NodeId(node.name), self.queue.now)
        return None if found is None else found.state

    def views(self, nodes: Sequence[SimulatedNode] | None = None) -> set[State | None]:
        """Every state that one of them sees another of them in."""
        some = self.nodes if nodes is None else nodes
        return {self.sees(one, other) for one in some for other in some if one is not other}

    def steps(self, observer: SimulatedNode, node: SimulatedNode) -> list[tuple[State, Cause]]:
        return [
            (effect.after, effect.cause)
            for _, name, effect in self.log
            if name == observer.name and effect.member.node == node.name
        ]

    def after(self, state: State) -> list[tuple[float, str, PeerChanged]]:
        return [entry for entry in self.log if entry[2].after is state]


def addresses(*numbers: int) -> list[Address]:
    return [identity_of(number).address for number in numbers]


@pytest.mark.parametrize("late_s", [0.0, 5.0])
def test_a_cold_start_ends_with_one_view_and_no_suspicion(late_s: float) -> None:
    group = Group()
    rng = Random(late_s)
    for number in range(5):
        group.run(late_s * rng.random())
        group.start(number, addresses(0, 1, 2, 3, 4))
    group.run(4.0 + 3 * LAN.probe_interval_s)
    assert group.views() == {State.ALIVE}
    assert group.after(State.SUSPECT) == []
    confirmed = [(name, effect.member.node) for _, name, effect in group.after(State.ALIVE)]
    assert len(confirmed) == len(set(confirmed)) == 20


def test_members_with_one_list_of_seeds_never_form_islands() -> None:
    for seed in range(50):
        rng = Random(seed)
        group = Group(seed)
        within_s = 5.0 if seed % 2 else 0.05
        for number, at in enumerate(sorted(rng.uniform(0.0, within_s) for _ in range(3))):
            group.run(max(at - group.queue.now, 0.0))
            group.start(number, addresses(0, 1, 2))
        group.run(2.0)
        assert group.views() == {State.ALIVE}, seed


def test_a_seed_that_answers_nothing_harms_nobody_and_joins_when_it_begins() -> None:
    group = Group().filled(3)
    for node in group.nodes:
        group.queue.tell(node, SeedsChanged(tuple(map(Seed, addresses(0, 1, 2, 7)))))
    group.run(600.0)
    assert group.log == []
    # It knows nobody: the others ask it.
    group.start(7, [])
    group.run(ATTEMPT_WAIT_MAX * LAN.probe_interval_s + 2.0)
    assert group.views() == {State.ALIVE}
    assert {entry[2].after for entry in group.log} == {State.UNCONFIRMED, State.ALIVE}


def test_one_live_seed_among_dead_ones_is_enough() -> None:
    group = Group().filled(3)
    newcomer = group.start(9, addresses(50, 51, 52, 53, 0))
    group.run(1.0)
    assert {group.sees(newcomer, node) for node in group.nodes[:3]} == {State.ALIVE}
    assert {group.sees(node, newcomer) for node in group.nodes[:3]} == {State.ALIVE}


def test_a_member_that_starts_first_waits_for_the_others() -> None:
    group = Group()
    group.start(0, addresses(0, 1, 2))
    group.run(10 * CONFIRMATIONS[MemberRole.MANAGER].total_s)
    assert group.core(group.nodes[0]).members(group.queue.now) == []
    group.start(1, addresses(0, 1, 2))
    group.start(2, addresses(0, 1, 2))
    group.run(3.0)
    assert group.views() == {State.ALIVE}


def test_islands_merge_after_the_partition_in_which_they_started() -> None:
    group = Group()
    group.queue.is_cut = lambda one, other: (
        (one.address[0][-1] in "12" and other.address[0][-1] not in "12")
        or (one.address[0][-1] not in "12" and other.address[0][-1] in "12")
    )
    for number in range(4):
        group.start(number, addresses(0, 1, 2, 3))
    group.run(20.0)
    assert group.views() == {State.ALIVE, None}
    group.queue.is_cut = None
    group.run(15.0)
    assert group.views() == {State.ALIVE}
    assert group.after(State.DEAD) == []


def test_a_crash_is_seen_in_order_and_called_back_once_everywhere() -> None:
    group = Group().filled(5)
    victim, survivors = group.nodes[4], group.nodes[:4]
    group.queue.crash(victim)
    began = group.queue.now
    group.run(10.0)
    for survivor in survivors:
        steps = [state for state, _ in group.steps(survivor, victim)]
        assert steps in ([State.SUSPECT, State.DEAD], [State.DEAD])
        counters = group.core(survivor).counters
        assert counters.deaths_heard + counters.deaths_declared == 1
    declared = [cause for _, _, effect in group.after(State.DEAD) for cause in [effect.cause]]
    assert declared.count(Cause.PROBE) >= 1
    assert group.views(survivors) == {State.ALIVE}
    assert max(when for when, _, _ in group.after(State.DEAD)) - began <= 10.0


def test_proxies_answer_before_a_death_is_declared() -> None:
    group = Group().filled(5)
    order: list[str] = []
    carry = group.queue.carry_out

    def watched(node: SimulatedNode, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendDatagram) and isinstance(effect.message, PingReq | Nack):
                order.append(type(effect.message).__name__)
            if isinstance(effect, PeerChanged):
                order.append(effect.after.value)
        carry(node, effects)

    group.queue.carry_out = watched
    group.queue.crash(group.nodes[4])
    group.run(10.0)
    assert order.index("PingReq") < order.index("Nack") < order.index("suspect")
    assert order.index("suspect") < order.index("dead")


def test_a_link_that_works_in_one_direction_only_costs_nobody_its_life() -> None:
    group = Group().filled(3)
    one, witness, other = group.nodes
    group.queue.is_cut = lambda source, target: source is one and target is other
    group.run(300.0)
    assert group.after(State.DEAD) == []
    assert group.sees(one, other) is State.ALIVE
    found = group.core(one).member(NodeId(other.name), group.queue.now)
    assert found is not None
    assert witness.name in found.heard_by
    assert one.name in found.unheard_by
    group.queue.crash(witness)
    group.run(300.0)
    ends = [state for state, _ in group.steps(one, other) if state is State.DEAD]
    assert len(ends) <= 1, "it must not die again and again"


def test_a_new_member_behind_a_one_way_link_stays_unconfirmed_until_it_heals() -> None:
    group = Group()
    one = group.start(0, [])
    other = group.start(1, addresses(0))
    group.queue.is_cut = lambda source, target: source is one
    group.run(120.0)
    assert [state for state, _ in group.steps(one, other)] == [State.UNCONFIRMED]
    group.queue.is_cut = None
    group.run(15.0)
    assert group.views() == {State.ALIVE}
    assert group.after(State.SUSPECT) == []


def test_a_short_stop_is_refuted_without_a_death() -> None:
    group = Group().filled(10)
    victim = group.nodes[3]
    group.queue.pause(victim)
    while not group.after(State.SUSPECT):
        group.run(0.05)
    group.run(LAN.suspicion_min_s(10) / 2)
    group.queue.resume(victim)
    group.run(5.0)
    assert group.after(State.DEAD) == []
    assert group.views() == {State.ALIVE}
    assert group.core(victim).incarnation >= 1


def test_a_member_that_was_declared_dead_comes_back_with_a_higher_incarnation() -> None:
    group = Group().filled(10)
    victim = group.nodes[3]
    group.queue.pause(victim)
    group.run(30.0)
    others = [node for node in group.nodes if node is not victim]
    assert {group.sees(node, victim) for node in others} == {State.DEAD}
    group.queue.resume(victim)
    group.run(6.0)
    assert group.views() == {State.ALIVE}
    assert group.core(victim).incarnation >= 1
    for node in others:
        assert [state for state, _ in group.steps(node, victim)].count(State.DEAD) == 1


def test_a_restart_within_a_second_ends_the_old_boot_once_and_begins_the_new() -> None:
    group = Group().filled(10)
    old = group.nodes[3]
    group.queue.crash(old)
    group.run(0.3)
    del group.nodes[3]
    new = group.start(3, addresses(0, 1, 2), boot=1)
    group.run(8.0)
    assert group.views() == {State.ALIVE}
    for node in group.nodes:
        if node is new:
            continue
        ends = [
            (effect.member.boot, effect.cause)
            for _, name, effect in group.log
            if name == node.name and effect.after is State.DEAD
        ]
        assert ends == [(identity_of(3).boot, Cause.RESTART)]
    group.run(30.0)
    assert group.views() == {State.ALIVE}, "no late word removes the new boot"


@pytest.mark.parametrize("kept", [True, False])
def test_a_member_that_stood_still_for_a_minute_declares_nobody_dead(kept: bool) -> None:
    group = Group().filled(9)
    observer = group.nodes[0]
    group.queue.pause(observer)
    group.run(60.0)
    if not kept:
        observer.inbox.clear()  # the kernel had no room
    group.log.clear()
    group.queue.resume(observer)
    group.run(20.0)
    assert [entry for entry in group.after(State.DEAD) if entry[1] == observer.name] == []
    assert group.views() == {State.ALIVE}


@pytest.mark.parametrize("members", [30, pytest.param(200, marks=pytest.mark.nightly)])
def test_two_fifths_of_a_group_die_at_once(members: int) -> None:
    group = Group(loss=0.02).filled(members)
    lost = 2 * members // 5
    dead, survivors = group.nodes[:lost], group.nodes[lost:]
    for node in dead:
        group.queue.crash(node)
    group.run(LAN.suspicion_max_s(members) + 5.0)
    gone = {node.name for node in dead}
    assert {group.sees(one, node) for one in survivors for node in dead} == {State.DEAD}
    assert {effect.member.node for _, _, effect in group.after(State.DEAD)} == gone
    assert group.views(survivors[:10]) == {State.ALIVE}


def test_a_leaving_member_is_left_and_never_dead() -> None:
    group = Group().filled(20)
    leaving = group.nodes[7]
    group.queue.tell(leaving, LeaveRequested())
    group.run(LAN.leave_s)
    group.queue.crash(leaving)
    group.run(20.0)
    others = [node for node in group.nodes if node is not leaving]
    assert {group.sees(node, leaving) for node in others} == {State.LEFT}
    assert group.after(State.DEAD) == []


def test_embedded_state_arrives_with_probes_and_answers() -> None:
    group = Group().filled(5)
    group.queue.tell(group.nodes[0], Embedded(b"load 7"))
    group.run(12.0)
    for node in group.nodes[1:]:
        found = group.core(node).member(NodeId(group.nodes[0].name), group.queue.now)
        assert found is not None
        assert found.embedded == b"load 7"


def test_a_far_member_with_jitter_and_loss_is_not_suspected_falsely() -> None:
    group = Group(loss=0.02)
    rng = Random(7)
    group.queue.delay_of = lambda one, other: rng.uniform(0.1, 0.2)
    group.nodes = fill(group.queue, LIFEGUARD, 6)
    group.run(1800.0)
    probes = sum(group.core(node).counters.probes for node in group.nodes)
    failed = sum(group.core(node).counters.probes_failed for node in group.nodes)
    assert failed / probes < 0.01
    assert group.after(State.DEAD) == []


# The goals, with few samples; docs/membership.md has the whole tables.


@pytest.mark.parametrize(
    ("parameters", "members", "crashes", "median_s", "most_s"),
    [
        pytest.param(LAN, 40, 5, 6.0, 10.0, id="lan"),
        pytest.param(FAST, 40, 5, 3.0, 3.0, id="fast"),
        # One crash in a hundred waits long for its first probe: it takes hundreds to know a p99.
        pytest.param(LAN, 100, 300, 6.0, 10.0, id="lan-100", marks=pytest.mark.nightly),
        pytest.param(FAST, 100, 60, 3.0, 3.0, id="fast-100", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.timeout(1200)
def test_a_crash_is_known_by_all_in_time(
    parameters: Parameters, members: int, crashes: int, median_s: float, most_s: float
) -> None:
    times = measures.crash_times(lifeguard(parameters), members, crashes, seed=3)
    assert times.missed == 0
    assert measures.percentile(times.all_s, 0.5) <= median_s
    assert measures.percentile(times.all_s, 0.99) <= most_s


def test_the_traffic_of_a_node_does_not_grow_with_the_group() -> None:
    small, large = (measures.traffic(LIFEGUARD, n, 20.0, 1) for n in (8, 40))
    assert large.messages <= 1.1 * small.messages
    assert large.bytes <= 1.1 * small.bytes


@pytest.mark.parametrize(
    ("members", "cut_s"),
    [(20, 15.0), (20, 120.0), pytest.param(100, 120.0, marks=pytest.mark.nightly)],
)
def test_the_halves_of_a_partition_find_each_other_within_ten_seconds(
    members: int, cut_s: float
) -> None:
    assert measures.heal_time(LIFEGUARD, members, cut_s, 1, within_s=30.0) <= 10.0


@pytest.mark.parametrize("hours", [1.0, pytest.param(100.0, marks=pytest.mark.nightly)])
def test_no_false_death_at_five_percent_loss(hours: float) -> None:
    found = measures.false_deaths(LIFEGUARD, 20, hours * 180.0, seed=2, loss=0.05)
    assert found.node_hours == hours
    assert (found.declared, found.held) == (0, 0)


@pytest.mark.parametrize("seconds", [30.0, pytest.param(600.0, marks=pytest.mark.nightly)])
def test_members_that_stop_and_go_on_are_not_declared_dead_while_they_run(seconds: float) -> None:
    found = measures.paused_deaths(LIFEGUARD, 24, 6, seconds, seed=2)
    assert found.declared == 0
