"""Changes of a running load: which fit, what holds after several, what a lost share loses."""

from __future__ import annotations

import pytest

from squall.api.errors import UsageError
from squall.engine.core_protocol import Adjust, ShareSpec
from squall.engine.load_change import LoadChange, LoadChanges, change_line
from squall.engine.load_steps import LoadSteps
from squall.stats.manifest import FileManifest, Profile, StepManifest, WorkflowManifest
from squall.stats.snapshot import Snapshot, WorkflowSnapshot

OPEN = Profile(model="open", rate_per_s=100.0, duration_s=10.0, max_vus=50)
CLOSED = Profile(model="closed", vus=8, duration_s=10.0)


def workflow(name: str, profile: Profile) -> WorkflowManifest:
    step = StepManifest(name="home", protocol="http")
    return WorkflowManifest(name=name, profile=profile, steps=[step])


def changes(*workflows: WorkflowManifest) -> LoadChanges:
    return LoadChanges(FileManifest(path="shop.py", workflows=list(workflows)))


def test_each_kind_of_change_keeps_what_the_others_set() -> None:
    made = changes(workflow("Shop", OPEN))
    assert made.wanted("Shop") is None and made.target_per_s("Shop") is None
    made.apply(LoadChange(rate_per_s=30.0), 1.0)
    made.apply(LoadChange(paused=True), 2.0)
    assert made.wanted("Shop") == Adjust(paused=True, rate_per_s=30.0)
    assert made.target_per_s("Shop") == 0.0
    made.apply(LoadChange(paused=False), 3.25)
    assert made.target_per_s("Shop") == 30.0
    assert [change_line(each) for each in made.applied] == [
        "Shop: rate set to 30/s at 1.0 s",
        "Shop: paused at 2.0 s",
        "Shop: resumed at 3.2 s",
    ]


def test_a_pause_is_for_all_tests_and_a_rate_for_a_named_one() -> None:
    made = changes(workflow("Shop", OPEN), workflow("Browse", CLOSED))
    assert made.apply(LoadChange(paused=True), 0.0) == ["Shop", "Browse"]
    with pytest.raises(UsageError, match="name one of Shop, Browse"):
        made.apply(LoadChange(rate_per_s=5.0), 0.0)
    assert made.apply(LoadChange(workflow="Browse", vus=3), 0.0) == ["Browse"]


def test_what_is_over_is_left_alone() -> None:
    made = changes(workflow("Shop", OPEN), workflow("Browse", CLOSED))
    assert made.apply(LoadChange(paused=True), 0.0, over={"Shop"}) == ["Browse"]
    with pytest.raises(UsageError, match="Shop is over"):
        made.apply(LoadChange(workflow="Shop", paused=False), 0.0, over={"Shop"})
    assert len(made.applied) == 1


def test_a_share_that_is_lost_loses_what_it_would_have_started() -> None:
    made = changes(workflow("Shop", OPEN))
    spec = ShareSpec(workflow="Shop", share=0, shares=2, profile=OPEN, users=1, users_max=25)
    assert made.starts_after(spec, 4.0) == 300
    made.apply(LoadChange(rate_per_s=10.0), 4.0)
    assert made.starts_after(spec, 4.0) == 30
    made.apply(LoadChange(paused=True), 4.0)
    assert made.starts_after(spec, 4.0) == 0


def snapshot(at_s: float, *, target: float | None = None, users: int = 0) -> Snapshot:
    fields = dict.fromkeys(WorkflowSnapshot.__struct_fields__[:25], 0)
    fields |= {"name": "Shop", "target_per_s": target, "users": users}
    return Snapshot(
        elapsed_s=at_s,
        workflows=(WorkflowSnapshot(**fields),),  # type: ignore[arg-type]
        cpu=0.0,
        processes=1,
        lag_p99_s=0.0,
        gc_max_s=0.0,
    )


def steps(profile: Profile) -> LoadSteps:
    return LoadSteps(FileManifest(path="shop.py", workflows=[workflow("Shop", profile)]))


def test_steps_build_on_each_other_until_the_load_has_followed() -> None:
    keys = steps(OPEN)
    assert keys.by(1.1) == []
    keys.feed(snapshot(1.0, target=100.0))
    assert [keys.by(1.1)[0].rate_per_s for _ in range(3)] == [110.0, 121.0, 133.1]
    keys.feed(snapshot(9.0, target=50.0))
    assert keys.by(1.1)[0].rate_per_s == 55.0


def test_a_paused_rate_is_multiplied_as_it_was_before() -> None:
    keys = steps(OPEN)
    keys.feed(snapshot(1.0, target=100.0))
    keys.feed(snapshot(2.0, target=0.0))
    assert keys.by(2.0)[0].rate_per_s == 200.0


def test_users_change_by_at_least_one_and_one_stays() -> None:
    keys = steps(CLOSED)
    keys.feed(snapshot(1.0, users=8))
    assert [keys.by(1.1)[0].vus for _ in range(2)] == [9, 10]
    keys.feed(snapshot(9.0, users=1))
    assert keys.by(1 / 1.1)[0].vus == 1
