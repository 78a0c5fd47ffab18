"""A model of the core processes in which a simulated worker runs its shares.

Like real core processes, the model runs outside of the worker's process. While the worker's main
process is paused, they continue until their lease ends; they die with the main process and stop
with its machine. Every user makes one request after the other, each of a tenth of a second; open
models make their planned starts; reports are sent once a second, and every other tick the counters
are written to the file that survives the process. The model's target records each request with its
sender and time, and the checks compare the results with that record.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable

from lab.sim.checks import check
from lab.sim.node import State
from lab.sim.world import World
from squall.cluster.protocol.job_keys import AttemptKey, ShareKey
from squall.cluster.worker.share_host import HostEvents, ShareOrder
from squall.engine.core_protocol import Adjust
from squall.engine.load.schedule import StartSchedule
from squall.engine.process.attempt_events import Refusal
from squall.engine.process.counter_file import decode_counters, encode_counters
from squall.runtime.interfaces import Runtime
from squall.stats.attempt_record import RecordEnd, SurvivingCounters
from squall.stats.histogram import bucket_index, make_data
from squall.stats.manifest import FileManifest
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
"""An open model may exceed its planned starts in any second by at most this factor."""


class ModelTarget:
    """Counts the requests of all core processes, and checks each against the rules."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.by_attempt: dict[AttemptKey, int] = {}
        self._senders: dict[AttemptKey, str] = {}
        self._last: dict[ShareKey, AttemptKey] = {}
        self._first: dict[tuple[str, str], float] = {}
        self._last_at: dict[tuple[str, str], float] = {}
        # Requests of open models within the last second, by (job, workflow).
        self._second: dict[tuple[str, str], deque[tuple[float, int]]] = {}

    def arrived(
        self, key: AttemptKey, requests: int, rate_per_s: float = 0.0, sender: str = ""
    ) -> None:
        """Checks that once a later attempt at a share has sent, an earlier one does not (R5), and
        that an attempt is one process, also if the managers come back from an old copy."""
        first = self._senders.setdefault(key, sender)
        check(first == sender, f"{key} sends from {sender}, and was sent from {first} before")
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
        """Checks the rate over all shares and attempts, also across changes of the primary."""
        second = self._second.setdefault(flow, deque())
        second.append((self._world.now, requests))
        while second[0][0] <= self._world.now - 1.0 + TICK_S / 2:
            second.popleft()
        # The model runs in ticks: a start planned at the end of one may happen in the next.
        most = OPEN_EXCESS * rate_per_s + TICK_S * rate_per_s + 1
        made = sum(count for _, count in second)
        check(made <= most, f"{flow}: {made} starts in a second of a plan of {rate_per_s:g}")

    def check_layers(self, job: str, manifest: FileManifest) -> None:
        """Checks that no workflow sent before those that it depends on had sent their last."""
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
        self.loaded = False
        self.ready = False
        # The reading of the worker's clock at which the workflow's clock was zero.
        self.began: float | None = None
        self.until = -math.inf
        self.boot_until = -math.inf
        self.stop_at: float | None = None
        self.cut = ""
        self.joined_s = 0.0
        self.window = 0
        # The starts of an open model, from where the attempt joined.
        self.schedule: StartSchedule | None = None
        self.planned = 0
        # Planned starts that are in its reports.
        self.reported = 0
        self.done = 0
        self.delta = 0
        self.load = Adjust()
        # Starts that were planned before it joined, if an earlier attempt counts them; the others
        # are dropped.
        self.joined_planned = 0
        self.dropped = 0
        self.ticks = 0
        self.reports = 0

    def counters(self, elapsed_s: float, boot_s: float) -> SurvivingCounters:
        planned = self.done
        if self.schedule is not None:
            planned = max(self.planned - self.joined_planned, self.done)
        return SurvivingCounters(
            planned=planned,
            made=self.done,
            dropped=self.dropped,
            finished=self.done,
            sent=self.done,
            answered=self.done,
            failed=0,
            users=self.users,
            busy=0,
            at_s=elapsed_s,
            boot_s=boot_s,
        )

    @property
    def users(self) -> int:
        spec, load = self.order.spec, self.load
        if load.vus is not None and not spec.profile.is_open:
            return len(range(spec.share, load.vus, spec.shares))
        return spec.users

    def requests(self, elapsed_s: float) -> int:
        """The requests of this tick."""
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
            # A start planned in one second may happen at the very start of the next.
            until = max(self.schedule.planned_until(self.window + 1.0), self.planned)
            planned, self.reported = until - self.reported, until
        # What it dropped was due before its first report.
        dropped = self.dropped if not self.reports else 0
        self.reports += 1
        outcome = [OutcomeDelta("200", True, count, count, _histogram(count))] if count else []
        row = RowDelta("get", started=count, outcomes=outcome)
        return WindowReport(
            workflow=self.key.workflow,
            share=self.key.share,
            window=self.window,
            rows=[row],
            iteration=RowDelta("iteration", "", started=count, outcomes=outcome),
            starts=StartsDelta(planned=planned, made=count, dropped=dropped),
            requests=RequestsDelta(sent=count, answered=count),
            users=self.users,
        )


class ModelHost:
    """The `ShareHost` of one boot of a worker; `ModelEngine` owns its cores."""

    def __init__(self, engine: ModelEngine, runtime: Runtime) -> None:
        self._engine = engine
        self.runtime = runtime
        self.cores: dict[AttemptKey, ModelCore] = {}
        self._bundles: set[str] = set()
        self._events_due: deque[Callable[[HostEvents], None]] = deque()
        self._wake = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        engine.hosts[runtime.node] = self

    def attach(self, events: HostEvents) -> None:
        # This task belongs to the worker's process, so a paused worker receives nothing.
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
                core.planned = core.schedule.planned_until(core.joined_s)
                if spec.refill:
                    core.reported = core.joined_planned = core.planned
                else:
                    core.dropped = core.planned

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
            counters = self._engine.counters_of(self, core)
            if counters is not None:
                self.post(lambda events: events.on_report(key, counters))
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

    # Calls of the engine.

    def opened(self, core: ModelCore) -> None:
        """Its users are open, and may have sent requests."""

    def post(self, event: Callable[[HostEvents], None]) -> None:
        self._events_due.append(event)
        self._wake.set()

    def end(self, core: ModelCore, cut: str, *, report: bool = True) -> None:
        self.cores.pop(core.key, None)
        if core.began is None:
            refusal = Refusal(text=cut or "stopped", exit_code=1, retryable=True)
            self.post(lambda events: events.on_refused(core.key, refusal))
            return
        if report and core.delta:
            last = core.report()
            self.post(lambda events: events.on_report(core.key, last))
        # A machine that stood still notices late that its lease is over.
        elapsed_s = min(self.runtime.clock.now(), core.until) - core.began
        end = RecordEnd(elapsed_s=max(elapsed_s, 0.0), cut=cut, reported_by_process=report)
        self.post(lambda events: events.on_ended(core.key, end))

    async def _deliver(self, events: HostEvents) -> None:
        while True:
            while self._events_due:
                self._events_due.popleft()(events)
            self._wake.clear()
            await self._wake.wait()


class ModelMachine:
    """The machine of a worker. The core processes of an earlier boot ended with that boot."""

    def __init__(self, world: World, node: str) -> None:
        self._world = world
        self._node = node

    @property
    def machine(self) -> str:
        return f"machine of {self._node}"

    @property
    def kernel_boot(self) -> str:
        return f"kernel {self._world.nodes[self._node].power_losses}"

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
    """Runs all core processes of a world, in ticks of a tenth of a second."""

    def __init__(self, world: World, target: ModelTarget, lease_rule: bool = True) -> None:
        self._world = world
        self._target = target
        self._random = world.random("engine")
        self._lease_rule = lease_rule
        self.lease_extra_s = 0.0
        self.monotonic_only = False
        # The shortest and the longest preparation of an attempt.
        self.preparation_s = (0.02, 0.4)
        self.hosts: dict[str, ModelHost] = {}
        # The chance per tick and core that its process dies by itself.
        self.deaths = 0.0

    def prepare_s(self) -> float:
        return self._random.uniform(*self.preparation_s)

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
        if not core.loaded and now >= core.ready_at:
            core.loaded = True
            host.post(lambda events: events.on_loaded(core.key))
        if not core.ready:
            leased = now < core.until or core.order.spec.profile.is_open
            if now >= core.ready_at and leased:
                core.ready = True
                if not core.order.spec.profile.is_open:
                    host.opened(core)
                host.post(lambda events: events.on_ready(core.key))
            return
        if core.began is not None and now >= core.began:
            self._load(host, core, now, boot)

    def _load(self, host: ModelHost, core: ModelCore, now: float, boot: float) -> None:
        assert core.began is not None
        # The boot clock counts the time that the machine slept; the monotonic one does not.
        slept = boot >= core.boot_until and not self.monotonic_only
        if self._lease_rule and (now >= core.until or slept):
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
            host.post(lambda events: events.on_report(core.key, report))
            core.window = second
        if core.stop_at is None:
            made = core.requests(elapsed_s)
            if made:
                rate_per_s = profile.rate_per_s if profile.is_open else 0.0
                self._target.arrived(
                    core.key, made, rate_per_s, f"{host.runtime.node} {host.runtime.boot}"
                )
                core.delta += made
                core.done += made
        self._write_counters(host, core, elapsed_s, boot)
        if profile.model in ("iterations", "once") and not core.requests(elapsed_s):
            host.end(core, "")

    def _write_counters(
        self, host: ModelHost, core: ModelCore, elapsed_s: float, boot_s: float
    ) -> None:
        """Writes to the page cache: a kill does not lose it, a loss of power may."""
        core.ticks += 1
        if core.ticks % 2 == 0 and elapsed_s > 0.0:
            tree, path = self._world.nodes[host.runtime.node].disk.tree, core.order.counters
            inode = tree.names.files.get(path) or tree.create(path)
            inode.write(0, encode_counters(core.counters(elapsed_s, boot_s)))

    def counters_of(self, host: ModelHost, core: ModelCore) -> SurvivingCounters | None:
        """What the file of a core process says."""
        tree = self._world.nodes[host.runtime.node].disk.tree
        inode = tree.names.files.get(core.order.counters)
        return None if inode is None else decode_counters(bytes(inode.content))


def _histogram(count: int) -> HistogramData:
    """Every request took a tenth of a second."""
    bucket = bucket_index(TICK_S)
    return make_data(count, count * TICK_S, TICK_S, TICK_S, [bucket], [count])
