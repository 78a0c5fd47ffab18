"""Splitting a workflow over processes, and fitting it to the machine."""

from __future__ import annotations

import pytest

from squall.api.errors import ConfigError
from squall.engine.core_protocol import ShareSpec
from squall.engine.load.share_specs import fit_descriptors, share_specs
from squall.stats.manifest import FileManifest, Profile, Stage, WorkflowManifest


def specs(profile: Profile, shares: int) -> list[ShareSpec]:
    workflow = WorkflowManifest(name="W", profile=profile)
    return share_specs(workflow, shares, seed=3, values={}, received={}, exports=[])


def test_users_and_iterations_add_up() -> None:
    made = specs(Profile(model="iterations", vus=7, max_vus=7, iterations=1001), 3)
    assert [spec.share for spec in made] == [0, 1, 2]
    assert sum(spec.users for spec in made) == 7
    assert sum(spec.iterations for spec in made) == 1001
    assert all(spec.shares == 3 and spec.seed == 3 for spec in made)


def test_iterations_per_user_follow_the_users() -> None:
    made = specs(
        Profile(model="iterations", vus=7, max_vus=7, iterations=21, iterations_per_vu=3), 3
    )
    assert [spec.iterations for spec in made] == [3 * spec.users for spec in made]
    assert sum(spec.iterations for spec in made) == 21


def test_users_of_open_models_and_ramps_are_dealt_out() -> None:
    made = specs(Profile(model="open", vus=5, max_vus=11, rate_per_s=10.0), 3)
    assert [spec.users for spec in made] == [2, 2, 1]
    assert [spec.users_max for spec in made] == [4, 4, 3]
    ramp = specs(Profile(model="ramp", vus=0, max_vus=4, stages=(Stage(1.0, 4),)), 3)
    assert [spec.users for spec in ramp] == [0, 0, 0]


def manifest(profile: Profile, connections: int = 1) -> FileManifest:
    workflow = WorkflowManifest(name="W", profile=profile, connections_per_vu=connections)
    return FileManifest(path="flow.py", workflows=[workflow])


def test_what_may_grow_is_clipped_and_says_so() -> None:
    profile = Profile(model="open", vus=1, max_vus=5000, rate_per_s=500.0)
    fitted = fit_descriptors(manifest(profile), 2, 1000).workflows[0]
    assert fitted.profile.max_vus == 2000
    assert "W: max_vus 5000 clipped to 2000" in fitted.warnings[0]
    beside = fit_descriptors(manifest(profile, connections=2), 2, 1000).workflows[0]
    assert beside.profile.max_vus == 1000
    small = Profile(model="open", vus=1, max_vus=100, rate_per_s=5.0)
    assert fit_descriptors(manifest(small), 1, 1000).workflows[0].warnings == []


def test_what_cannot_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"W: 5000 users need .* \(1000 users fit\)"):
        fit_descriptors(manifest(Profile(vus=5000, max_vus=5000)), 1, 1000)
    with pytest.raises(ConfigError, match="W: 5000 users need more"):
        fit_descriptors(
            manifest(Profile(model="open", vus=5000, max_vus=9000, rate_per_s=1.0)), 1, 1000
        )
