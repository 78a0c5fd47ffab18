"""A manager: one member of a datacenter's group, composed from its parts.

    wire ──► WorkerApi, ClientApi, OperatorApi, Transfers    requests
    ledger ──► Datacenter                                    what is committed
    Director ──► EffectRunner                                decisions and their effects (primary)
    JobLeaders, JobLeader                                    what is shown of running jobs

The node sets the order of the steps: open the log, listen, lead when the log says so, drive the
director whenever something changed. When the log fails the node ends, and its supervisor starts it
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from squall.cluster.datacenter import commands
from squall.cluster.datacenter.commands import Command
from squall.cluster.datacenter.records import JobRecord
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.group.clients.job_requests import Views, event_lines
from squall.cluster.group.clients.operator_api import NOTE_S
from squall.cluster.group.clients.relay import ClientRelay
from squall.cluster.group.committer import CommandCodec
from squall.cluster.group.job_leaders.report_copies import MemberCopies
from squall.cluster.group.job_leaders.rpc import JobLeaderRpc
from squall.cluster.group.member import (
    GroupParts,
    MemberWire,
    open_group,
    open_member_log,
    serve_metrics,
)
from squall.cluster.group.metrics import refusal_counter, report_metrics
from squall.cluster.group.open_log import LogOpener
from squall.cluster.group.primary.effect_tasks import EffectTasks
from squall.cluster.group.telemetry.job_leader import JobLeader
from squall.cluster.group.telemetry.silent_shares import SILENT_S
from squall.cluster.ledger.interface import Blobs, Entry, Fence, Ledger
from squall.cluster.ledger.settings import LedgerSettings
from squall.cluster.manager.clients.api import ClientApi
from squall.cluster.manager.clients.datacenter_state import DatacenterStateApi
from squall.cluster.manager.clients.job_views import (
    detailed_view,
    doubted_workers,
    job_view,
    why,
)
from squall.cluster.manager.clients.node_lists import ManagerNodeLists
from squall.cluster.manager.command_log import CommandLog, EventCounts, event_counts
from squall.cluster.manager.director.effect_runner import EffectRunner, FindCut
from squall.cluster.manager.director.policy import Director
from squall.cluster.manager.gates.part_api import PartApi
from squall.cluster.manager.gates.report_driver import TICK_S, ReportDriver
from squall.cluster.manager.lost_shares import lost_lines
from squall.cluster.manager.metrics import manager_metrics
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.cluster.manager.results.assembler import ResultAssembler
from squall.cluster.manager.worker_api import WorkerApi
from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.protocol.messages import JobView, NodeList
from squall.cluster.protocol.timers import Timers, timers_of
from squall.cluster.settings_tree import Settings
from squall.cluster.wire.links.channel import Channel
from squall.cluster.wire.links.switchboard import LinkTLS
from squall.cluster.wire.negotiation import LinkKind
from squall.cluster.wire.seal.secrets import Secrets
from squall.engine.run_options import RunOptions
from squall.runtime.interfaces import Address, BootId, NodeId, Runtime
from squall.runtime.log import Log
from squall.runtime.tasks import TaskRunner
from squall.stats.attempt_record import AttemptRecord

SECOND_S = 1.0
SHOW_S = 0.1
"""How often running jobs are checked for a second that is complete and can be shown."""
IDLE_S = 1.0
"""The director is driven at least this often. It treats a gap of 3 s as a standstill of its own
process (`STOOD_STILL_S`)."""
CODEC: CommandCodec[Command] = CommandCodec(commands.VERSION, commands.encode)
GROUP_ID_BYTES = 2
STEP_ASIDE_S = 1.0


@dataclass(frozen=True, kw_only=True)
class ManagerPlan:
    """The identity and settings of one manager."""

    datacenter: str
    listen: Address
    members: dict[str, Address]
    """All members of the group, this one among them."""
    secrets: Secrets
    cluster: str
    settings: Settings = field(default_factory=Settings)
    tls: LinkTLS | None = None
    ledger: LedgerSettings = field(default_factory=LedgerSettings)
    metrics: Address | None = None
    dns_server: Address | None = None
    """For names in `members`; None: the servers of the system."""
    timers: Timers | None = None
    """None: derived from the settings and the size of the group."""
    joins: bool = False
    """An empty data directory waits to be admitted to an existing group."""
    pid: int = 0
    version: str = ""
    """Pid and version are only shown."""
    disk_free: Callable[[], int] | None = None
    """Returns the free bytes for the data directory."""
    opener: LogOpener | None = None
    """None: the log is in this node's data directory."""
    job_events: EventCounts | None = None
    """None: counted in the metrics of the manager itself."""
    membership: bool = False
    """It takes part in membership, if the settings allow it."""
    find_cut: FindCut | None = None
    """Finds the reports that a lost member had received; None: asks the other members for their
    copies."""


class ManagerNode:
    """One boot of a manager."""

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
        self.machine = Datacenter()
        self.director: Director | None = None
        self.address: Address = plan.listen
        self.ready = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> int:
        """Runs until `stop` is set or the log fails; returns the exit code."""
        plan = self._plan
        wire = self._wire = MemberWire(
            self._runtime, self._tasks, plan, self._log, group=f"{plan.cluster}/{plan.datacenter}"
        )
        self._watch, self._overload, self.registry = wire.watch, wire.overload, wire.registry
        self._commands = CommandLog(self._log, plan.job_events or event_counts(wire.registry))
        ledger = await open_member_log(self._runtime, self._tasks, plan, wire, self.machine)
        self._compose(ledger)
        ledger.on_applied(self._applied)
        ledger.on_role(self._role_changed)
        # Not before the handlers are registered: a request that arrived earlier would be
        # refused as unknown.
        await wire.listen(plan.listen)
        self.address = wire.address
        if plan.metrics is not None:
            manager_metrics(wire.registry, self.machine, ledger)
            report_metrics(wire.registry, self._leader.memory)
        metrics = await serve_metrics(
            self._runtime, plan, wire, self._parts, not_leading="this manager does not lead"
        )
        host, port = self.address
        self._log.info("manager_ready", address=f"{host}:{port}", op=ledger.applied)
        self._tasks.start("director", self._drive(), group="manager", essential=True)
        self._tasks.start("pressure", self._overload.watch(), group="manager", essential=True)
        self._tasks.every("leader", SHOW_S, self._leader.tick, jitter=0.0, group="manager")
        self._tasks.every("log watch", SECOND_S, self._watch_ledger, group="manager")
        self._tasks.every("group watch", NOTE_S, self._check_group, group="manager")
        self._parts.presence.start(self._tasks, NOTE_S)
        self._tasks.every("job leaders", NOTE_S, self._leaders.replace_lost, group="manager")
        copy_s = self._timers_now().copy_s
        self._tasks.every("copies", copy_s, self._copies.give, group="manager")
        self._tasks.every("reports", TICK_S, self._reports.tick, jitter=0.0, group="manager")
        self.ready.set()
        try:
            await self._until(stop)
            self._parts.presence.driver.leave()
            await ledger.step_aside(STEP_ASIDE_S)
        finally:
            await self._parts.presence.driver.close()
            await self._reports.close()
            await wire.endpoint.close(drain_s=0.5)
            if metrics is not None:
                await metrics.close()
            await ledger.close()
        return 1 if self._failed else 0

    def _compose(self, ledger: Ledger) -> None:
        plan, wire = self._plan, self._wire
        self._ledger = ledger
        parts = self._parts = open_group(
            self._runtime,
            self._tasks,
            plan,
            self._log,
            wire,
            ledger,
            self.machine,
            role="manager",
            codec=CODEC,
            lead_jobs=lambda leaders: commands.LeadJobs(leaders=leaders),
            speaks=self.machine.version,
            is_unused=lambda: not self.machine.tables.group,
            nodes=self._node_count,
        )
        self._sealer, self._transfers, self._leaders = parts.sealer, parts.transfers, parts.leaders
        self._group = parts.operators
        handlers = wire.board.handlers
        led = JobLeaderRpc(
            machine=self.machine,
            ledger=ledger,
            committer=parts.committer,
            leaders=self._leaders,
            clock=self._clock,
            tasks=self._tasks,
            end_job=self._end_job,
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
            on_broken=lambda job, error: self._log.error("job_not_shown", job=job, error=error),
            has_link=lambda node, boot: self._channel_of(node, boot, False) is not None,
            lost_after_s=lambda: self._timers_now().lost_after_s,
            lost_lines=lambda job: lost_lines(self.machine.tables, job),
        )
        self._copies = MemberCopies(self.machine, self._leader, self._leaders)
        self._copies.register(handlers)
        led.register(handlers, cut=self._copies.encoded, judged=self._leader.judged)
        self._results = ResultAssembler(
            self.machine,
            self._transfers,
            self._clock,
            group_ms=ledger.group_ms,
            options_of=self._options_of,
        )
        wake = self._wake.set
        effects = EffectTasks(ledger, CODEC, self._tasks, self._clock, self._log, wake)
        self._runner = EffectRunner(
            ledger=ledger,
            machine=self.machine,
            leader=self._leader,
            leaders=self._leaders,
            transfers=self._transfers,
            channel_of=self._channel_of,
            results=self._results,
            effects=effects,
            find_cut=plan.find_cut or self._copies.find,
        )
        self._answer(ledger, parts)

    def _answer(self, ledger: Ledger, parts: GroupParts[Command]) -> None:
        """Registers the handlers for workers, clients and operators."""
        plan, committer, handlers = self._plan, parts.committer, self._wire.board.handlers
        workers = WorkerApi(
            datacenter=plan.datacenter,
            ledger=ledger,
            committer=committer,
            machine=self.machine,
            leader=self._leader,
            leaders=self._leaders,
            runner=self._runner,
            timers=self._timers_now,
            clock=self._clock,
            log=self._log,
            director=lambda: self.director,
            on_heard=self._wake.set,
            managers=parts.addresses,
            membership=parts.presence.order,
            on_link=self._watch.linked,
            pace=lambda: self._overload.pace,
        )
        self.clients = ClientApi(
            datacenter=plan.datacenter,
            machine=self.machine,
            ledger=ledger,
            committer=committer,
            stream=self._leader.stream,
            reports=self._leader.reports,
            views=self._views(),
            sealer=self._sealer,
            clock=self._clock,
            wall_s=self._watch.wall_s,
            lead_member=self._leaders.choose,
            led_elsewhere=self._leaders.elsewhere,
            ask_primary=self._leaders.relay,
            log=self._log,
            rates=plan.settings.clients,
            queue_max=plan.settings.jobs.queue_max,
            results=self._results,
            on_refused=refusal_counter(self.registry),
        )
        self._transfers.register(handlers)
        workers.register_handlers(handlers)
        self.clients.register(handlers)
        ClientRelay(
            handlers,
            machine=self.machine,
            ledger=ledger,
            leaders=self._leaders,
            clock=self._clock,
        )
        self._group.register(handlers)
        self._nodes = ManagerNodeLists(
            plan.datacenter, self.machine, self._group, parts.presence, self._watch, self._runtime
        )
        self._nodes.register(handlers)
        self._answer_gates(ledger, parts)

    def _answer_gates(self, ledger: Ledger, parts: GroupParts[Command]) -> None:
        """Registers the handlers for gates: their probes, and the parts that they hand over."""
        plan, committer, handlers = self._plan, parts.committer, self._wire.board.handlers
        self._reports = ReportDriver(
            datacenter=plan.datacenter,
            machine=self.machine,
            board=self._wire.board,
            committer=committer,
            clock=self._clock,
            tasks=self._tasks,
            log=self._log,
            leads=lambda: ledger.is_primary,
        )
        PartApi(
            datacenter=plan.datacenter,
            machine=self.machine,
            ledger=ledger,
            committer=committer,
            transfers=self._transfers,
            leaders=self._leaders,
            wall_s=self._watch.wall_s,
            queue_max=plan.settings.jobs.queue_max,
            on_order=self._reports.ordered,
        ).register(handlers)
        DatacenterStateApi(
            datacenter=plan.datacenter,
            machine=self.machine,
            ledger=ledger,
            group=self._group.view,
            addresses=parts.addresses,
            state=self._state,
            overload=lambda: self._overload.level,
        ).register(handlers)

    # Callbacks of the log.

    def _applied(self, entry: Entry, result: bytes) -> None:
        try:
            if self.director is not None:
                self._commands.applied(entry.body, result)
            self._leader.changed()
        except Exception as error:
            # An error that leaves this callback stops the log, and what is shown is not worth it.
            self._log.error("display_failed", error=error)
        self._wake.set()

    def _role_changed(self, fence: Fence | None) -> None:
        if fence is None:
            self.director = None
            self._reports.end_term()
            self._log.warning("stepped_down")
            return
        self._log.info("leads", epoch=fence.epoch, view=fence.view)
        # At once, because no command of this version can be proposed before.
        self._group.activate()
        self._reports.begin_term()
        self.director = Director(
            self.machine,
            self._timers_now(),
            group=self._runtime.entropy(GROUP_ID_BYTES).hex(),
            now=self._clock.now(),
            group_ms=self._ledger.group_ms(),
            options_of=self._options_of,
            on_broken=self._job_broken,
        )
        self.director.state.suspected_since = self._parts.presence.suspected_since
        self._wake.set()

    def _job_broken(self, job: JobId, error: Exception) -> None:
        self._log.error("job_broken", job=job, error=error)
        self._watch.alarm(f"job {job} failed by an internal error: {error!r}")

    def _check_group(self) -> None:
        self._group.tick()
        self._wire.handshake.refresh(self._ledger)

    def _watch_ledger(self) -> None:
        if self._ledger.failure is not None and not self._failed:
            self._log.error("log_failed", error=str(self._ledger.failure))
            self._failed = True
            self._over.set()

    def _timers_now(self) -> Timers:
        """The lease follows the committed size of the group, whatever `--members` says. A
        director never sees it change: every change of members begins a new view."""
        plan = self._plan
        if plan.timers is not None:
            return plan.timers
        size = len(self._ledger.standing().members or ()) or 1
        if size not in self._timers_by_size:
            self._timers_by_size[size] = timers_of(plan.settings.timers, size, plan.settings.jobs)
        return self._timers_by_size[size]

    # Driving.

    async def _drive(self) -> None:
        while True:
            self._wake.clear()
            director = self.director
            wait_s = IDLE_S
            if director is not None:
                now = self._clock.now()
                director.state.pace = self._overload.pace
                try:
                    for effect in director.tick(now, self._ledger.group_ms()):
                        self._runner.start(director, effect)
                    wait_s = min(max(director.deadline() - self._clock.now(), 0.0), IDLE_S)
                except Exception as error:
                    # The director fails a job whose rules raise. Whatever is left must not end the
                    # manager either: another member would raise the same (R3).
                    self._log.error("director_failed", error=error)
                    wait_s = IDLE_S
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _end_job(self, job: JobId, text: str) -> bool:
        """A threshold ends a job; False: this member does not lead the group."""
        if self.director is None or not self._ledger.is_primary:
            return False
        self.director.abort(job, text)
        self._wake.set()
        return True

    def _options_of(self, job: JobRecord) -> RunOptions:
        options = job.submission.options
        if not job.sealed:
            return options
        secrets = self._sealer.open(job.sealed, f"{job.principal}/{job.key}")
        return msgspec.structs.replace(options, secrets=secrets)

    async def _until(self, stop: asyncio.Event) -> None:
        async def watch_stop() -> None:
            await stop.wait()
            self._over.set()

        self._tasks.start("stop", watch_stop(), group="manager")
        await self._over.wait()

    # What other parts read.

    @property
    def blobs(self) -> Blobs:
        return self._ledger.blobs

    def reported(self, worker: str) -> dict[AttemptKey, AttemptRecord]:
        """The records so far of the attempts that a worker runs, as reported to this member."""
        if not self.ready.is_set():
            return {}
        live = {key: self._leader.record(key) for key in self.machine.tables.live.get(worker, {})}
        return {key: record for key, record in live.items() if record is not None}

    def _node_count(self) -> int:
        workers = self.machine.tables.workers.values()
        return len(self._watch.addresses) + sum(not worker.gone for worker in workers)

    def _silent_after_s(self) -> float:
        """A worker is silent when it missed three reports, and no sooner than `SILENT_S`."""
        workers = len(self.machine.tables.workers)
        interval_s = self._timers_now().telemetry_interval_s(workers) * self._overload.pace
        return max(SILENT_S, 3.0 * interval_s)

    def _state(self) -> VolatileState | None:
        """What this member knows beyond the log while it leads."""
        return self.director.state if self.director is not None else None

    def _views(self) -> Views[JobRecord]:
        state = self._state

        def job(record: JobRecord) -> JobView:
            return job_view(self.machine.tables, record, self._ledger.group_ms(), state())

        async def explained(record: JobRecord) -> tuple[list[str], list[str]]:
            known = state()
            lines = why(known, record) if known is not None else []
            if known is not None and not record.over:
                lines += await self._nodes.explained(doubted_workers(known, record))
            lines.append(self._parts.led_by("managers"))
            return lines, event_lines(record, self.machine.tables.shown_events(record))

        async def nodes(datacenter: str) -> NodeList:
            return await self._nodes.nodes(datacenter, state())

        def detailed(record: JobRecord) -> JobView:
            return detailed_view(job(record), self.machine.tables, record, state())

        return Views(job, nodes, explained, detailed)

    def _channel_of(self, node: str, boot: str, bulk: bool) -> Channel | None:
        kind = LinkKind.BULK if bulk else LinkKind.CONTROL
        return self._wire.endpoint.channel(NodeId(node), BootId(boot), kind)
