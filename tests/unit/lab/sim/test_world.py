"""What a world does to its nodes, and what it makes of their failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lab.sim.checks import Event, check
from lab.sim.errors import CheckFailed, NodeFailed, NotLive, OutsideWorldError
from lab.sim.node import State
from lab.sim.run import Scenario, run_seed
from lab.sim.world import World
from squall.runtime.interfaces import BootId, Runtime
from squall.runtime.invariants import InvariantViolation, invariant
from squall.runtime.tasks import TaskRunner
from tests.unit.lab.sim.worlds import act, idle, in_world


def test_nothing_of_a_crashed_node_runs_not_even_its_cleanup() -> None:
    seen: list[str] = []

    async def program(runtime: Runtime) -> None:
        try:
            while True:
                await runtime.clock.sleep(1.0)
                seen.append("tick")
        finally:
            seen.append("cleanup")

    async def scenario(world: World) -> None:
        world.add("a", program)
        world.start()
        await asyncio.sleep(1.5)
        world.crash("a")
        await asyncio.sleep(10.0)
        assert seen == ["tick"]
        assert world.nodes["a"].state is State.OFF

    in_world(scenario)


def test_a_node_that_crashes_itself_in_a_call_has_no_effect_after_it() -> None:
    async def scenario(world: World) -> list[str]:
        told: list[str] = []

        class Keep:
            def observe(self, event: Any) -> None:
                told.append(event.name)

        world.watch(Keep())

        async def program(runtime: Runtime) -> None:
            probe = world.probe("a")
            probe("before")
            world.crash("a")
            probe("after")
            asyncio.get_running_loop().call_soon(probe, "later")
            task = asyncio.create_task(runtime.disk.write_atomic("x", b""))
            await task

        world.add("a", program)
        world.start()
        await asyncio.sleep(1.0)
        return told

    assert in_world(scenario) == ["before"]


def test_a_stopped_node_cleans_up_and_a_stubborn_one_is_killed() -> None:
    seen: list[str] = []

    async def polite(runtime: Runtime) -> None:
        try:
            await idle(runtime)
        finally:
            await runtime.clock.sleep(1.0)
            seen.append("clean")

    async def stubborn(runtime: Runtime) -> None:
        while True:
            try:
                await idle(runtime)
            except asyncio.CancelledError:
                seen.append("no")

    async def scenario(world: World) -> None:
        world.add("polite", polite)
        world.add("stubborn", stubborn)
        world.start()
        await asyncio.sleep(1.0)
        for name in ("polite", "stubborn"):
            await world.stop(name, deadline_s=5.0)
            assert world.nodes[name].state is State.ENDED

    in_world(scenario)
    assert seen == ["clean", "no"]


def test_a_restart_is_a_new_boot_with_the_same_disk_and_other_randomness() -> None:
    boots: list[tuple[BootId, bytes, float]] = []

    async def program(runtime: Runtime) -> None:
        boots.append((runtime.boot, runtime.entropy(4), runtime.clock.now()))
        if len(boots) == 1:
            await runtime.disk.write_atomic("kept", b"yes")
        else:
            assert await runtime.disk.read("kept") == b"yes"
        await idle(runtime)

    async def scenario(world: World) -> None:
        world.add("a", program)
        world.start()
        await asyncio.sleep(100.0)
        world.kill("a")
        await asyncio.sleep(1.0)
        world.start("a")
        await asyncio.sleep(1.0)
        world.crash("a")
        world.start("a")
        await asyncio.sleep(1.0)

    in_world(scenario)
    assert len({boot for boot, _, _ in boots}) == 3
    assert len({entropy for _, entropy, _ in boots}) == 3
    assert boots[1][2] - boots[0][2] == pytest.approx(101.0), "the machine's clock went on"
    assert boots[2][2] < 100.0, "and started again with the power"


def test_the_kernel_outlives_its_processes_and_not_the_power() -> None:
    async def scenario(world: World) -> None:
        world.add("a", idle)
        world.start()
        kernels = [world.runtime("a").clock.kernel_boot()]
        # The power may also go while no process runs.
        for ends in ((world.kill,), (world.crash,), (world.kill, world.crash)):
            for end in ends:
                end("a")
            world.start("a")
            kernels.append(world.runtime("a").clock.kernel_boot())
        assert kernels[1] == kernels[0]
        assert len({*kernels}) == 3

    in_world(scenario)


def test_a_pause_delays_timers_and_a_suspension_stops_the_clock() -> None:
    async def scenario(world: World) -> None:
        world.add("a", idle)
        world.start()

        async def measure(runtime: Runtime) -> tuple[float, float, float]:
            clock = runtime.clock
            before = clock.now(), clock.boot_time()
            await clock.sleep(10.0)
            return clock.now() - before[0], clock.boot_time() - before[1], world.now

        started = world.now
        world.loop.call_later(5.0, world.pause, "a")
        world.loop.call_later(25.0, world.resume, "a")
        slept, booted, ended = await act(world, "a", measure)
        assert slept == pytest.approx(25.0)
        assert booted == pytest.approx(25.0)
        assert ended - started == pytest.approx(25.0)

        started = world.now
        world.loop.call_later(5.0, world.suspend, "a")
        world.loop.call_later(25.0, world.resume, "a")
        slept, booted, ended = await act(world, "a", measure)
        assert slept == pytest.approx(10.0)
        assert booted == pytest.approx(30.0)
        assert ended - started == pytest.approx(30.0)

    in_world(scenario)


def test_clocks_drift_and_jump_as_they_are_told() -> None:
    async def scenario(world: World) -> None:
        world.add("a", idle)
        world.start()
        clock = world.runtime("a").clock
        before = clock.now(), clock.wall()
        world.set_clock_rate("a", 0.95)
        world.jump_wall_clock("a", -100.0)
        await asyncio.sleep(1000.0)
        assert clock.now() - before[0] == pytest.approx(950.0)
        assert clock.wall() - before[1] == pytest.approx(900.0)

    in_world(scenario)


def test_an_error_of_a_node_fails_the_run_unless_it_may_exit_on_it() -> None:
    async def breaks(runtime: Runtime) -> None:
        await runtime.clock.sleep(1.0)
        async with asyncio.TaskGroup() as group:
            group.create_task(_raise(OSError("disk")))

    async def scenario(world: World, *, allowed: bool) -> State:
        world.add("a", breaks, exits_on=(OSError,) if allowed else ())
        world.start()
        await asyncio.sleep(5.0)
        return world.nodes["a"].state

    assert in_world(lambda world: scenario(world, allowed=True)) is State.ENDED
    with pytest.raises(NodeFailed, match="a: ExceptionGroup"):
        in_world(lambda world: scenario(world, allowed=False))


def test_a_broken_invariant_fails_the_run_though_the_node_swallows_it() -> None:
    async def swallows(runtime: Runtime) -> None:
        while True:
            await runtime.clock.sleep(1.0)
            try:
                invariant(False, "the moon is not made of cheese")
            except InvariantViolation:
                continue

    async def scenario(world: World) -> None:
        world.add("a", swallows)
        world.start()
        await asyncio.sleep(10.0)

    outcome = run_seed(Scenario("x", "", scenario), 1)
    assert "made of cheese" in outcome.failure
    assert outcome.simulated_s == pytest.approx(1.0)


class OneLeaderPerTerm:
    """Fails when two nodes lead in one term."""

    def __init__(self) -> None:
        self._leaders: dict[int, str] = {}

    def observe(self, event: Event) -> None:
        if event.name == "leads":
            term = event.fields["term"]
            first = self._leaders.setdefault(term, event.node)
            check(first == event.node, f"term {term} has node {first} and {event.node}")


def test_a_check_sees_every_node_and_fails_the_run() -> None:
    async def scenario(world: World) -> None:
        world.watch(OneLeaderPerTerm())
        world.probe("a")("leads", term=1)
        world.probe("a")("leads", term=1)
        world.probe("b")("at", term=1)
        world.probe("b")("leads", term=1)
        await asyncio.sleep(1.0)

    with pytest.raises(CheckFailed, match="term 1 has node a and b"):
        in_world(scenario)


def test_what_does_not_become_true_in_time_is_not_live() -> None:
    async def scenario(world: World) -> None:
        await world.eventually(lambda: world.now > 5.0, within_s=10.0, what="five o'clock")
        assert world.now < 6.0
        await world.eventually(lambda: False, within_s=10.0, what="the impossible")

    with pytest.raises(NotLive, match="not within 10 s: the impossible"):
        in_world(scenario)


def test_a_partition_separates_groups_and_mends() -> None:
    async def scenario(world: World) -> None:
        for name in "abc":
            world.add(name, idle)
        mend = world.partition(["a"], ["b", "c"])
        again = world.partition(["a", "b"], ["c"])
        mend()
        assert world.links.between("a", "b").open
        assert not world.links.between("a", "c").open
        again()
        assert world.links.between("a", "c").open

    in_world(scenario)


def test_processes_are_refused_unless_the_scenario_models_them() -> None:
    async def scenario(world: World) -> None:
        world.add("a", idle)
        world.start()
        await act(world, "a", lambda runtime: runtime.processes.spawn(["true"]))

    with pytest.raises(OutsideWorldError, match="no processes"):
        in_world(scenario)


def test_the_task_runner_of_real_nodes_works_in_a_world() -> None:
    async def program(runtime: Runtime) -> None:
        runner = TaskRunner(runtime.clock, runtime.random)
        beats: list[float] = []
        runner.every("beat", 1.0, lambda: beats.append(runtime.clock.now()))
        await runtime.clock.sleep(10.5)
        assert await runner.shutdown(1.0) == ()
        assert 8 <= len(beats) <= 12

    async def scenario(world: World) -> State:
        world.add("a", program)
        world.start()
        await asyncio.sleep(20.0)
        return world.nodes["a"].state

    assert in_world(scenario) is State.ENDED


async def _raise(error: Exception) -> None:
    raise error
