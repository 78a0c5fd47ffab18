"""What a worker, a job and a datacenter cost: `python -m lab.scale`, the numbers of docs/scale.md.

Real gates, managers and workers run in the simulation on a model of the engine, without faults and
with the timers of production: one job over all cores of all datacenters, handed over by one gate.
Messages, bytes and log entries are exact and the same in every run. CPU is that of the nodes' own
code, sampled by the process that each callback belongs to; the simulated kernel and network are not
counted, and neither are the system calls that a real node makes. Memory is the size of the Python
objects that grow with workers and attempts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import asdict, dataclass, field, fields, replace
from types import FrameType, FunctionType, MethodType, ModuleType

import msgspec

from lab.scenarios.datacenter.engine_model import ModelEngine, ModelTarget
from lab.scenarios.datacenter.scenario import (
    CLUSTER,
    PORT,
    SECRET,
    DatacenterLab,
    SubmittedJob,
    client,
    manager,
    with_tasks,
    worker,
)
from lab.sim.network.streams import Endpoint
from lab.sim.process import OWNER
from lab.sim.run import Scenario, run_seed
from lab.sim.world import World
from squall.cluster.gate.node import GateNode, GatePlan
from squall.cluster.ledger.group_member.group_ledger import GroupLedger
from squall.cluster.ledger.interface import Ledger
from squall.cluster.manager.node import ManagerNode
from squall.cluster.protocol.submission import BundleManifest, Submission, Targets
from squall.cluster.protocol.timers import timers_of
from squall.cluster.settings_tree import Settings
from squall.cluster.wire.negotiation import LinkKind
from squall.cluster.wire.seal.secrets import Secrets
from squall.engine.run_options import RunOptions
from squall.runtime.interfaces import BootId, NodeId, Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.tasks import TaskRunner
from squall.settings.shared_sections import TIMER_PROFILES, TimerSettings
from squall.stats.manifest import FileManifest, Profile, StepManifest, WorkflowManifest

GATE = "gate"
CLIENT = "client"
SAMPLE_S = 0.001
SETTLE_S = 10.0
"""For the registration of all workers."""
WINDOW_S = 10.0
"""How long idle and running nodes are measured."""
RUN_S = 30.0
USERS_PER_WORKER = 4
CORES_PER_WORKER = 2
"""As `scenario.worker` gives them."""


@dataclass
class Meter:
    """Counts CPU by process and bytes by link."""

    samples: Counter[str] = field(default_factory=Counter[str])
    sent: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    began_s: float = field(default_factory=time.process_time)

    def cpu_s(self, *names: str) -> float:
        """A sample is the share of the process's CPU time that it stands for."""
        every_s = (time.process_time() - self.began_s) / max(self.samples.total(), 1)
        return every_s * sum(self.samples[name] for name in names)

    def bytes_of(self, *names: str) -> int:
        """Sent and received by these nodes, each byte between two of them once."""
        chosen = set(names)
        return sum(n for (a, b), n in self.sent.items() if a in chosen or b in chosen)

    def _sample(self, number: int, frame: FrameType | None) -> None:
        owner = OWNER.get()
        self.samples[owner.name if owner is not None else "scenario"] += 1

    @contextmanager
    def running(self) -> Generator[None]:
        send, sent = Endpoint.send, self.sent

        def counted(self: Endpoint, data: bytes) -> None:
            sent[self.local[0], self.peer[0]] += len(data)
            send(self, data)

        Endpoint.send = counted
        before = signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_S, SAMPLE_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            signal.signal(signal.SIGPROF, before)
            Endpoint.send = send


@dataclass(frozen=True, kw_only=True)
class Reading:
    """All counters of the nodes at one moment."""

    at_s: float
    manager_cpu_s: float
    worker_cpu_s: float
    gate_cpu_s: float
    messages: int
    manager_bytes: int
    gate_messages: int
    gate_bytes: int
    log_entries: int
    log_bytes: int
    gate_log_entries: int
    gate_log_bytes: int


@dataclass(frozen=True, kw_only=True)
class ScaleResult:
    """One run; rates are per second of simulated time, over all datacenters."""

    datacenters: int
    managers: int
    workers: int
    shares: int
    idle_messages: float
    idle_bytes: float
    idle_manager_cpu: float
    running_messages: float
    running_bytes: float
    running_manager_cpu: float
    running_worker_cpu: float
    submit_to_load_s: float
    job_log_entries: int
    job_log_bytes: int
    registration_log_entries: int
    gate_idle_messages: float
    gate_idle_bytes: float
    gate_idle_cpu: float
    gate_running_messages: float
    gate_running_bytes: float
    gate_running_cpu: float
    gate_job_log_entries: int
    gate_job_log_bytes: int
    link_memory: int
    """Bytes of one worker's link on the primary."""
    state_memory: int
    """Bytes of committed and volatile state of one primary, while a job runs on all workers."""
    report_memory: float
    """Bytes of reports per share and second."""
    real_s: float
    requests: int


class ScaleWorld:
    """Datacenters with workers, a gate in front of them, and one job over all of them."""

    def __init__(self, world: World, datacenters: int, managers: int, workers: int) -> None:
        self.world = world
        self.meter = Meter()
        self.labs = [
            self._datacenter(f"dc{number + 1}", managers, workers) for number in range(datacenters)
        ]
        self._workers = workers
        self._gate_node: GateNode | None = None
        world.add(GATE, self._gate)
        names = [lab.datacenter for lab in self.labs]
        self.asked = SubmittedJob(_submission(names, workers))
        # The client knows nothing but the gate.
        gates = replace(self.labs[0], members=(GATE,))
        world.add(CLIENT, lambda runtime: client(runtime, gates, self.asked, None))

    def _datacenter(self, name: str, managers: int, workers: int) -> DatacenterLab:
        world, settings = self.world, Settings()
        timers = timers_of(settings.timers, managers)
        target = ModelTarget(world)
        members = tuple(f"{name}-m{number + 1}" for number in range(managers))
        lab = DatacenterLab(
            world, target, ModelEngine(world, target), timers, timers, settings, members,
            datacenter=name,
        )  # fmt: skip
        for member in members:
            world.add(member, lambda runtime: manager(runtime, lab))
        for number in range(workers):
            world.add(f"{name}-w{number + 1}", lambda runtime: worker(runtime, lab))
        return lab

    async def _gate(self, runtime: Runtime) -> None:
        tasks = TaskRunner(runtime.clock, runtime.random)
        wan = {key.removeprefix("timers."): each for key, each in TIMER_PROFILES["wan"].items()}
        plan = GatePlan(
            listen=("", PORT),
            members={GATE: (GATE, PORT)},
            datacenters={
                lab.datacenter: tuple(f"{name}:{PORT}" for name in lab.members) for lab in self.labs
            },
            secrets=Secrets.of_node(SECRET),
            cluster=CLUSTER,
            settings=Settings(timers=msgspec.convert({"profile": "wan", **wan}, TimerSettings)),
        )
        self._gate_node = GateNode(runtime, tasks, plan, Log(MemorySink(), runtime.clock))
        await with_tasks(tasks, self._gate_node.run(asyncio.Event()))

    # Measuring.

    @property
    def primaries(self) -> list[ManagerNode]:
        return [node for lab in self.labs for node in lab.managers.values() if node.director]

    def read(self) -> Reading:
        managers = [name for lab in self.labs for name in lab.members]
        workers = [
            f"{lab.datacenter}-w{number + 1}"
            for lab in self.labs
            for number in range(self._workers)
        ]
        nodes = [node for lab in self.labs for node in lab.managers.values()]
        counters = [node._wire.board.counters for node in nodes]  # pyright: ignore[reportPrivateUsage]
        ledgers = [node._ledger for node in self.primaries]  # pyright: ignore[reportPrivateUsage]
        gate = self._gate_node
        assert gate is not None
        gate_counters = gate._wire.board.counters  # pyright: ignore[reportPrivateUsage]
        gate_log = gate._ledger  # pyright: ignore[reportPrivateUsage]
        return Reading(
            at_s=self.world.now,
            manager_cpu_s=self.meter.cpu_s(*managers),
            worker_cpu_s=self.meter.cpu_s(*workers),
            gate_cpu_s=self.meter.cpu_s(GATE),
            messages=sum(each.frames_sent + each.frames_received for each in counters),
            manager_bytes=self.meter.bytes_of(*managers),
            gate_messages=gate_counters.frames_sent + gate_counters.frames_received,
            gate_bytes=self.meter.bytes_of(GATE),
            log_entries=sum(int(each.applied) for each in ledgers),
            log_bytes=sum(_log_bytes(each) for each in ledgers),
            gate_log_entries=int(gate_log.applied),
            gate_log_bytes=_log_bytes(gate_log),
        )

    async def measure(self) -> ScaleResult:
        world, began = self.world, time.perf_counter()
        world.start(*(name for name in world.nodes if name != CLIENT))
        running = [asyncio.ensure_future(lab.engine.run()) for lab in self.labs]
        await asyncio.sleep(SETTLE_S)
        registered = self.read()
        await asyncio.sleep(WINDOW_S)
        idle = self.read()
        world.start(CLIENT)
        await world.eventually(
            lambda: all(lab.target.by_attempt for lab in self.labs),
            within_s=120.0,
            what="load arrives everywhere",
        )
        loaded = self.read()
        await asyncio.sleep(WINDOW_S)
        ran = self.read()
        memory = self._memory()
        await world.eventually(
            lambda: self.asked.result is not None, within_s=300.0, what="the job ends"
        )
        ended = self.read()
        for each in running:
            each.cancel()
        if self.asked.state != "completed":
            raise RuntimeError(f"the job ended as {self.asked.state}: {self.asked.result}")
        return self._result(registered, idle, loaded, ran, ended, memory, began)

    def _result(
        self,
        registered: Reading,
        idle: Reading,
        loaded: Reading,
        ran: Reading,
        ended: Reading,
        memory: tuple[int, int, float],
        began: float,
    ) -> ScaleResult:
        workers = self._workers * len(self.labs)
        return ScaleResult(
            datacenters=len(self.labs),
            managers=len(self.labs[0].members),
            workers=self._workers,
            shares=workers * CORES_PER_WORKER,
            idle_messages=(idle.messages - registered.messages) / WINDOW_S,
            idle_bytes=(idle.manager_bytes - registered.manager_bytes) / WINDOW_S,
            idle_manager_cpu=(idle.manager_cpu_s - registered.manager_cpu_s) / WINDOW_S,
            running_messages=(ran.messages - loaded.messages) / WINDOW_S,
            running_bytes=(ran.manager_bytes - loaded.manager_bytes) / WINDOW_S,
            running_manager_cpu=(ran.manager_cpu_s - loaded.manager_cpu_s) / WINDOW_S,
            running_worker_cpu=(ran.worker_cpu_s - loaded.worker_cpu_s) / WINDOW_S,
            submit_to_load_s=loaded.at_s - idle.at_s,
            job_log_entries=ended.log_entries - idle.log_entries,
            job_log_bytes=ended.log_bytes - idle.log_bytes,
            registration_log_entries=registered.log_entries,
            gate_idle_messages=(idle.gate_messages - registered.gate_messages) / WINDOW_S,
            gate_idle_bytes=(idle.gate_bytes - registered.gate_bytes) / WINDOW_S,
            gate_idle_cpu=(idle.gate_cpu_s - registered.gate_cpu_s) / WINDOW_S,
            gate_running_messages=(ran.gate_messages - loaded.gate_messages) / WINDOW_S,
            gate_running_bytes=(ran.gate_bytes - loaded.gate_bytes) / WINDOW_S,
            gate_running_cpu=(ran.gate_cpu_s - loaded.gate_cpu_s) / WINDOW_S,
            gate_job_log_entries=ended.gate_log_entries - idle.gate_log_entries,
            gate_job_log_bytes=ended.gate_log_bytes - idle.gate_log_bytes,
            link_memory=memory[0],
            state_memory=memory[1],
            report_memory=memory[2],
            real_s=time.perf_counter() - began,
            requests=sum(sum(lab.target.by_attempt.values()) for lab in self.labs),
        )

    def _memory(self) -> tuple[int, int, float]:
        lab, node = self.labs[0], self.primaries[0]
        name = f"{lab.datacenter}-w1"
        boot = self.world.runtime(name).boot
        endpoint = node._wire.endpoint  # pyright: ignore[reportPrivateUsage]
        links = [
            each
            for kind in LinkKind
            if (each := endpoint.channel(NodeId(name), BootId(boot), kind)) is not None
        ]
        board = node._wire.board  # pyright: ignore[reportPrivateUsage]
        # What all links share is no cost of one of them.
        shared = (board, *(getattr(board, each.name) for each in fields(board)))
        director = node.director
        assert director is not None
        state = deep_size(node.machine.tables) + deep_size(director.state, but=(node.machine,))
        reports = node._leader.memory.used_bytes  # pyright: ignore[reportPrivateUsage]
        shares = self._workers * CORES_PER_WORKER
        return (
            sum(deep_size(each, but=shared) for each in links),
            state,
            reports / shares / WINDOW_S,
        )


def deep_size(root: object, but: tuple[object, ...] = ()) -> int:
    """The bytes of all objects that are reached from `root`, without code, loops and `but`."""
    stops = (
        ModuleType, FunctionType, MethodType, type, asyncio.AbstractEventLoop, asyncio.Future,
        asyncio.TimerHandle, Endpoint, Context, World,
    )  # fmt: skip
    seen = {id(each) for each in but}
    waiting, total = [root], 0
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, stops):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        waiting.extend(gc.get_referents(each))
    return total


def _log_bytes(ledger: Ledger) -> int:
    return ledger.wal.counters.bytes if isinstance(ledger, GroupLedger) else 0


def _submission(datacenters: list[str], workers: int) -> Submission:
    users = USERS_PER_WORKER * workers * len(datacenters)
    flow = WorkflowManifest(
        name="load",
        profile=Profile(model="closed", vus=users, max_vus=users, duration_s=RUN_S),
        steps=[StepManifest(name="get", protocol="http")],
    )
    return Submission(
        bundle="",
        bundle_size=0,
        contents=BundleManifest(entry="", python="3.11"),
        manifest=FileManifest(path="scale.py", workflows=[flow]),
        options=RunOptions(url="http://target/", seed=1),
        timeout_s=300.0,
        targets=Targets(weights=tuple((name, 1.0 / len(datacenters)) for name in datacenters)),
    )


def measure(datacenters: int, managers: int, workers: int) -> ScaleResult:
    """Runs one size; `workers` are those of each datacenter."""
    found: list[ScaleResult] = []

    async def scenario(world: World) -> None:
        scale = ScaleWorld(world, datacenters, managers, workers)
        with scale.meter.running():
            found.append(await scale.measure())

    outcome = run_seed(Scenario("scale", "", scenario, limit_s=3600.0), 1)
    if not outcome.clean:
        raise RuntimeError(f"{outcome.failure}\n{outcome.details}")
    return found[0]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.scale", description=__doc__)
    parser.add_argument(
        "sizes",
        nargs="*",
        default=["1x1x10", "1x1x100", "1x1x1000", "1x3x100", "5x1x10", "20x1x10", "20x1x50"],
        metavar="DCxMANAGERSxWORKERS",
        help="datacenters, managers of each and workers of each, for example 20x1x50",
    )
    arguments = parser.parse_args(argv)
    for size in arguments.sizes:
        datacenters, managers, workers = (int(each) for each in size.split("x"))
        print(json.dumps(asdict(measure(datacenters, managers, workers))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
