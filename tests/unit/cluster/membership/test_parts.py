"""Queue of gossip, coordinates, embedded state, timers, parameters and liveness for a job."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from statistics import median

import pytest

from squall.cluster.membership import coordinates, records
from squall.cluster.membership.coordinates import Coordinate, Vivaldi
from squall.cluster.membership.effects import Embedded, State
from squall.cluster.membership.job_liveness import NodeStatus, status_for_job
from squall.cluster.membership.messages import EMBEDDED_MAX, PeerStatus, Ping
from squall.cluster.membership.parameters import FAST, LAN, WAN, Parameters
from squall.cluster.membership.swim.gossip_queue import GossipQueue
from squall.cluster.membership.swim.local_health import SCORE_MAX, LocalHealth
from squall.cluster.membership.swim.timers import TimerHeap
from squall.runtime.invariants import InvariantViolation
from tests.unit.cluster.membership.lab.one_member import OneMember, record, sent

ALIVE, SUSPECT, DEAD, LEFT = PeerStatus


# Gossip.


def test_a_record_is_sent_a_bounded_number_of_times_least_sent_first() -> None:
    queue = GossipQueue(lambda: 3)
    room = 2 * records.size(record("a"))
    for name in "abc":
        queue.add(record(name))
    taken = [tuple(found.node for found in queue.take(room)) for _ in range(6)]
    assert sorted(name for names in taken for name in names) == sorted("abc" * 3)
    assert set(taken[0]) | set(taken[1]) == set("abc")
    assert len(queue) == 0


def test_a_newer_record_takes_the_place_of_the_older_and_counts_anew() -> None:
    queue = GossipQueue(lambda: 2)
    queue.add(record("a", SUSPECT, 1))
    queue.take(1_000)
    queue.add(record("a", ALIVE, 2))
    assert [found.status for _ in range(3) for found in queue.take(1_000)] == [ALIVE, ALIVE]


def test_what_concerns_the_receiver_goes_first_and_is_not_counted() -> None:
    queue = GossipQueue(lambda: 1)
    queue.add(record("b"))
    first = record("a", SUSPECT, 0, "b")
    assert [found.node for found in queue.take(1_000, first)] == ["a", "b"]
    assert queue.take(1_000, first) == (first,)
    assert queue.take(10, first) == ()


# Coordinates.


def points(
    rounds: int, rtt_s: dict[tuple[int, int], float], members: int, seed: int
) -> list[float]:
    """Relative errors of all predictions after some rounds, each member with a random peer."""
    rng = Random(seed)
    spaces = [Vivaldi(Random(rng.getrandbits(32))) for _ in range(members)]
    for _ in range(rounds):
        for number, space in enumerate(spaces):
            peer = rng.choice([other for other in range(members) if other != number])
            rtt = rtt_s[number, peer] * rng.uniform(0.98, 1.05)
            before = coordinates.unpack(space.own.pack())
            other = coordinates.unpack(spaces[peer].own.pack())
            assert before is not None
            assert other is not None
            space.update(other, rtt)
            spaces[peer].update(before, rtt)  # two-sided
    return [
        abs(spaces[a].own.distance_s(spaces[b].own) - rtt) / rtt for (a, b), rtt in rtt_s.items()
    ]


def four_regions() -> dict[tuple[int, int], float]:
    """16 members in four datacenters, 1 ms inside and 30 to 230 ms between."""
    between = {(0, 1): 0.03, (0, 2): 0.12, (0, 3): 0.23, (1, 2): 0.1, (1, 3): 0.21, (2, 3): 0.15}
    found: dict[tuple[int, int], float] = {}
    for a in range(16):
        for b in range(16):
            if a != b:
                one, other = sorted((a % 4, b % 4))
                found[a, b] = 0.001 if one == other else between[one, other]
    return found


def test_coordinates_converge() -> None:
    rtt = four_regions()
    far = [at for at, pair in enumerate(rtt) if pair[0] % 4 != pair[1] % 4]
    after_20 = points(20, rtt, 16, 1)
    assert median(after_20[at] for at in far) < 0.2
    after_60 = sorted(points(60, rtt, 16, 1)[at] for at in far)
    assert after_60[int(0.9 * len(after_60))] < 0.2


def test_coordinates_follow_a_lasting_change_of_the_path() -> None:
    rng = Random(1)
    one, other = Vivaldi(Random(2)), Vivaldi(Random(3))
    for rtt in [0.02] * 60 + [0.08] * 60:
        before = one.own
        one.update(other.own, rtt * rng.uniform(0.98, 1.02))
        other.update(before, rtt)
    assert one.own.distance_s(other.own) == pytest.approx(0.08, rel=0.2)


@pytest.mark.parametrize(
    "bad",
    [
        Coordinate((math.nan, 0.0, 0.0, 0.0), 0.001, 0.5, 9),
        Coordinate((math.inf, 0.0, 0.0, 0.0), 0.001, 0.5, 9),
        Coordinate((1e12, 0.0, 0.0, 0.0), 0.001, 0.5, 9),
        Coordinate((0.0, 0.0, 0.0, 0.0), -1.0, 0.5, 9),
        Coordinate((0.0, 0.0, 0.0, 0.0), 0.001, 99.0, 9),
    ],
)
def test_a_poisoned_coordinate_moves_nobody(bad: Coordinate) -> None:
    member = OneMember()
    member.confirm("a")
    before = member.core.coordinate
    member.ping(record("a"), coordinate=bad.pack(), rtt_s=0.01)
    assert member.core.coordinate == before
    assert member.core.counters.coordinates_refused == 1
    assert member.state("a") is State.ALIVE
    assert coordinates.unpack(b"short") is None


def test_one_sample_moves_a_point_by_a_bounded_step() -> None:
    space = Vivaldi(Random(1))
    space.update(Coordinate((0.0,) * 4, 0.001, 1.0, 1), 9.9)
    assert math.hypot(*space.own.position) <= coordinates.STEP_MAX_S + 1e-9
    assert space.update(space.own, math.nan) is None
    assert space.update(space.own, 1e9) is None


def test_a_coordinate_adds_at_most_80_bytes() -> None:
    assert len(Vivaldi(Random(1)).own.pack()) + len("coordinate") + 4 <= 80


def test_a_measured_round_trip_beats_a_predicted_one_and_all_are_bounded() -> None:
    member = OneMember()
    member.hear(record("far"), by="a")
    assert member.view("far").rtt_upper_s == LAN.rtt_default_s
    far = Coordinate((5.0, 0.0, 0.0, 0.0), 0.001, 0.1, 30)
    member.ping(record("far"), coordinate=far.pack(), rtt_s=0.02)
    assert member.view("far").rtt_upper_s == LAN.rtt_max_s
    member.answering.add("far")
    member.run(12.0)
    assert member.view("far").rtt_s is not None
    assert member.view("far").rtt_upper_s < 0.1


# Embedded state.


def test_a_member_embeds_its_state_in_probes_and_answers() -> None:
    member = OneMember(embedded=b"idle")
    member.confirm("a")
    assert sent(member.effects, Ping)[0].state == b"idle"
    member.handle(Embedded(b"busy"))
    assert member.ping(record("a"), state=b"theirs", health=3).state == b"busy"
    assert (member.view("a").embedded, member.view("a").health) == (b"theirs", 3)
    with pytest.raises(InvariantViolation, match="embedded state has 257 bytes"):
        member.handle(Embedded(b"x" * (EMBEDDED_MAX + 1)))


# Small parts.


def test_the_score_stays_between_0_and_8_and_stretches_up_to_threefold() -> None:
    health = LocalHealth()
    health.probe_answered()
    assert (health.score, health.multiplier) == (0, 1.0)
    health.was_late(0.5)
    health.was_late(2.0)
    assert health.score == 3
    for _ in range(9):
        health.nacks_missing(3)
    assert (health.score, health.multiplier) == (SCORE_MAX, 3.0)
    health.probe_answered()
    assert health.score == SCORE_MAX - 1


def test_timers_run_in_order_and_move_together() -> None:
    timers, ran = TimerHeap(), list[str]()
    timers.at(2.0, lambda: ran.append("late"))
    timers.at(1.0, lambda: timers.at(12.0, lambda: ran.append("again")))
    timers.move(10.0)
    assert timers.first == 11.0
    for call in timers.due(12.0):
        call()
    assert ran == ["late"], "what a call adds waits for the next tick"
    for call in timers.due(12.0):
        call()
    assert ran == ["late", "again"]


@pytest.mark.parametrize("profile", [LAN, FAST, WAN])
def test_profiles_have_room_for_indirect_probes_and_refutations(profile: Parameters) -> None:
    for members in (2, 3, 10, 100, 1_000):
        shortest = profile.suspicion_min_s(members)
        assert shortest >= 1.4 * profile.probe_interval_s
        assert profile.suspicion_max_s(members) > shortest
        assert profile.transmissions(members) >= 4
    assert profile.suspicion_min_s(1_000) > profile.suspicion_min_s(10)
    assert profile.sync_every_s(32) == profile.sync_interval_s
    assert profile.sync_every_s(500) == 5 * profile.sync_interval_s
    with pytest.raises(InvariantViolation, match="probe timeout"):
        replace(profile, probe_timeout_s=profile.probe_interval_s)


@pytest.mark.parametrize(
    ("state", "age", "status"),
    [
        (State.ALIVE, 0.5, NodeStatus.ALIVE),
        (State.ALIVE, 2.0, NodeStatus.SUSPECTED_JOB),
        (State.ALIVE, 9.0, NodeStatus.DEAD_JOB),
        (State.SUSPECT, 0.5, NodeStatus.SUSPECTED_GLOBAL),
        (State.SUSPECT, 9.0, NodeStatus.DEAD_JOB),
        (State.DEAD, 0.5, NodeStatus.DEAD_GLOBAL),
        (State.LEFT, 0.5, NodeStatus.DEAD_GLOBAL),
        (State.UNCONFIRMED, 0.5, NodeStatus.ALIVE),
        (None, 0.5, NodeStatus.ALIVE),
        (None, 9.0, NodeStatus.DEAD_JOB),
    ],
)
def test_a_node_is_judged_for_each_job_by_both_layers(
    state: State | None, age: float, status: NodeStatus
) -> None:
    found = status_for_job(state, age, suspect_after_s=1.0, dead_after_s=5.0)
    assert found is status
    assert found.is_alive is (status not in (NodeStatus.DEAD_GLOBAL, NodeStatus.DEAD_JOB))
    assert found.takes_new_work is (status is NodeStatus.ALIVE)
