"""Whole agents in the simulation: clean under faults, and a cut that is longer than a lease finds
each broken rule of the lease."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import msgspec
import pytest

from lab.scenarios import agents
from lab.scenarios.agents import AGENTS, SCENARIO
from lab.scenarios.coordination.store import STORE, draw_ways
from lab.scenarios.datacenter import scenario as datacenter
from lab.scenarios.datacenter.scenario import SubmittedJob
from lab.sim.checks import check
from lab.sim.run import Scenario, run_seed
from lab.sim.world import World
from squall.stats.manifest import Profile

SEEDS = range(1, 7)
CUT_SEEDS = range(1, 4)
CUT_S = 9.0
"""Longer than a lease and the wait after it."""
LEASE_MUTANTS = ("cores_ignore_lease", "lost_at_once")
"""Core processes that go on after their lease; losses that do not wait for it."""
MANY = range(1, int(os.environ.get("SQUALL_AGENT_SEEDS", "0")) + 1)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", MANY or SEEDS)
def test_jobs_of_agents_end_once_with_exact_sums(seed: int) -> None:
    outcome = run_seed(SCENARIO, seed)
    assert outcome.clean, outcome.failure + "\n" + outcome.details + "\n".join(outcome.tail[-20:])


async def cut_off(world: World) -> None:
    """One agent that runs a share does not reach the store for a while."""
    stage = agents.make_stage(world, replace(draw_ways(world.random("ways")), transactions=True))
    lab = stage.lab
    profile = Profile(model="closed", vus=6, max_vus=6, duration_s=30.0)
    drawn = datacenter.draw_submission(world.random("scenario"), 1)
    flow = msgspec.structs.replace(
        drawn.manifest.workflows[0], profile=profile, depends=[], priority="auto"
    )
    manifest = msgspec.structs.replace(drawn.manifest, workflows=[flow])
    asked = SubmittedJob(msgspec.structs.replace(drawn, manifest=manifest))
    agents.add_client(stage, "c0", asked)
    stage.heal()
    world.start(STORE, *AGENTS)
    running = asyncio.ensure_future(lab.engine.run())
    await asyncio.sleep(3.0)
    world.start("c0")
    await world.eventually(
        lambda: lab.target.total(asked.job) > 0, within_s=60.0, what="the load begins"
    )
    await asyncio.sleep(3.0)
    victim = next(
        name
        for name, each in stage.agents.items()
        if each.worker.session.live and not each.coordinator.is_coordinator
    )
    mend = world.partition([victim], [STORE])
    await asyncio.sleep(CUT_S)
    mend()
    await world.eventually(
        lambda: running.done() or asked.result is not None, within_s=120.0, what="the job ends"
    )
    if running.done():
        running.result()
    datacenter.judge(lab, asked)
    assert asked.result is not None
    check(bool(asked.result.losses), "an agent was cut off and nothing is called lost")
    check(any(loss.refilled_by for loss in asked.result.losses), "nobody took its load over")
    running.cancel()


CUT = Scenario("cut", "", cut_off, limit_s=600.0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", CUT_SEEDS)
def test_the_load_of_an_agent_that_is_cut_off_moves_and_is_never_made_twice(seed: int) -> None:
    outcome = run_seed(CUT, seed)
    assert outcome.clean, outcome.failure + "\n" + outcome.details + "\n".join(outcome.tail[-20:])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", LEASE_MUTANTS)
def test_a_broken_rule_of_the_lease_makes_it_twice(mutant: str) -> None:
    outcomes = [run_seed(CUT, seed, mutant=mutant) for seed in CUT_SEEDS]
    assert any("CheckFailed" in outcome.failure for outcome in outcomes), outcomes[0].failure


async def lost_store(world: World) -> None:
    """The store loses everything in its first term, and an agent that never read it leads next."""
    stage = agents.make_stage(world, replace(draw_ways(world.random("ways")), transactions=True))
    stage.heal()
    lives, leads, fresh = AGENTS

    def workers_of(name: str) -> list[str]:
        manager = stage.agents[name].manager if name in stage.agents else None
        return [] if manager is None else list(manager.machine.tables.workers)

    world.start(STORE, leads)
    await world.eventually(lambda: workers_of(leads) == [leads], within_s=60.0, what="one leads")
    # Its log is longer than that of the next will be.
    for _ in range(4):
        world.start(lives)
        await asyncio.sleep(5.0)
        check(lives in workers_of(leads), "the other one takes part")
        world.kill(lives)
    world.start(lives)
    await asyncio.sleep(5.0)
    world.kill(leads)
    stage.store.forget()
    world.start(fresh)
    await world.eventually(
        lambda: sorted(workers_of(fresh)) == [lives, fresh],
        within_s=60.0,
        what="the agent that saw the former log obeys the leader of the new one",
    )


@pytest.mark.parametrize("seed", CUT_SEEDS)
def test_agents_obey_the_next_leader_after_the_store_lost_everything(seed: int) -> None:
    outcome = run_seed(Scenario("lost store", "", lost_store, limit_s=600.0), seed)
    assert outcome.clean, outcome.failure + "\n" + outcome.details
