"""What the random faults draw, do, and leave behind."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

from lab.sim.faults import Faults
from lab.sim.node import State
from lab.sim.run import Scenario, run_seed
from lab.sim.swarm import SURVIVABLE, Fault, Swarm, draw_swarm
from lab.sim.world import World
from tests.unit.lab.sim.worlds import idle, in_world

NAMES = ["a", "b", "c", "d"]


def faulty(world: World, allowed: Sequence[Fault] = tuple(Fault), **options: int) -> Faults:
    for name in NAMES:
        world.add(name, idle)
    swarm = draw_swarm(world.random("swarm"), allowed, pace=3.0)
    return Faults(world, swarm, NAMES, **options)


def test_each_seed_draws_its_own_mix_and_every_kind_is_on_and_off() -> None:
    swarms = [draw_swarm(random.Random(seed), SURVIVABLE) for seed in range(100)]
    drawn = Counter(kind for swarm in swarms for kind in swarm.faults)
    assert set(drawn) == set(SURVIVABLE)
    assert all(10 < count < 90 for count in drawn.values())
    assert len({swarm.faults for swarm in swarms}) > 90


def test_a_swarm_stays_within_its_ranges() -> None:
    for seed in range(100):
        swarm = draw_swarm(random.Random(seed), (Fault.LOSS, Fault.DRIFT))
        assert swarm.links.loss <= 0.3
        assert swarm.links.duplicate == 0.0
        assert swarm.drift <= 0.024
        assert swarm.disk.sync_error == 0.0
        assert swarm.intervals_s == {}


def test_after_the_end_everything_runs_and_every_link_is_open() -> None:
    async def scenario(world: World) -> None:
        faults = faulty(world)
        world.start()
        await faults.run(60.0)
        faults.end()
        await asyncio.sleep(1.0)
        assert world.running() == NAMES
        for source in NAMES:
            assert all(world.links.between(source, target).open for target in NAMES)
        await asyncio.sleep(60.0)
        assert world.running() == NAMES, "no fault comes after the end"

    for seed in range(20):
        in_world(scenario, seed)


def test_a_core_is_left_alone_and_the_others_stay_dead() -> None:
    async def scenario(world: World) -> None:
        faults = faulty(world)
        world.start()
        await faults.run(30.0)
        faults.end(core=["a", "c"])
        await asyncio.sleep(30.0)
        assert world.running() == ["a", "c"]
        assert world.nodes["b"].state is State.OFF

    for seed in range(10):
        in_world(scenario, seed)


def test_no_more_nodes_are_down_at_once_than_allowed() -> None:
    async def scenario(world: World) -> None:
        processes = (Fault.CRASH, Fault.KILL, Fault.PAUSE, Fault.SUSPEND)
        faults = faulty(world, processes, most_down=1)
        world.start()
        running = asyncio.ensure_future(faults.run(60.0))
        while not running.done():
            assert len(world.running()) >= len(NAMES) - 1
            await asyncio.sleep(0.05)

    for seed in range(10):
        in_world(scenario, seed)


def test_all_kinds_of_faults_happen() -> None:
    seen: set[str] = set()
    words = (
        "loses power",
        "is killed",
        "is paused",
        "is suspended",
        "partition",
        "cut",
        "swizzle",
        "reset",
        "wall clock jumps",
        "clock rate",
        "lost with all data",
    )

    async def scenario(world: World) -> None:
        faults = faulty(world)
        world.start()
        await faults.run(60.0)

    for seed in range(30):
        run_seed(
            Scenario("faults", "", scenario),
            seed,
            echo=lambda line: seen.update(word for word in words if word in line),
        )
    assert seen == set(words)


def test_a_single_node_lives_through_faults_that_need_two() -> None:
    async def scenario(world: World) -> None:
        world.add("a", idle)
        faults = Faults(world, draw_swarm(world.random("swarm"), tuple(Fault), pace=3.0), ["a"])
        world.start()
        await faults.run(30.0)
        faults.end()
        assert world.running() == ["a"]

    for seed in range(20):
        in_world(scenario, seed)


def test_a_swarm_says_what_it_drew() -> None:
    swarm: Swarm = draw_swarm(random.Random(3), ())
    assert str(swarm).startswith("no faults; longest ")
