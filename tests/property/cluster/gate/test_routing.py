"""Laws of the choice among datacenters that hold for all states of all datacenters."""

from __future__ import annotations

import dataclasses
import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from squall.cluster.gate.routing.choice import RoutingRequest, choose
from squall.cluster.gate.routing.health import Health
from squall.cluster.gate.routing.known_datacenters import KnownDatacenters
from squall.cluster.gate.routing.reachability import Reachability
from squall.cluster.gate.routing.scores import DatacenterStatus, load_factor, score_of
from squall.cluster.gate.routing.settings import RoutingSettings
from squall.cluster.protocol.gates.federation_messages import DatacenterState

SETTINGS = RoutingSettings()
NAMES = ("ap", "eu", "sa", "us")


@st.composite
def statuses(draw: st.DrawFn, name: str = "eu") -> DatacenterStatus:
    cores = draw(st.integers(0, 64))
    measured = draw(st.booleans())
    return DatacenterStatus(
        name=name,
        health=draw(st.sampled_from(Health)),
        suspected=draw(st.booleans()),
        held=draw(st.integers(0, 9)) == 0,
        cores=cores,
        free=draw(st.integers(0, max(cores, 1))),
        queued=draw(st.integers(0, 200)),
        managers_heard=draw(st.integers(0, 5)),
        managers_total=draw(st.integers(0, 5)),
        overload=draw(st.integers(0, 3)),
        rtt_ms=draw(st.floats(0.0, 5000.0)) if measured else None,
        samples=draw(st.integers(1, 40)) if measured else 0,
        report_age_s=draw(st.floats(0.0, 100.0)),
        cool_down=draw(st.floats(1.0, 3.0)),
    )


@st.composite
def worlds(draw: st.DrawFn) -> list[DatacenterStatus]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True))
    return [draw(statuses(name)) for name in names]


def usable(status: DatacenterStatus) -> bool:
    return status.health <= Health.DEGRADED and not status.held


def bucket(status: DatacenterStatus) -> int:
    if status.suspected:
        return 3
    return max(status.health, Health.BUSY) if status.free < 1 else status.health


@given(worlds(), st.text(max_size=8))
def test_a_routed_job_goes_to_the_best_bucket_or_nowhere(
    world: list[DatacenterStatus], key: str
) -> None:
    decision = choose(RoutingRequest(key=key), world, SETTINGS)
    candidates = [each for each in world if usable(each)]
    if not candidates:
        assert decision.parts == ()
        assert decision.reason
        return
    (part,) = decision.parts
    chosen = next(each for each in candidates if each.name == part.datacenter)
    assert bucket(chosen) == min(bucket(each) for each in candidates)
    assert part.explanation.chosen == part.datacenter
    assert {note.name for note in part.explanation.candidates} == {e.name for e in world}


@given(worlds(), st.text(max_size=8), st.integers(1, 4), st.randoms())
def test_the_decision_depends_on_nothing_but_its_input(
    world: list[DatacenterStatus], key: str, count: int, draw: random.Random
) -> None:
    request = RoutingRequest(key=key, count=count)
    shuffled = list(world)
    draw.shuffle(shuffled)
    assert choose(request, world, SETTINGS) == choose(request, shuffled, SETTINGS)


@given(worlds(), st.integers(1, 4))
def test_any_n_are_n_different_datacenters_or_none(
    world: list[DatacenterStatus], count: int
) -> None:
    parts = choose(RoutingRequest(key="k", count=count), world, SETTINGS).parts
    able = sum(usable(each) for each in world)
    assert len(parts) == (count if able >= count else 0)
    assert len({part.datacenter for part in parts}) == len(parts)
    assert math.isclose(sum(part.share for part in parts), 1.0) or not parts


@given(worlds(), st.lists(st.sampled_from(NAMES), min_size=1, unique=True), st.booleans())
def test_named_parts_are_all_or_nothing_and_only_a_fallback_replaces(
    world: list[DatacenterStatus], named: list[str], fallback: bool
) -> None:
    weights = tuple((name, 1.0 / len(named)) for name in named)
    request = RoutingRequest(key="k", weights=weights, fallback=fallback)
    parts = choose(request, world, SETTINGS).parts
    able = {each.name for each in world if usable(each)}
    assert len(parts) in (0, len(named))
    assert len({part.datacenter for part in parts}) == len(parts)
    assert all(part.datacenter in able for part in parts)
    for part, name in zip(parts, named, strict=False):
        assert part.datacenter == name or (fallback and part.replaces == name not in able)
    if able >= set(named):
        assert [part.datacenter for part in parts] == named


@given(statuses(), st.integers(0, 64), st.integers(0, 100), st.integers(0, 3), st.integers(0, 5))
def test_the_load_never_falls_when_more_is_used(
    status: DatacenterStatus, used: int, queued: int, overload: int, unheard: int
) -> None:
    fuller = dataclasses.replace(
        status,
        free=max(status.free - used, 0),
        queued=status.queued + queued,
        overload=max(status.overload, overload),
        managers_heard=max(status.managers_heard - unheard, 0),
    )
    before, after = load_factor(status, SETTINGS), load_factor(fuller, SETTINGS)
    assert 1.0 <= before <= after <= 5.0
    assert 0 < score_of(status, SETTINGS).total <= score_of(fuller, SETTINGS).total < math.inf


@settings(max_examples=40)
@given(st.data())
def test_whatever_arrives_reach_and_health_agree(data: st.DataObject) -> None:
    """Random answers, misses and pauses: an answer always makes a datacenter reachable, an
    unreachable one is never chosen, and free cores are never negative."""
    known = KnownDatacenters({name: [f"{name}:7400"] for name in NAMES}, SETTINGS)
    now = 0.0
    for _ in range(data.draw(st.integers(1, 20))):
        now += data.draw(st.sampled_from([0.5, 2.0, 2.0, 2.0, 20.0]))
        name = data.draw(st.sampled_from(NAMES))
        known.asked(name, now)
        if data.draw(st.booleans()):
            cores = data.draw(st.integers(0, 8))
            state = DatacenterState(
                datacenter=name,
                group=data.draw(st.sampled_from(["a", "b"])),
                epoch=data.draw(st.integers(0, 2)),
                committed=data.draw(st.integers(0, 9)),
                leader="m1",
                leads=data.draw(st.booleans()),
                managers_heard=1,
                managers_total=1,
                workers=data.draw(st.integers(0, 2)),
                healthy=data.draw(st.integers(0, 2)),
                cores=cores,
                free=data.draw(st.integers(0, 8)),
            )
            known[name].answered(state, data.draw(st.sampled_from([None, 5.0])), now, now)
            assert known[name].reach.state is Reachability.REACHABLE
        else:
            known.missed(name, now - 2.0, now)
        if data.draw(st.booleans()):
            known.dispatched(name, f"j{data.draw(st.integers(0, 5))}", 3, now)
        known.check(now)
        for status in known.statuses(now):
            assert status.free >= 0
            away = known[status.name].reach.state is Reachability.UNREACHABLE
            assert away <= (status.health is Health.UNREACHABLE)
        for part in choose(RoutingRequest(key="k"), known.statuses(now), SETTINGS).parts:
            assert known[part.datacenter].report is not None
