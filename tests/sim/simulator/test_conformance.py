"""The simulated runtime keeps the same promises as the real one."""

from __future__ import annotations

from lab.sim.world import World
from squall.runtime.interfaces import Runtime
from tests.lab.runtime_conformance import Check, RuntimeConformance, Stage
from tests.unit.lab.sim.worlds import act, idle, in_world


class TestSimulatedRuntime(RuntimeConformance):
    def play(self, check: Check) -> None:
        world = World(1, limit_s=10_000.0)
        for name in ("server", "client", "gone"):
            world.add(name, idle)
        world.start("server", "client")

        async def scenario(world: World) -> None:
            async def run(client: Runtime) -> None:
                stage = Stage(world.runtime("server"), client, "server", "client", ("gone", 1))
                await check(stage)

            await act(world, "client", run)

        in_world(scenario, world=world)
