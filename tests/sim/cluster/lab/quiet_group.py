"""A replicated group in the simulation, with no faults but those of the test.

Members run the real ledger, clients keep histories, and all checks of the group scenario run; there
is no operator and no swarm of faults.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from lab.scenarios.group.node import MemberNode, MemberShape
from lab.scenarios.group.scenario import NEVER_S, Group
from lab.sim.run import Outcome, Scenario, run_seed
from lab.sim.world import World
from squall.cluster.ledger.interface import Fence, LedgerFailed
from squall.cluster.ledger.replica.types import FAST, Timers

Story = Callable[["QuietGroup"], Awaitable[None]]
FORMS_WITHIN_S = 60.0


class QuietGroup:
    def __init__(self, world: World, size: int, timers: Timers, clients: int) -> None:
        world.parameters["members"] = str(size)
        self.world = world
        self.group = Group(world)
        self.group.spares = []
        self.group.upgrades = False
        self.group.timers = timers
        self.group.shape = MemberShape(NEVER_S, 300.0, 128, 0.0, over_wire=False)
        self.checks = self.group.checks
        self.members = self.group.members
        for name in self.members:
            world.add(name, self.group.member(name), exits_on=(OSError, LedgerFailed))
        for number in range(clients):
            world.add(f"c{number}", self.group.client)

    @property
    def nodes(self) -> dict[str, MemberNode]:
        """Those that run."""
        runs = self.world.running()
        found = {name: self.group.nodes.get(name) for name in self.members if name in runs}
        return {name: node for name, node in found.items() if node is not None and node.is_open}

    @property
    def primary(self) -> str:
        leads = [name for name, node in self.nodes.items() if node.ledger.is_primary]
        return max(leads, key=lambda name: self.nodes[name].ledger.fence) if leads else ""

    def followers(self) -> list[str]:
        return [name for name in self.members if name != self.primary]

    def fences(self) -> dict[str, Fence]:
        return {name: node.ledger.fence for name, node in self.nodes.items()}

    def start(self, *names: str) -> None:
        """What the former boots knew is over."""
        for name in names:
            self.group.nodes.pop(name, None)
        self.world.start(*names)

    async def formed(self) -> None:
        await self.serves(FORMS_WITHIN_S)

    async def serves(self, within_s: float) -> None:
        """A member leads, and a client has got an answer since this call."""
        since = self.world.now
        await self.world.eventually(
            lambda: self.primary and self.checks.newest_ack > since,
            within_s=within_s,
            what="the group serves",
        )

    async def passes(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def slow_disks(self, sync_s: float, jitter_s: float = 0.0) -> None:
        for name in self.members:
            profile = self.world.nodes[name].disk.profile
            profile.sync_s, profile.sync_jitter_s = sync_s, jitter_s


def play(
    story: Story, *, seed: int = 1, size: int = 3, timers: Timers = FAST, clients: int = 3
) -> Outcome:
    """Fails with what the story or a check found."""

    async def run(world: World) -> None:
        group = QuietGroup(world, size, timers, clients)
        world.start()
        await group.formed()
        await story(group)
        group.checks.finish()

    outcome = run_seed(Scenario("quiet group", "one story", run, limit_s=3000.0), seed)
    assert outcome.clean, "\n".join((outcome.failure, outcome.details, *outcome.tail[-25:]))
    return outcome
