"""A model of core processes: what a worker of the simulation runs its shares in.

The model stands outside of the worker's process, as core processes do: while the worker's
main process is paused they go on until their lease ends; they die with its death and
stand still with its machine. Every user makes one request of a tenth of a second after
the other, open models make their planned starts; reports leave once a second. The target
of the model sees each request with its sender and time: the witness that results are
compared with.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable

from squall.engine.protocol import Adjust
from squall.engine.schedule import StartSchedule
from squall.nodes.identity import AttemptKey, ShareKey
from squall.nodes.worker.host import HostEvents, Refusal, ShareOrder
from squall.runtime.interfaces import Runtime
from squall.sim.checks import check
from squall.sim.node import State
from squall.sim.world import World
from squall.stats.histogram import bucket_index, make_data
from squall.stats.manifest import FileManifest
from squall.stats.record import RecordEnd
from squall.stats.reports import (
    HistogramData,
    OutcomeDelta,
    RequestsDelta,
    RowDelta,
    StartsDelta,
    WindowReport,
)

TICK_S = 0.1
OPEN_EXCESS = 1.05
"""No second has more starts of an open model than this times its plan."""


class ModelTarget:
    """Sees all requests of all core processes, in the world's time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.by_attempt: dict[AttemptKey, int] = {}
        self._last: dict[ShareKey, AttemptKey] = {}
        self._first: dict[tuple[str, str], float] = {}
        self._last_at: dict[tuple[str, str], float] = {}
        self._second: dict[tuple[str, str], deque[tuple[float, int]]] = {}
        """What open models sent within the last second."""

    def arrived(self, key: AttemptKey, requests: int, rate_per_s: float = 0.0) -> None:
        """No share in two live attempts: once a later one sent, an earlier one may not."""
        share = key.of
        former = self._last.get(share)
        check(
            former is None or former.attempt <= key.attempt,
            f"{key} sends although {former} has sent",
        )
        if former is not None and former != key:
            self._world.count("attempts that followed another")
        self._last[share] = key
        flow = (key.job, key.workflow)
        self._first.setdefault(flow, self._world.now)
        self._last_at[flow] = self._world.now
        self.by_attempt[key] = self.by_attempt.get(key, 0) + requests
        if rate_per_s:
            self._check_rate(flow, requests, rate_per_s)

    def _check_rate(self, flow: tuple[str, str], requests: int, rate_per_s: float) -> None:
        """Over all shares and their attempts, whoever leads the managers meanwhile."""
        second = self._second.setdefault(flow, deque())
        second.append((self._world.now, requests))
        while second[0][0] <= self._world.now - 1.0 + TICK_S / 2:
            second.popleft()
        # The model moves in ticks: what is planned at the edge of one may come in the next.
        most = OPEN_EXCESS * rate_per_s + TICK_S * rate_per_s + 1
        made = sum(count for _, count in second)
        check(made <= most, f"{flow}: {made} starts in a second of a plan of {rate_per_s:g}")

    def check_layers(self, job: str, manifest: FileManifest) -> None:
        """No workflow sent before those that it depends on had sent their last."""
        for workflow in manifest.workflows:
            first = self._first.get((job, workflow.name))
            for name in workflow.depends:
                last = self._last_at.get((job, name))
                if first is not None and last is not None:
                    check(last <= first, f"{job}: {workflow.name} began before {name} was over")

    def total(self, job: str) -> int:
        return sum(count for key, count in self.by_attempt.items() if key.job == job)


class ModelCore:
    """One core process: one attempt at one share."""

    def __init__(self, order: ShareOrder, ready_at: float) -> None:
        self.order = order
        self.key = order.key
        self.ready_at = ready_at
        self.ready = False
        self.began: float | None = None
        """The worker's clock at which the workflow's clock was zero."""
        self.until = -math.inf
        self.boot_until = -math.inf
        self.stop_at: float | None = None
        self.cut = ""
        self.joined_s = 0.0
        self.window = 0
        self.schedule: StartSchedule | None = None
        """Of an open model, from where it joined."""
        self.planned = 0
        self.told = 0
        """Planned starts that its reports have told of."""
        self.done = 0
        self.delta = 0
        self.load = Adjust()

    @property
    def users(self) -> int:
        spec, load = self.order.spec, self.load
        if load.vus is not None and not spec.profile.is_open:
            return len(range(spec.share, load.vus, spec.shares))
        return spec.users

    def requests(self, elapsed_s: float) -> int:
        """In this tick."""
        profile = self.order.spec.profile
        if self.load.paused:
            return 0
        if self.schedule is not None:
            planned = self.schedule.planned_until(elapsed_s)
            made, self.planned = planned - self.planned, planned
            return made
        if profile.model in ("iterations", "once"):
            most = self.order.spec.iterations if profile.model == "iterations" else self.users
            return min(self.users, max(0, most - self.order.iterations_done - self.done))
        return self.users

    def report(self) -> WindowReport:
        count, self.delta = self.delta, 0
        planned = count
        if self.schedule is not None:
            # What is planned in a second may be made in the first moment of the next.
            until = max(self.schedule.planned_until(self.window + 1.0), self.planned)
            planned, self.told = until - self.told, until
        outcome = [OutcomeDelta("200", True, count, count, _histogram(count))] if count else []
        row = RowDelta("get", started=count, outcomes=outcome)
        return WindowReport(
            workflow=self.key.workflow,
            share=self.key.share,
            window=self.window,
            rows=[row],
            iteration=RowDelta("iteration", "", started=count, outcomes=outcome),
            starts=StartsDelta(planned=planned, made=count),
            requests=RequestsDelta(sent=count, answered=count),
            users=self.users,
        )


class ModelHost:
    """The `ShareHost` of one boot of a worker; its cores belong to `ModelEngine`."""

    def __init__(self, engine: ModelEngine, runtime: Runtime) -> None:
        self._engine = engine
        self.runtime = runtime
        self.cores: dict[AttemptKey, ModelCore] = {}
        self._bundles: set[str] = set()
        self._told: deque[Callable[[HostEvents], None]] = deque()
        self._wake = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        engine.hosts[runtime.node] = self

    def attach(self, events: HostEvents) -> None:
        # Made here, in the worker's process: a paused worker hears nothing.
        self._pump = asyncio.get_running_loop().create_task(self._deliver(events))

    async def has_bundle(self, digest: str) -> bool:
        return digest in self._bundles

    async def add_bundle(self, digest: str, content: bytes) -> None:
        self._bundles.add(digest)

    def prepare(self, order: ShareOrder) -> None:
        check(order.key not in self.cores, f"{order.key} is prepared twice by one boot")
        now = self.runtime.clock.now()
        self.cores[order.key] = ModelCore(order, now + self._engine.prepare_s())

    def go(self, key: AttemptKey, elapsed_s: float, run_elapsed_s: float) -> None:
        core = self.cores.get(key)
        if core is not None and core.began is None:
            core.began = self.runtime.clock.now() - elapsed_s
            core.joined_s = max(elapsed_s, 0.0)
            core.window = int(core.joined_s)
            spec = core.order.spec
            if spec.profile.is_open:
                core.schedule = StartSchedule(spec.profile, spec.share, spec.shares)
                core.planned = core.told = core.schedule.planned_until(core.joined_s)

    def stop(self, key: AttemptKey, *, now: bool, cut: str) -> None:
        core = self.cores.get(key)
        if core is not None:
            core.cut = core.cut or cut
            if core.stop_at is None or now:
                core.stop_at = self.runtime.clock.now() + (0.0 if now else 0.3)

    def kill(self, key: AttemptKey, cut: str) -> None:
        core = self.cores.get(key)
        if core is not None:
            core.delta = 0
            self.end(core, cut, report=False)

    def set_lease(self, key: AttemptKey, until: float, boot_until: float) -> None:
        core = self.cores.get(key)
        if core is not None:
            extra_s = self._engine.lease_extra_s
            core.until = max(core.until, until + extra_s)
            core.boot_until = max(core.boot_until, boot_until + extra_s)

    def adjust(self, key: AttemptKey, load: Adjust) -> None:
        core = self.cores.get(key)
        if core is not None:
            core.load = load

    async def close(self) -> None:
        self.cores.clear()

    # Of the engine.

    def tell(self, told: Callable[[HostEvents], None]) -> None:
        self._told.append(told)
        self._wake.set()

    def end(self, core: ModelCore, cut: str, *, report: bool = True) -> None:
        self.cores.pop(core.key, None)
        if core.began is None:
            refusal = Refusal(text=cut or "stopped", exit_code=1, retryable=True)
            self.tell(lambda events: events.on_refused(core.key, refusal))
            return
        if report and core.delta:
            last = core.report()
            self.tell(lambda events: events.on_report(core.key, last))
        elapsed_s = self.runtime.clock.now() - core.began
        end = RecordEnd(elapsed_s=max(elapsed_s, 0.0), cut=cut, told_all=report)
        self.tell(lambda events: events.on_ended(core.key, end))

    async def _deliver(self, events: HostEvents) -> None:
        while True:
            while self._told:
                self._told.popleft()(events)
            self._wake.clear()
            await self._wake.wait()


class ModelMachine:
    """The machine of a worker: whatever a former boot ran is gone with its process."""

    def __init__(self, world: World, node: str) -> None:
        self._world = world
        self._node = node

    @property
    def machine(self) -> str:
        return f"machine of {self._node}"

    @property
    def kernel_boot(self) -> str:
        return "one"

    @property
    def pid(self) -> int:
        return 1 + self._world.nodes[self._node].boots

    @property
    def host(self) -> str:
        return self._node

    async def end_former(self, node: str, boot: str, pid: int, start: str) -> bool:
        return True

    def start_of(self, pid: int) -> str:
        return str(pid)


class ModelEngine:
    """All core processes of a world, moved on together every tenth of a second."""

    def __init__(self, world: World, target: ModelTarget, lease_rule: bool = True) -> None:
        self._world = world
        self._target = target
        self._random = world.random("engine")
        self._lease_rule = lease_rule
        self.lease_extra_s = 0.0
        self.hosts: dict[str, ModelHost] = {}
        self.deaths = 0.0
        """Chance per tick and core that its process dies by itself."""

    def prepare_s(self) -> float:
        return self._random.uniform(0.02, 0.4)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for name, host in list(self.hosts.items()):
                node = self._world.nodes[name]
                if node.runtime is not host.runtime or node.state in (State.OFF, State.ENDED):
                    del self.hosts[name]
                elif node.state is not State.SUSPENDED:
                    for core in list(host.cores.values()):
                        self._tick(host, core)

    def _tick(self, host: ModelHost, core: ModelCore) -> None:
        now, boot = host.runtime.clock.now(), host.runtime.clock.boot_time()
        if self.deaths and self._random.random() < self.deaths:
            self._world.count("core processes that died")
            host.kill(core.key, "core process ended (SIGKILL)")
            return
        if core.stop_at is not None and now >= core.stop_at:
            host.end(core, core.cut)
            return
        if not core.ready:
            if now >= core.ready_at and (now < core.until or core.order.spec.profile.is_open):
                core.ready = True
                host.tell(lambda events: events.on_ready(core.key))
            return
        if core.began is not None and now >= core.began:
            self._load(host, core, now, boot)

    def _load(self, host: ModelHost, core: ModelCore, now: float, boot: float) -> None:
        assert core.began is not None
        if self._lease_rule and (now >= core.until or boot >= core.boot_until):
            self._world.count("leases that ended")
            host.end(core, "lease ended")
            return
        elapsed_s = now - core.began
        profile = core.order.spec.profile
        if elapsed_s >= profile.duration_s:
            host.end(core, "")
            return
        second = int(elapsed_s)
        if second > core.window:
            report = core.report()
            host.tell(lambda events: events.on_report(core.key, report))
            core.window = second
        if core.stop_at is None:
            made = core.requests(elapsed_s)
            if made:
                rate_per_s = profile.rate_per_s if profile.is_open else 0.0
                self._target.arrived(core.key, made, rate_per_s)
                core.delta += made
                core.done += made
        if profile.model in ("iterations", "once") and not core.requests(elapsed_s):
            host.end(core, "")


def _histogram(count: int) -> HistogramData:
    """Every request took a tenth of a second."""
    bucket = bucket_index(TICK_S)
    return make_data(count, count * TICK_S, TICK_S, TICK_S, [bucket], [count])
