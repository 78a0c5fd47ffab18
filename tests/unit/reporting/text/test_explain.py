"""The plan of a run in words."""

from __future__ import annotations

from typing import Any

import pytest

from squall.reporting.text.explain import render_explain, requests_per_iteration
from squall.stats.manifest import FileManifest, Profile, Stage, StepManifest, WorkflowManifest


def step(name: str, *after: str, layer: int = 0, **more: Any) -> StepManifest:
    return StepManifest(name=name, after=list(after), layer=layer, protocol="http", **more)


DIAMOND = [
    step("login"),
    step("cart", "login", layer=1),
    step("offers", "login", layer=1),
    step("pay", "cart", "offers", layer=2),
]


def test_a_test_with_setup_and_teardown() -> None:
    once = Profile(model="once", vus=1, max_vus=1)
    manifest = FileManifest(
        path="shop.py",
        workflows=[
            WorkflowManifest(name="Setup", is_test=False, profile=once, shape="tenant"),
            WorkflowManifest(
                name="Shop",
                depends=["Setup"],
                profile=Profile(model="open", rate_per_s=500.0, duration_s=300.0, max_vus=2000),
                steps=DIAMOND,
                shape="login -> (cart | offers) -> pay",
                connections_per_vu=2,
            ),
            WorkflowManifest(
                name="Teardown",
                depends=["Shop"],
                always=True,
                is_test=False,
                profile=once,
                shape="remove",
            ),
        ],
    )
    assert render_explain(manifest, cores=2, descriptor_limit=65536) == (
        """\
Setup     once
          tenant              1 layer, up to 1 connection a user
          core 0: 1 user      1 user, 1 descriptor (limit 65536)
Shop      test, open 500/s for 5m = 150000 iterations, 600000 requests
          login -> (cart | offers) -> pay      3 layers, up to 2 connections a user
          core 0: 250/s, core 1: 250/s         up to 2000 users, 4000 descriptors (limit 65536)
Teardown  once
          remove              1 layer, up to 1 connection a user
          core 0: 1 user      1 user, 1 descriptor (limit 65536)
order     Setup (once) -> Shop -> Teardown (always)
no request was sent"""
    )


def one(profile: Profile, cores: int = 2) -> list[str]:
    workflow = WorkflowManifest(name="Shop", profile=profile, steps=[step("home")], shape="home")
    manifest = FileManifest(path="shop.py", workflows=[workflow])
    return render_explain(manifest, cores=cores, descriptor_limit=1024).splitlines()


@pytest.mark.parametrize(
    ("profile", "headline", "shares"),
    [
        (
            Profile(model="closed", vus=5, max_vus=5, duration_s=60.0),
            "test, 5 users for 1m",
            "core 0: 2 users, core 1: 3 users",
        ),
        (
            Profile(model="iterations", vus=4, max_vus=4, iterations=11, duration_s=60.0),
            "test, 11 iterations by 4 users, at most 1m, 11 requests",
            "core 0: 6 iterations, core 1: 5 iterations",
        ),
        (
            Profile(model="ramp", vus=0, max_vus=10, duration_s=60.0, stages=(Stage(60.0, 10.0),)),
            "test, ramp 0 -> 10 over 1m",
            "core 0: up to 5 users, core 1: up to 5 users",
        ),
        (
            Profile(
                model="open-ramp", vus=1, max_vus=100, duration_s=60.0, stages=(Stage(60.0, 10.0),)
            ),
            "test, open ramp 0/s -> 10/s over 1m = 300 iterations, 300 requests",
            "core 0: up to 5/s, core 1: up to 5/s",
        ),
    ],
)
def test_every_model_shows_its_amount_and_its_users(
    profile: Profile, headline: str, shares: str
) -> None:
    lines = one(profile)
    assert lines[0] == f"Shop   {headline}"
    assert lines[2].strip().startswith(shares)


def test_workflows_that_share_a_core_are_named() -> None:
    flows = [
        WorkflowManifest(
            name=name, profile=Profile(vus=9, max_vus=9), steps=[step("home")], shape="home"
        )
        for name in ("Browse", "Buy")
    ]
    text = render_explain(
        FileManifest(path="mix.py", workflows=flows), cores=1, descriptor_limit=1024
    )
    assert "order   Browse + Buy\ncores   Browse + Buy share core 0\n" in text


def test_weighted_steps_count_by_their_share() -> None:
    steps = [
        step("home"),
        step("browse", "home", layer=1, weight=7),
        step("buy", "home", layer=1, weight=3),
        step("receipt", "buy", layer=2),
        step("never", "browse", "buy", layer=2),
    ]
    requests, exact = requests_per_iteration(steps)
    assert requests == pytest.approx(1 + 0.7 + 0.3 + 0.3)
    assert not exact
    assert requests_per_iteration(DIAMOND) == (4.0, True)


def test_warnings_of_the_file_are_repeated() -> None:
    manifest = FileManifest(
        path="shop.py",
        workflows=[WorkflowManifest(name="Shop", shape="home", warnings=["Shop: two roots"])],
        warnings=["--host is not used"],
    )
    text = render_explain(manifest, cores=1, descriptor_limit=10)
    assert "warning: --host is not used\nwarning: Shop: two roots\n" in text
