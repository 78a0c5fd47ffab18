"""Real datacenters in the simulation, and the prober of one gate that watches them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

from lab.scenarios.datacenter import scenario as datacenter
from lab.scenarios.datacenter.scenario import CLUSTER, PORT, SECRET, DatacenterLab, with_tasks
from lab.sim.network.links import LinkProfile
from lab.sim.run import Outcome, Scenario, run_seed
from lab.sim.world import World
from squall.cluster.gate.datacenter_links import DatacenterLinks
from squall.cluster.gate.prober import DatacenterProber
from squall.cluster.gate.routing.health import Health, HealthFinding
from squall.cluster.gate.routing.known_datacenters import KnownDatacenter, KnownDatacenters
from squall.cluster.gate.routing.settings import RoutingSettings
from squall.cluster.wire.links.dispatch import Handlers
from squall.cluster.wire.links.switchboard import Switchboard, make_keyring
from squall.cluster.wire.seal.secrets import Secrets
from squall.cluster.worker.manager_links import admit_all
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.tasks import TaskRunner

GATE = "g1"
Act = Callable[["ProbedDatacenters"], Awaitable[None]]


class ProbedDatacenters:
    """A gate with datacenters of one or three managers and two workers each."""

    def __init__(
        self, world: World, sizes: dict[str, int], given: dict[str, list[str]], secret: str
    ) -> None:
        self.world = world
        self.labs: dict[str, DatacenterLab] = {}
        self.sink = MemorySink()
        self._secret = secret
        for name, size in sizes.items():
            world.parameters["managers"] = str(size)
            members = tuple(f"{name}-m{number + 1}" for number in range(size))
            lab = dataclasses.replace(datacenter.make_lab(world), datacenter=name, members=members)
            self.labs[name] = lab
            for member in members:
                world.add(member, lambda runtime, lab=lab: datacenter.manager(runtime, lab))
            for worker in self.workers(name):
                world.add(worker, lambda runtime, lab=lab: datacenter.worker(runtime, lab))
        shown = {name: [f"{member}:{PORT}" for member in given[name]] for name in given}
        self.known = KnownDatacenters(shown, RoutingSettings())
        world.add(GATE, self._gate)

    def workers(self, name: str) -> list[str]:
        return [f"{name}-w1", f"{name}-w2"]

    def nodes(self, name: str) -> list[str]:
        return [*self.labs[name].members, *self.workers(name)]

    async def _gate(self, runtime: Runtime) -> None:
        tasks = TaskRunner(runtime.clock, runtime.random)
        board = Switchboard(
            runtime=runtime,
            keyring=make_keyring(runtime, Secrets.of_node(self._secret), CLUSTER),
            admit=admit_all,
            tasks=tasks,
            handlers=Handlers(),
        )
        links = DatacenterLinks(board, self.known)
        prober = DatacenterProber(
            self.known,
            links,
            clock=runtime.clock,
            tasks=tasks,
            log=Log(self.sink, runtime.clock),
        )
        await with_tasks(tasks, prober.run())

    def far(self, name: str, one_way_s: float) -> None:
        """Puts a datacenter far away from the gate."""
        profile = LinkProfile(delay_s=one_way_s)
        for node in self.nodes(name):
            self.world.links.shape(profile, GATE, node)
            self.world.links.shape(profile, node, GATE)

    def cut(self, *names: str) -> Callable[[], None]:
        return self.world.partition([GATE], [node for name in names for node in self.nodes(name)])

    def __getitem__(self, name: str) -> KnownDatacenter:
        return self.known[name]

    def health(self, name: str) -> Health:
        return self.finding(name).health

    def finding(self, name: str) -> HealthFinding:
        """On the gate's own clock."""
        return self.known[name].finding(self.world.runtime(GATE).clock.now())

    def leader(self, name: str) -> str:
        found = [n for n, node in self.labs[name].managers.items() if node.director is not None]
        return next((n for n in found if n in self.world.running()), "")

    async def until(self, holds: Callable[[], object], within_s: float, what: str) -> float:
        """Returns the seconds until it held."""
        began = self.world.now
        await self.world.eventually(holds, within_s=within_s, what=what)
        return self.world.now - began

    async def all_healthy(self, within_s: float = 20.0) -> float:
        names = self.known.names
        return await self.until(
            lambda: all(self.health(name) is Health.HEALTHY for name in names),
            within_s,
            "all datacenters are healthy",
        )

    def events(self, name: str) -> list[dict[str, object]]:
        return [dict(each.fields) for each in self.sink.records if each.event == name]


def probe(
    act: Act,
    *,
    seed: int = 1,
    given: dict[str, list[str]] | None = None,
    sizes: dict[str, int] | None = None,
    secret: str = SECRET,
) -> Outcome:
    """Starts the datacenters `eu` (three managers) and `us` (one) and a gate that knows one
    manager of each, then runs `act`."""
    sizes = sizes or {"eu": 3, "us": 1}
    known = given or {name: [f"{name}-m1"] for name in sizes}

    async def scenario(world: World) -> None:
        story = ProbedDatacenters(world, sizes, known, secret)
        world.start()
        running = [asyncio.ensure_future(lab.engine.run()) for lab in story.labs.values()]
        await act(story)
        for each in running:
            each.cancel()

    return run_seed(Scenario("test", "", scenario), seed)
