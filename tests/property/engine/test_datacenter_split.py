"""A load over several datacenters: the sums are the plan's, rows and user ids are disjoint."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from squall.api.feeds import Feed, FeedExhausted, Take
from squall.engine.core_protocol import ShareSpec
from squall.engine.load.datacenter_split import (
    WEIGHTS_SUM_MAX,
    split_manifest,
    split_rate,
    whole_weights,
)
from squall.engine.load.schedule import StartSchedule
from squall.engine.load.share_specs import share_specs
from squall.engine.load.stripes import stripe_count, stripe_position
from squall.engine.users.resume_point import iteration_rows, user_rows
from squall.stats.manifest import FileManifest, Model, Profile, Stage, WorkflowManifest

all_weights = st.lists(st.integers(1, 40), min_size=1, max_size=5).map(tuple)
users = st.integers(1, 200)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    model: Model = draw(st.sampled_from(["closed", "iterations", "ramp", "open", "open-ramp"]))
    vus = draw(users)
    if model == "closed":
        return Profile(vus=vus, max_vus=vus)
    if model == "iterations":
        each = draw(st.integers(0, 4))
        total = each * vus if each else draw(st.integers(1, 500))
        return Profile(model=model, vus=vus, max_vus=vus, iterations=total, iterations_per_vu=each)
    targets = draw(st.lists(st.integers(0, 100), min_size=1, max_size=4))
    stages = tuple(Stage(float(1 + at), float(target)) for at, target in enumerate(targets))
    length_s = sum(stage.duration_s for stage in stages)
    if model == "open":
        rate = draw(st.floats(0.1, 500.0))
        return Profile(model=model, vus=1, max_vus=vus, rate_per_s=rate, duration_s=10.0)
    peak = max([vus, *targets])
    return Profile(model=model, vus=vus, max_vus=peak, stages=stages, duration_s=length_s)


def parts_of(
    workflow: WorkflowManifest, weights: tuple[int, ...]
) -> list[tuple[WorkflowManifest, Any]]:
    parts = split_manifest(FileManifest(path="shop.py", workflows=[workflow]), weights)
    return [(manifest.workflows[0], places[workflow.name]) for manifest, places in parts]


def specs_of(profile: Profile, weights: tuple[int, ...], data: st.DataObject) -> list[ShareSpec]:
    """The shares of all datacenters; each chooses how many it makes."""
    found: list[ShareSpec] = []
    for workflow, part in parts_of(WorkflowManifest(name="Shop", profile=profile), weights):
        shares = data.draw(st.integers(1, 4))
        if workflow.profile.model in ("closed", "iterations"):
            shares = min(shares, workflow.profile.vus)
        found += share_specs(
            workflow, shares, seed=1, values={}, received={}, exports=[], place=(1, 3), part=part
        )
    return found


@given(profile=profiles(), weights=all_weights)
@settings(deadline=None)
def test_users_and_iterations_of_the_datacenters_are_those_of_the_plan(
    profile: Profile, weights: tuple[int, ...]
) -> None:
    parts = [
        part.profile for part, _ in parts_of(WorkflowManifest(name="W", profile=profile), weights)
    ]
    assert len(parts) == len(weights)
    if profile.model == "iterations":
        assert sum(part.iterations for part in parts) == profile.iterations
        assert all(part.vus for part in parts if part.iterations)
        if profile.iterations_per_vu:
            each = profile.iterations_per_vu
            assert all(part.iterations == each * part.vus for part in parts)
    elif not profile.is_open:
        assert sum(part.vus for part in parts) == profile.vus
        if profile.model == "ramp":
            for at, stage in enumerate(profile.stages):
                assert sum(part.stages[at].target for part in parts) == stage.target
    assert all(part.vus <= part.max_vus for part in parts)


@given(profile=profiles().filter(lambda each: each.is_open), weights=all_weights)
@settings(deadline=None)
def test_planned_starts_exceed_the_plan_by_one_for_each_datacenter_at_most(
    profile: Profile, weights: tuple[int, ...]
) -> None:
    if profile.model == "open-ramp" and not any(stage.target for stage in profile.stages):
        return
    parts = parts_of(WorkflowManifest(name="W", profile=profile), weights)
    whole = StartSchedule(profile).total
    starts = sum(StartSchedule(part.profile).total for part, _ in parts)
    assert whole <= starts <= whole + len(weights)


@given(profile=profiles(), weights=all_weights, data=st.data())
@settings(deadline=None)
def test_no_user_id_is_given_twice(
    profile: Profile, weights: tuple[int, ...], data: st.DataObject
) -> None:
    ids = [
        spec.first_id + number * spec.id_step
        for spec in specs_of(profile, weights, data)
        for number in range(10)
    ]
    assert len(set(ids)) == len(ids)
    assert {identity % 3 for identity in ids} == {2}, "other workflows have the other ids"


def taken_rows(specs: list[ShareSpec], take: Take, rows: int, most: int) -> list[int]:
    """The rows that all shares give to their iterations, the second half of them in a later
    attempt."""
    feeds: dict[str, Feed[Any]] = {"row": Feed(list(range(rows)), take=take)}
    taken: list[int] = []
    for spec in specs:
        # A datacenter without users makes no iteration.
        wanted = most if spec.profile.max_vus else 0
        if spec.profile.model == "iterations":
            wanted = spec.iterations
        done = wanted // 2
        later = msgspec.structs.replace(spec, attempt=2, iterations_done=done)
        for each, count in ((spec, done), (later, wanted - done)):
            next_row = iteration_rows(each, feeds, {"row": range(rows)}, random.Random(1))["row"]
            try:
                taken += [next_row() for _ in range(count)]
            except FeedExhausted:
                break
    return taken


@given(profile=profiles(), weights=all_weights, rows=st.integers(1, 400), data=st.data())
@settings(deadline=None)
def test_a_row_that_is_given_once_is_given_in_one_datacenter(
    profile: Profile, weights: tuple[int, ...], rows: int, data: st.DataObject
) -> None:
    taken = taken_rows(specs_of(profile, weights, data), "once", rows, 20)
    assert len(set(taken)) == len(taken)


@given(vus=users, weights=all_weights, each=st.integers(1, 4), per_vu=st.booleans(), data=st.data())
@settings(deadline=None)
def test_a_row_for_each_iteration_suffices_whatever_the_weights_are(
    vus: int, weights: tuple[int, ...], each: int, per_vu: bool, data: st.DataObject
) -> None:
    profile = Profile(
        model="iterations",
        vus=vus,
        max_vus=vus,
        iterations=vus * each,
        iterations_per_vu=each if per_vu else 0,
    )
    specs = specs_of(profile, weights, data)
    for take in ("once", "cycle"):
        assert sorted(taken_rows(specs, take, vus * each, 0)) == list(range(vus * each))


@given(profile=profiles(), weights=all_weights, extra=st.integers(0, 5), data=st.data())
@settings(deadline=None)
def test_no_two_users_of_any_datacenter_have_the_same_row(
    profile: Profile, weights: tuple[int, ...], extra: int, data: st.DataObject
) -> None:
    feeds: dict[str, Feed[Any]] = {"account": Feed([1], per="vu", take="once")}
    rows = range(10_000_000)
    taken: list[int] = []
    planned = 0
    for spec in specs_of(profile, weights, data):
        row = user_rows(spec, feeds, {"account": rows}, random.Random(1))["account"]
        taken += [row(place) for place in range(spec.users + extra)]
        planned += spec.users
    assert len(set(taken)) == len(taken)
    if not extra and profile.model in ("closed", "iterations"):
        assert sorted(taken) == list(range(planned)), "the first rows, without gaps"


@given(weights=all_weights, total=st.integers(0, 300))
@settings(deadline=None)
def test_stripes_deal_out_every_number_once_and_by_weight(
    weights: tuple[int, ...], total: int
) -> None:
    counts = [stripe_count(weights, index, total) for index in range(len(weights))]
    owned = [
        stripe_position(weights, index, number)
        for index, count in enumerate(counts)
        for number in range(count)
    ]
    assert sorted(owned) == list(range(total))
    for weight, count in zip(weights, counts, strict=True):
        assert abs(count - total * weight / sum(weights)) < len(weights)


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=12))
@settings(deadline=None)
def test_whole_weights_keep_the_proportions(parts: list[float]) -> None:
    found = whole_weights(parts)
    assert min(found) >= 1
    assert sum(found) <= WEIGHTS_SUM_MAX
    for weight, part in zip(found, parts, strict=True):
        assert abs(weight / sum(found) - part / sum(parts)) < 0.005


@given(st.lists(st.integers(1, 99), min_size=2, max_size=5), st.floats(0.0, 1e6))
def test_rates_add_up(percents: list[int], rate: float) -> None:
    found = split_rate(rate, whole_weights([float(each) for each in percents]))
    assert abs(sum(found) - rate) <= 1e-9 * max(rate, 1.0)
