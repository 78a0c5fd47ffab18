"""A gate's prober against real managers: what it learns, and what it makes of silence."""

from __future__ import annotations

import asyncio

import pytest

from squall.cluster.gate.routing.health import Health
from squall.cluster.gate.routing.reachability import Reachability
from tests.sim.cluster.lab.group_jobs import clean
from tests.sim.cluster.lab.probed_datacenters import ProbedDatacenters, probe


def test_a_gate_learns_managers_leader_cores_and_round_trip() -> None:
    async def act(story: ProbedDatacenters) -> None:
        story.far("us", 0.04)
        await story.all_healthy()
        await asyncio.sleep(20.0)
        eu, us = story["eu"], story["us"]
        assert eu.report is not None
        assert us.report is not None
        assert sorted(eu.managers) == ["eu-m1:7400", "eu-m2:7400", "eu-m3:7400"]
        assert eu.managers[0] == f"{story.leader('eu')}:7400"
        assert (eu.report.managers_heard, eu.report.managers_total) == (3, 3)
        assert (eu.report.workers, eu.report.healthy) == (2, 2)
        assert (eu.report.cores, eu.report.free, eu.report.queued) == (4, 4, 0)
        assert us.rtt.mean_ms == pytest.approx(80.0, rel=0.2)
        assert eu.rtt.mean_ms < 10.0

    clean(probe(act))


def test_a_new_leader_is_known_and_the_datacenter_stays_reachable() -> None:
    async def act(story: ProbedDatacenters) -> None:
        await story.all_healthy()
        before = story.leader("eu")
        story.world.kill(before)
        elected = await story.until(lambda: story.leader("eu"), 10.0, "a new leader")
        seen = await story.until(
            lambda: (report := story["eu"].report) and report.leader == story.leader("eu"),
            5.0,
            "the gate knows the new leader",
        )
        assert elected + seen < 10.0
        for _ in range(200):
            assert story["eu"].reach.state is Reachability.REACHABLE
            await asyncio.sleep(0.1)
        assert story["eu"].managers[0] == f"{story.leader('eu')}:7400"
        assert story.health("eu") is Health.HEALTHY

    clean(probe(act))


def test_a_cut_datacenter_is_suspected_unreachable_and_back() -> None:
    async def act(story: ProbedDatacenters) -> None:
        await story.all_healthy()
        mend = story.cut("us")
        degraded = await story.until(
            lambda: story.health("us") > Health.BUSY, 10.0, "jobs go elsewhere"
        )
        suspected = degraded + await story.until(
            lambda: story["us"].reach.state is Reachability.SUSPECTED, 15.0, "suspected"
        )
        gone = suspected + await story.until(
            lambda: story.health("us") is Health.UNREACHABLE, 45.0, "unreachable"
        )
        assert suspected <= 15.0
        assert 30.0 <= gone <= 45.0
        assert story.health("eu") is Health.HEALTHY
        mend()
        await story.until(lambda: story.health("us") is Health.HEALTHY, 10.0, "healthy again")
        await asyncio.sleep(3.0)
        labels = [each["health"] for each in story.events("datacenter_health")]
        assert labels[-3:] == ["degraded", "unreachable", "healthy"]

    clean(probe(act))


def test_all_datacenters_cut_at_once_are_held_back_and_reported() -> None:
    async def act(story: ProbedDatacenters) -> None:
        await story.all_healthy()
        mend = story.cut("eu", "us")
        await asyncio.sleep(60.0)
        assert story.known.guard_holds
        assert {story["eu"].reach.state, story["us"].reach.state} == {Reachability.SUSPECTED}
        assert len(story.events("datacenters_silent_together")) == 1
        mend()
        await story.all_healthy()
        await story.until(lambda: not story.known.guard_holds, 4.0, "the guard ends")

    clean(probe(act))


def test_a_paused_leader_does_not_hide_the_other_managers() -> None:
    async def act(story: ProbedDatacenters) -> None:
        await story.all_healthy()
        story.world.pause(story.leader("eu"))
        for _ in range(200):
            assert story["eu"].reach.state is Reachability.REACHABLE
            await asyncio.sleep(0.1)

    clean(probe(act))


def test_a_gate_with_one_dead_datacenter_knows_the_other_at_once() -> None:
    async def act(story: ProbedDatacenters) -> None:
        for node in story.nodes("us"):
            story.world.kill(node)
        await story.until(lambda: story.health("eu") is Health.HEALTHY, 10.0, "eu is healthy")
        await story.until(lambda: story.health("us") is Health.UNREACHABLE, 20.0, "us is away")
        story.world.start(*story.nodes("us"))
        await story.until(lambda: story.health("us") is Health.HEALTHY, 10.0, "us is healthy")

    clean(probe(act))


def test_the_address_of_another_datacenter_is_said() -> None:
    async def act(story: ProbedDatacenters) -> None:
        await story.until(lambda: story.health("eu") is Health.HEALTHY, 10.0, "eu is healthy")
        await story.until(lambda: story.health("us") is Health.UNREACHABLE, 20.0, "us is away")
        reason = story.finding("us").reason
        assert reason.endswith("eu-m2:7400 is a manager of eu, not of us")

    clean(probe(act, given={"eu": ["eu-m1"], "us": ["eu-m2"]}))


def test_a_wrong_secret_is_said() -> None:
    async def act(story: ProbedDatacenters) -> None:
        await story.until(lambda: story.health("us") is Health.UNREACHABLE, 20.0, "us is away")
        assert "wrong secret" in story.finding("us").reason

    clean(probe(act, secret="the secret of another cluster", sizes={"us": 1}))


def test_a_silent_worker_of_two_degrades_its_datacenter() -> None:
    async def act(story: ProbedDatacenters) -> None:
        await story.all_healthy()
        story.world.kill("us-w2")
        await story.until(lambda: story.health("us") is Health.DEGRADED, 30.0, "us is degraded")
        assert story.finding("us").reason == "1 of 2 workers are heard"

    clean(probe(act, sizes={"us": 1}))
