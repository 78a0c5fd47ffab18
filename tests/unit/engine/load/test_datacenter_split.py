"""What each datacenter runs of a file: set-up everywhere, tests by weight."""

from __future__ import annotations

import pytest

from squall.engine.load.datacenter_split import split_manifest, whole_weights
from squall.engine.load.stripes import rows_of_part
from squall.stats.manifest import FileManifest, Profile, Stage, WorkflowManifest


def profiles(workflow: WorkflowManifest, *weights: int) -> list[Profile]:
    parts = split_manifest(FileManifest(path="shop.py", workflows=[workflow]), weights)
    return [manifest.workflows[0].profile for manifest, _ in parts]


def test_set_up_runs_in_every_datacenter() -> None:
    once = WorkflowManifest(name="Setup", is_test=False, profile=Profile(model="once", vus=1))
    assert [each.vus for each in profiles(once, 3, 2)] == [1, 1]
    many = WorkflowManifest(name="Setup", is_test=False, profile=Profile(model="once", vus=10))
    assert [each.vus for each in profiles(many, 3, 2)] == [6, 4]


def test_a_workflow_that_provides_values_runs_in_every_datacenter() -> None:
    login = WorkflowManifest(name="Login", profile=Profile(vus=1), provides={"token": ["Shop"]})
    assert [each.vus for each in profiles(login, 1, 1)] == [1, 1]


def test_a_test_with_too_few_users_idles_elsewhere_for_as_long() -> None:
    one = WorkflowManifest(name="Shop", profile=Profile(vus=1, max_vus=1, duration_s=30.0))
    eu, us = profiles(one, 3, 2)
    assert eu.vus == 1
    assert (us.model, us.max_vus, us.duration_s) == ("ramp", 0, 30.0)
    assert us.stages == (Stage(30.0, 0.0),)


def test_iterations_are_made_only_where_there_are_users() -> None:
    few = Profile(model="iterations", vus=2, max_vus=2, iterations=7)
    parts = profiles(WorkflowManifest(name="Shop", profile=few), 2, 1, 1)
    assert [(each.model, each.vus, each.iterations) for each in parts] == [
        ("iterations", 1, 5),
        ("iterations", 1, 2),
        ("ramp", 0, 0),
    ]
    each_vu = Profile(model="iterations", vus=5, max_vus=5, iterations=50, iterations_per_vu=10)
    parts = profiles(WorkflowManifest(name="Shop", profile=each_vu), 3, 2)
    assert [(each.vus, each.iterations) for each in parts] == [(3, 30), (2, 20)]


def test_rates_and_stages_are_scaled() -> None:
    ramp = Profile(
        model="open-ramp",
        vus=1,
        max_vus=100,
        duration_s=30.0,
        stages=(Stage(10.0, 50.0), Stage(20.0, 100.0)),
    )
    eu, us = profiles(WorkflowManifest(name="Shop", profile=ramp), 3, 2)
    assert [stage.target for stage in eu.stages] == [30.0, 60.0]
    assert [stage.target for stage in us.stages] == [20.0, 40.0]
    assert (eu.max_vus, us.max_vus, us.vus) == (60, 40, 1)


def test_layers_and_names_stay_as_they_are() -> None:
    file = FileManifest(
        path="shop.py",
        workflows=[
            WorkflowManifest(name="Setup", is_test=False),
            WorkflowManifest(name="Shop", depends=["Setup"], thresholds=["errors < 1%"]),
        ],
    )
    for manifest, places in split_manifest(file, (1, 1)):
        assert [each.depends for each in manifest.workflows] == [[], ["Setup"]]
        assert list(places) == ["Setup", "Shop"]
        assert manifest.workflows[1].thresholds == []
    assert file.workflows[1].thresholds == ["errors < 1%"]


def test_rows_of_a_short_feed_repeat_over_the_datacenters() -> None:
    workflow = WorkflowManifest(name="Shop", profile=Profile(vus=9, max_vus=9))
    parts = split_manifest(FileManifest(path="f", workflows=[workflow]), (1, 1, 1))
    places = [place["Shop"] for _, place in parts]
    assert [list(rows_of_part(["a"], "cycle", Profile(), each)) for each in places] == [["a"]] * 3
    once = [list(rows_of_part(["a"], "once", Profile(), each)) for each in places]
    assert sorted(map(len, once)) == [0, 0, 1]


def test_weights_become_whole_numbers() -> None:
    assert whole_weights([0.6, 0.4]) == (3, 2)
    assert whole_weights([1 / 3] * 3) == (1, 1, 1)
    assert whole_weights([0.333, 0.667]) == (333, 667)
    for wrong in ([], [0.5, 0.0], [1.0, float("nan")], [float("inf")]):
        with pytest.raises(ValueError, match="cannot split"):
            whole_weights(wrong)
