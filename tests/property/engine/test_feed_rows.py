"""The rows of a feed over the users and iterations of all shares, whatever hosts them."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.api.feeds import Feed, FeedExhausted, Take
from squall.engine.core_protocol import ShareSpec
from squall.engine.load.share_specs import share_specs
from squall.engine.users.resume_point import iteration_rows, tickets, user_rows
from squall.stats.manifest import Model, Profile, WorkflowManifest

users = st.integers(1, 60)
models = st.sampled_from(["closed", "iterations", "ramp", "open"])


def specs_of(profile: Profile, shares: int) -> list[ShareSpec]:
    workflow = WorkflowManifest(name="Shop", profile=profile)
    return share_specs(workflow, shares, seed=1, values={}, received={}, exports=[])


def rows_of_users(spec: ShareSpec, take: Take, rows: int, count: int) -> list[Any]:
    """What the users of one share get, in the order of their places."""
    feed = Feed(list(range(rows)), per="vu", take=take)
    source = user_rows(spec, {"account": feed}, {"account": range(rows)}, random.Random(1))
    return [source["account"](place) for place in range(count)]


def planned_users(spec: ShareSpec) -> int:
    return spec.users if spec.profile.model in ("closed", "iterations") else spec.users_max


@given(vus=users, shares=st.integers(1, 8), rows=st.integers(1, 80), model=models, data=st.data())
def test_user_i_takes_row_i_whatever_process_and_attempt_hosts_it(
    vus: int, shares: int, rows: int, model: Model, data: st.DataObject
) -> None:
    at_start = data.draw(st.integers(0, vus)) if model in ("ramp", "open") else vus
    profile = Profile(model=model, vus=at_start, max_vus=vus)
    specs = specs_of(profile, min(shares, vus))
    again = [
        msgspec.structs.replace(spec, attempt=data.draw(st.integers(1, 3)), iterations_done=vus)
        for spec in specs
    ]
    for hosted in (specs, again):
        taken = [
            row
            for spec in hosted
            for row in rows_of_users(spec, "cycle", rows, planned_users(spec))
        ]
        assert sorted(taken) == sorted(number % rows for number in range(vus))
        once = [
            row for spec in hosted for row in rows_of_users(spec, "once", vus, planned_users(spec))
        ]
        assert sorted(once) == list(range(vus))


@given(vus=users, shares=st.integers(1, 8), extra=st.integers(1, 20), model=models)
def test_users_beyond_the_plan_take_no_row_of_another(
    vus: int, shares: int, extra: int, model: Model
) -> None:
    specs = specs_of(Profile(model=model, vus=vus, max_vus=vus), min(shares, vus))
    taken = [
        row
        for spec in specs
        for row in rows_of_users(spec, "once", 10_000, planned_users(spec) + extra)
    ]
    assert len(set(taken)) == len(taken)


def test_a_user_without_a_row_says_so() -> None:
    (spec,) = specs_of(Profile(vus=3, max_vus=3), 1)
    with pytest.raises(FeedExhausted):
        rows_of_users(spec, "once", 2, 3)


@given(vus=users, shares=st.integers(1, 8), each=st.integers(1, 5), per_vu=st.booleans())
def test_as_many_rows_as_iterations_suffice(vus: int, shares: int, each: int, per_vu: bool) -> None:
    total = vus * each
    profile = Profile(
        model="iterations",
        vus=vus,
        max_vus=vus,
        iterations=total,
        iterations_per_vu=each if per_vu else 0,
    )
    feeds: dict[str, Feed[Any]] = {
        take: Feed(list(range(total)), take=take) for take in ("once", "cycle")
    }
    loaded = dict.fromkeys(feeds, range(total))
    for name in feeds:
        taken: list[int] = []
        for spec in specs_of(profile, min(shares, vus)):
            done = spec.iterations // 2
            first = iteration_rows(spec, feeds, loaded, random.Random(1))[name]
            taken += [first() for _ in range(done)]
            later = msgspec.structs.replace(spec, attempt=2, iterations_done=done)
            rest = iteration_rows(later, feeds, loaded, random.Random(1))[name]
            taken += [rest() for _ in tickets(later)]
        assert sorted(taken) == list(range(total))
