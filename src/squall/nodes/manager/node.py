"""A manager: one member of a datacenter's group, composed from its parts.

    wire ──► workers.py, clients.py, transfers.py     who asks
    ledger ─► Datacenter                              what is committed
    Director ──► errands.py                           what is decided and done, on the primary
    job_leaders.py, leader.py                         what people see of running jobs

The node owns the order of things: open the log, listen, lead when the log says so, drive
the director whenever something changed. When the log fails the node gives up: it ends,
and whoever supervises it starts it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from squall.control.admission import Admission
from squall.control.execution import BoundedExecution
from squall.engine.options import RunOptions
from squall.ledger.interface import Blobs, Entry, Fence
from squall.ledger.settings import LedgerSettings
from squall.nodes.datacenter.machine import Datacenter
from squall.nodes.datacenter.records import JobRecord
from squall.nodes.group_messages import MemberNote
from squall.nodes.identity import AttemptKey
from squall.nodes.manager.clients import ClientApi, Committer, Views
from squall.nodes.manager.copies import Copies
from squall.nodes.manager.director import Director
from squall.nodes.manager.director_facts import Facts
from squall.nodes.manager.errands import Errands, KeptCut
from squall.nodes.manager.group_api import LOOK_S as GROUP_LOOK_S
from squall.nodes.manager.group_api import GroupApi
from squall.nodes.manager.group_handshake import GroupHandshake
from squall.nodes.manager.group_watch import GroupWatch, shown_address
from squall.nodes.manager.job_leaders import JobLeaders
from squall.nodes.manager.leader import JobLeader
from squall.nodes.manager.leader_api import LeaderApi
from squall.nodes.manager.log import LogOpener, ManagerLog, open_log, size_of, step_aside
from squall.nodes.manager.metrics import (
    group_metrics,
    manager_metrics,
    refusal_counter,
    report_metrics,
)
from squall.nodes.manager.pressure import Pressure
from squall.nodes.manager.silence import SILENT_S
from squall.nodes.manager.transfers import Transfers
from squall.nodes.manager.vault import Vault
from squall.nodes.manager.views import events, job_view, node_views, silent_lines, why
from squall.nodes.manager.workers import WorkerApi
from squall.nodes.messages import JobView, NodeView
from squall.nodes.timers import Timers, timers_of
from squall.runtime.interfaces import Address, BootId, NodeId, Runtime
from squall.runtime.log import Log
from squall.runtime.metrics import Registry
from squall.runtime.metrics_http import MetricsServer, Probes
from squall.runtime.tasks import TaskRunner
from squall.settings import Settings
from squall.stats.record import AttemptRecord
from squall.wire.channel import Channel
from squall.wire.dispatch import Handlers
from squall.wire.endpoint import Endpoint
from squall.wire.profile import LinkKind
from squall.wire.secrets import Secrets
from squall.wire.switchboard import Switchboard, make_keyring

SECOND_S = 1.0
LOOK_S = 0.1
"""How often running jobs are looked at for a second that is complete."""
IDLE_S = 1.0
"""The director is looked after at least this often."""
GROUP_ID_BYTES = 2
STEP_ASIDE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class ManagerPlan:
    """What a manager is."""

    datacenter: str
    listen: Address
    members: dict[str, Address]
    """All members of the group, this one among them."""
    secrets: Secrets
    cluster: str
    settings: Settings = field(default_factory=Settings)
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    metrics: Address | None = None
    timers: Timers | None = None
    """None: by the settings and the size of the group."""
    joins: bool = False
    """An empty directory waits to be admitted to a group that exists."""
    pid: int = 0
    version: str = ""
    """Both for people."""
    disk_free: Callable[[], int] | None = None
    """Bytes that are left for the data directory."""
    opener: LogOpener | None = None
    """None: the log is in this node's data directory, alone or with the other members."""
    kept_cut: KeptCut | None = None
    """Where the reports are that a member which is gone had from its own workers; None: with
    the other members."""


class ManagerNode:
    def __init__(self, runtime: Runtime, tasks: TaskRunner, plan: ManagerPlan, log: Log) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._plan = plan
        self._log = log
        self._clock = runtime.clock
        self._timers_by_size: dict[int, Timers] = {}
        self._wake = asyncio.Event()
        self._over = asyncio.Event()
        self._failed = False
        self._watch = GroupWatch(runtime.node, plan.members, runtime.clock, log)
        self.machine = Datacenter()
        self.director: Director | None = None
        self.address: Address = plan.listen
        self.ready = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> int:
        """Until told to stop, or until the log fails; the exit code."""
        self._open_wire()
        ledger = await self._open_log()
        # Before the first link: a manager with the directory of another group is told so.
        self._handshake.look(ledger)
        self._compose(ledger)
        ledger.on_applied(self._applied)
        ledger.on_role(self._role_changed)
        # Not before: whoever is answered must meet a manager that knows every question.
        await self._endpoint.listen(self._plan.listen)
        self.address = self._endpoint.address
        metrics = await self._serve_metrics()
        host, port = self.address
        self._log.info("manager_ready", address=f"{host}:{port}", op=ledger.applied)
        self._tasks.start("director", self._drive(), group="manager", essential=True)
        self._tasks.start("pressure", self._pressure.watch(), group="manager", essential=True)
        self._tasks.every("leader", LOOK_S, self._leader.tick, jitter=0.0, group="manager")
        self._tasks.every("log watch", SECOND_S, self._watch_ledger, group="manager")
        self._tasks.every("group watch", GROUP_LOOK_S, self._look_at_group, group="manager")
        self._tasks.every("job leaders", GROUP_LOOK_S, self._leaders.look, group="manager")
        copy_s = self._timers_now().copy_s
        self._tasks.every("copies", copy_s, self._copies.give, group="manager")
        self.ready.set()
        try:
            await self._until(stop)
            await step_aside(ledger, STEP_ASIDE_S)
        finally:
            await self._endpoint.close(drain_s=0.5)
            if metrics is not None:
                await metrics.close()
            await ledger.close()
        return 1 if self._failed else 0

    async def _open_log(self) -> ManagerLog:
        plan = self._plan
        if plan.opener is not None:
            return await plan.opener(self._runtime, self._tasks, self.machine)
        return await open_log(
            self._runtime,
            self._tasks,
            self.machine,
            self._board,
            members=plan.members,
            timers=plan.settings.timers,
            settings=plan.ledger,
            group=self._group_name,
            joins=plan.joins,
            watch=self._watch,
        )

    @property
    def _group_name(self) -> str:
        return f"{self._plan.cluster}/{self._plan.datacenter}"

    def _open_wire(self) -> None:
        runtime, plan = self._runtime, self._plan
        admission = Admission(plan.settings.admission, runtime.random.uniform)
        execution = BoundedExecution(admission, runtime.clock)
        self._pressure = Pressure(admission, runtime.clock, self._log)
        self._board = Switchboard(
            runtime=runtime,
            keyring=make_keyring(runtime, plan.secrets, plan.cluster),
            admit=execution.enter,
            passes=execution.passes,
            tasks=self._tasks,
            handlers=Handlers(),
            limits=plan.settings.wire,
            on_error=lambda error: self._log.error("handler_failed", error=error),
        )
        self._endpoint = Endpoint(self._board)
        self.registry = Registry()
        self._handshake = GroupHandshake(
            self._board, self._watch, name=self._group_name, timers=plan.settings.timers
        )

    def _compose(self, ledger: ManagerLog) -> None:
        runtime, plan = self._runtime, self._plan
        self._ledger = ledger
        self._vault = Vault(plan.secrets, plan.cluster, runtime.entropy)
        self._transfers = Transfers(ledger.blobs, self._board.counters, self._tasks)
        committer = Committer(ledger, self._address_of)
        self._leaders = JobLeaders(
            machine=self.machine,
            ledger=ledger,
            watch=self._watch,
            committer=committer,
            log=self._log,
        )
        led = LeaderApi(
            machine=self.machine,
            ledger=ledger,
            committer=committer,
            leaders=self._leaders,
            clock=self._clock,
            tasks=self._tasks,
            director=lambda: self.director,
            on_heard=self._wake.set,
        )
        self._leader = JobLeader(
            self.machine,
            self._tasks,
            group_ms=ledger.group_ms,
            read_record=self._transfers.record,
            options_of=self._options_of,
            on_abort=led.abort,
            leads=self._leaders.leads,
            settle_s=self._timers_now().settle_s,
            silent_after_s=self._silent_after_s,
        )
        self._copies = Copies(self.machine, self._leader, self._leaders)
        self._copies.register(self._board.handlers)
        led.register(self._board.handlers, self._leader, self._copies)
        self._errands = Errands(
            ledger=ledger,
            machine=self.machine,
            leader=self._leader,
            leaders=self._leaders,
            transfers=self._transfers,
            tasks=self._tasks,
            clock=self._clock,
            log=self._log,
            channel_of=self._channel_of,
            options_of=self._options_of,
            on_done=self._wake.set,
            kept_cut=plan.kept_cut or self._copies.find,
        )
        self._answer(ledger, committer)

    def _answer(self, ledger: ManagerLog, committer: Committer) -> None:
        """Who is asked what: workers, clients and the other members."""
        plan = self._plan
        workers = WorkerApi(
            datacenter=plan.datacenter,
            ledger=ledger,
            committer=committer,
            machine=self.machine,
            leader=self._leader,
            leaders=self._leaders,
            errands=self._errands,
            timers=self._timers_now,
            clock=self._clock,
            log=self._log,
            director=lambda: self.director,
            on_heard=self._wake.set,
            pace=lambda: self._pressure.pace,
        )
        self.clients = ClientApi(
            datacenter=plan.datacenter,
            machine=self.machine,
            ledger=ledger,
            committer=committer,
            leader=self._leader,
            views=self._views(),
            vault=self._vault,
            clock=self._clock,
            lead_member=self._leaders.choose,
            led_elsewhere=self._leaders.elsewhere,
            ask_primary=self._leaders.relay,
            on_refused=refusal_counter(self.registry),
        )
        self._transfers.register(self._board.handlers)
        workers.register_handlers(self._board.handlers)
        self.clients.register(self._board.handlers)
        self._group = GroupApi(
            ledger=ledger,
            watch=self._watch,
            committer=committer,
            clock=self._clock,
            log=self._log,
            speaks=self.machine.version,
            own=self._own_note,
        )
        self._group.register(self._board.handlers)

    # What the log tells.

    def _applied(self, entry: Entry, result: bytes) -> None:
        self._leader.changed()
        self._wake.set()

    def _role_changed(self, fence: Fence | None) -> None:
        if fence is None:
            self.director = None
            self._log.warning("stepped_down")
            return
        self._log.info("leads", epoch=fence.epoch, view=fence.view)
        self.director = Director(
            self.machine,
            self._timers_now(),
            group=self._runtime.entropy(GROUP_ID_BYTES).hex(),
            now=self._clock.now(),
            group_ms=self._ledger.group_ms(),
            options_of=self._options_of,
        )
        self._wake.set()

    def _look_at_group(self) -> None:
        self._group.look()
        self._handshake.look(self._ledger)

    def _watch_ledger(self) -> None:
        if self._ledger.failure is not None and not self._failed:
            self._log.error("log_failed", error=str(self._ledger.failure))
            self._failed = True
            self._over.set()

    def _timers_now(self) -> Timers:
        """The lease is that of the group's committed size, whatever `--members` says: every
        change of it begins a view, and with it a director."""
        plan = self._plan
        if plan.timers is not None:
            return plan.timers
        size = size_of(self._ledger)
        if size not in self._timers_by_size:
            self._timers_by_size[size] = timers_of(plan.settings.timers, size)
        return self._timers_by_size[size]

    # Driving.

    async def _drive(self) -> None:
        while True:
            self._wake.clear()
            director = self.director
            wait_s = IDLE_S
            if director is not None:
                now = self._clock.now()
                director.facts.pace = self._pressure.pace
                for effect in director.tick(now, self._ledger.group_ms()):
                    self._errands.start(director, effect)
                wait_s = min(max(director.deadline() - self._clock.now(), 0.0), IDLE_S)
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _options_of(self, job: JobRecord) -> RunOptions:
        options = job.submission.options
        if not job.sealed:
            return options
        secrets = self._vault.open(job.sealed, f"{job.principal}/{job.key}")
        return msgspec.structs.replace(options, secrets=secrets)

    async def _until(self, stop: asyncio.Event) -> None:
        async def told() -> None:
            await stop.wait()
            self._over.set()

        self._tasks.start("stop", told(), group="manager")
        await self._over.wait()

    # What others need to know.

    @property
    def blobs(self) -> Blobs:
        return self._ledger.blobs

    def reported(self, worker: str) -> dict[AttemptKey, AttemptRecord]:
        """What a worker's running attempts have reported here so far."""
        if not self.ready.is_set():
            return {}
        live = {key: self._leader.record(key) for key in self.machine.tables.live.get(worker, {})}
        return {key: record for key, record in live.items() if record is not None}

    def _silent_after_s(self) -> float:
        """Workers that tell seldom are not silent sooner than they miss three turns."""
        workers = len(self.machine.tables.workers)
        interval_s = self._timers_now().telemetry_interval_s(workers) * self._pressure.pace
        return max(SILENT_S, 3.0 * interval_s)

    def _views(self) -> Views:
        def facts() -> Facts | None:
            return self.director.facts if self.director is not None else None

        def job(record: JobRecord) -> JobView:
            return job_view(self.machine.tables, record, self._ledger.group_ms(), facts())

        def explained(record: JobRecord) -> tuple[list[str], list[str]]:
            known = facts()
            lines = why(known, record) if known is not None else []
            lines.append(self._led_by())
            return lines, events(record, self.machine.tables.events.get(record.job, ()))

        def nodes() -> list[NodeView]:
            managers = self._group.managers(self._runtime.boot)
            return [*managers, *node_views(self.machine.tables, facts())]

        def silent(record: JobRecord) -> list[str]:
            known = facts()
            return silent_lines(known, record) if known is not None else []

        return Views(job, nodes, explained, silent)

    def _own_note(self) -> MemberNote:
        """What the group is told of this process."""
        free = self._plan.disk_free
        return MemberNote(
            address=shown_address(self._advertised()),
            pid=self._plan.pid,
            version=self._plan.version,
            disk_free=free() if free is not None else -1,
        )

    def _advertised(self) -> Address:
        given = self._watch.addresses.get(self._runtime.node, self.address)
        return given if given[1] else self.address

    def _led_by(self) -> str:
        fence = self._ledger.fence
        leader = self._ledger.primary or "nobody"
        return f"{leader} leads the managers (epoch {fence.epoch}, view {fence.view})"

    def _channel_of(self, node: str, boot: str, bulk: bool) -> Channel | None:
        kind = LinkKind.BULK if bulk else LinkKind.CONTROL
        return self._endpoint.channel(NodeId(node), BootId(boot), kind)

    def _address_of(self, node: NodeId | None) -> str:
        return self._watch.address_of(node)

    def _readiness(self) -> str:
        return "" if self._ledger.is_primary else "this manager does not lead"

    async def _serve_metrics(self) -> MetricsServer | None:
        if self._plan.metrics is None:
            return None
        registry = self.registry
        manager_metrics(registry, self.machine, self._ledger)
        report_metrics(registry, self._leader.room)
        self._pressure.show(registry)
        group_metrics(registry, self._ledger, self._watch, self._group.view)
        server = MetricsServer(self._runtime.network, registry, Probes(ready=self._readiness))
        await server.start(self._plan.metrics)
        return server
