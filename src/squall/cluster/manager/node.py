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

from squall.cluster.control.admission import Admission
from squall.cluster.control.execution import BoundedExecution
from squall.cluster.control.load import Filling
from squall.cluster.datacenter.records import JobRecord
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.group.blob_transfers import Transfers
from squall.cluster.group.committer import Committer
from squall.cluster.group.handshake import GroupHandshake
from squall.cluster.group.member_watch import GroupWatch
from squall.cluster.group.open_log import LogOpener, open_log
from squall.cluster.ledger.interface import Blobs, Entry, Fence, Ledger
from squall.cluster.ledger.settings import LedgerSettings
from squall.cluster.manager.clients.api import ClientApi, Views
from squall.cluster.manager.clients.job_views import (
    detailed_view,
    events,
    job_view,
    node_views,
    why,
)
from squall.cluster.manager.clients.operator_api import NOTE_S, OperatorApi
from squall.cluster.manager.clients.relay import ClientRelay
from squall.cluster.manager.command_log import CommandLog, EventCounts, event_counts
from squall.cluster.manager.director.effect_runner import EffectRunner, FindCut
from squall.cluster.manager.director.policy import Director
from squall.cluster.manager.job_leaders.choice import JobLeaders
from squall.cluster.manager.job_leaders.report_copies import MemberCopies
from squall.cluster.manager.job_leaders.rpc import JobLeaderRpc
from squall.cluster.manager.metrics import (
    admission_metrics,
    group_metrics,
    manager_metrics,
    refusal_counter,
    report_metrics,
)
from squall.cluster.manager.overload_response import OverloadResponse
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.cluster.manager.results.assembler import ResultAssembler
from squall.cluster.manager.sealed_secrets import SecretSealer
from squall.cluster.manager.telemetry.job_leader import JobLeader
from squall.cluster.manager.telemetry.silent_shares import SILENT_S
from squall.cluster.manager.worker_api import WorkerApi
from squall.cluster.protocol.group_messages import MemberNote
from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.protocol.messages import JobView, NodeView
from squall.cluster.protocol.timers import Timers, timers_of
from squall.cluster.settings_tree import Settings
from squall.cluster.wire.counters import wire_metrics
from squall.cluster.wire.links.channel import Channel
from squall.cluster.wire.links.dispatch import Handlers
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.switchboard import LinkTLS, Switchboard, make_keyring
from squall.cluster.wire.negotiation import LinkKind
from squall.cluster.wire.seal.secrets import Secrets
from squall.engine.run_options import RunOptions
from squall.runtime.addresses import is_name, shown_address
from squall.runtime.interfaces import Address, BootId, NodeId, Runtime
from squall.runtime.log import Log
from squall.runtime.metrics import Registry
from squall.runtime.metrics_http import MetricsServer, Probes
from squall.runtime.tasks import TaskRunner
from squall.stats.attempt_record import AttemptRecord

SECOND_S = 1.0
SHOW_S = 0.1
"""How often running jobs are checked for a second that is complete and can be shown."""
IDLE_S = 1.0
"""The director is driven at least this often. It treats a gap of 3 s as a standstill of its own
process (`STOOD_STILL_S`)."""
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
        self._watch = GroupWatch(runtime.node, plan.members, runtime.clock, log)
        self.machine = Datacenter()
        self.director: Director | None = None
        self.address: Address = plan.listen
        self.ready = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> int:
        """Runs until `stop` is set or the log fails; returns the exit code."""
        self._open_wire()
        ledger = await self._open_log()
        # Before the first link, so that a manager with the directory of another group is
        # refused with the reason.
        self._handshake.refresh(ledger)
        self._compose(ledger)
        ledger.on_applied(self._applied)
        ledger.on_role(self._role_changed)
        # Not before the handlers are registered: a request that arrived earlier would be
        # refused as unknown.
        await self._endpoint.listen(self._plan.listen)
        self.address = self._endpoint.address
        metrics = await self._serve_metrics()
        host, port = self.address
        self._log.info("manager_ready", address=f"{host}:{port}", op=ledger.applied)
        self._tasks.start("director", self._drive(), group="manager", essential=True)
        self._tasks.start("pressure", self._overload.watch(), group="manager", essential=True)
        self._tasks.every("leader", SHOW_S, self._leader.tick, jitter=0.0, group="manager")
        self._tasks.every("log watch", SECOND_S, self._watch_ledger, group="manager")
        self._tasks.every("group watch", NOTE_S, self._check_group, group="manager")
        self._tasks.every("job leaders", NOTE_S, self._leaders.replace_lost, group="manager")
        copy_s = self._timers_now().copy_s
        self._tasks.every("copies", copy_s, self._copies.give, group="manager")
        self.ready.set()
        try:
            await self._until(stop)
            await ledger.step_aside(STEP_ASIDE_S)
        finally:
            await self._endpoint.close(drain_s=0.5)
            if metrics is not None:
                await metrics.close()
            await ledger.close()
        return 1 if self._failed else 0

    async def _open_log(self) -> Ledger:
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
        execution = BoundedExecution(admission, runtime.clock, self._admission_fills)
        self._overload = OverloadResponse(admission, runtime.clock, self._log)
        self._board = Switchboard(
            runtime=runtime,
            keyring=make_keyring(runtime, plan.secrets, plan.cluster),
            admit=execution.enter,
            passes=execution.passes,
            tasks=self._tasks,
            handlers=Handlers(),
            limits=plan.settings.wire,
            tls=plan.tls,
            on_refused=self._peer_refused,
            on_error=lambda error: self._log.error("handler_failed", error=error),
        )
        self._endpoint = Endpoint(self._board)
        self.registry = Registry()
        self._commands = CommandLog(self._log, plan.job_events or event_counts(self.registry))
        wire_metrics(self.registry, self._board.counters)
        admission_metrics(self.registry, admission)
        self._handshake = GroupHandshake(
            self._board, self._watch, name=self._group_name, timers=plan.settings.timers
        )

    def _compose(self, ledger: Ledger) -> None:
        runtime, plan = self._runtime, self._plan
        self._ledger = ledger
        self._sealer = SecretSealer(plan.secrets, plan.cluster, runtime.entropy)
        self._transfers = Transfers(ledger.blobs, self._board.counters, self._tasks)
        committer = Committer(ledger, self._address_of, self._manager_addresses)
        self._leaders = JobLeaders(
            machine=self.machine,
            ledger=ledger,
            watch=self._watch,
            committer=committer,
            log=self._log,
        )
        led = JobLeaderRpc(
            machine=self.machine,
            ledger=ledger,
            committer=committer,
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
        )
        self._copies = MemberCopies(self.machine, self._leader, self._leaders)
        self._copies.register(self._board.handlers)
        led.register(self._board.handlers, self._leader, self._copies)
        self._results = ResultAssembler(
            self.machine,
            self._transfers,
            self._clock,
            group_ms=ledger.group_ms,
            options_of=self._options_of,
        )
        self._runner = EffectRunner(
            ledger=ledger,
            machine=self.machine,
            leader=self._leader,
            leaders=self._leaders,
            transfers=self._transfers,
            tasks=self._tasks,
            clock=self._clock,
            log=self._log,
            channel_of=self._channel_of,
            results=self._results,
            on_done=self._wake.set,
            find_cut=plan.find_cut or self._copies.find,
        )
        self._answer(ledger, committer)

    def _answer(self, ledger: Ledger, committer: Committer) -> None:
        """Registers the handlers for workers, clients and operators."""
        plan = self._plan
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
            managers=self._manager_addresses,
            pace=lambda: self._overload.pace,
        )
        self.clients = ClientApi(
            datacenter=plan.datacenter,
            machine=self.machine,
            ledger=ledger,
            committer=committer,
            leader=self._leader,
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
        self._transfers.register(self._board.handlers)
        workers.register_handlers(self._board.handlers)
        self.clients.register(self._board.handlers)
        ClientRelay(
            self._board.handlers,
            machine=self.machine,
            ledger=ledger,
            leaders=self._leaders,
            clock=self._clock,
        )
        self._group = OperatorApi(
            ledger=ledger,
            watch=self._watch,
            committer=committer,
            clock=self._clock,
            log=self._log,
            speaks=self.machine.version,
            is_unused=lambda: not self.machine.tables.group,
            own=self._own_note,
        )
        self._group.register(self._board.handlers)

    def _peer_refused(self, address: Address, error: Exception) -> None:
        host, port = address
        self._log.warning("peer_refused", peer=f"{host}:{port}", error=str(error))

    def _admission_fills(self, filling: Filling) -> None:
        self._log.warning("admission_fills", limit=filling.limit, percent=filling.percent)

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
            self._log.warning("stepped_down")
            return
        self._log.info("leads", epoch=fence.epoch, view=fence.view)
        # At once, because no command of this version can be proposed before.
        self._group.activate()
        self.director = Director(
            self.machine,
            self._timers_now(),
            group=self._runtime.entropy(GROUP_ID_BYTES).hex(),
            now=self._clock.now(),
            group_ms=self._ledger.group_ms(),
            options_of=self._options_of,
            on_broken=self._job_broken,
        )
        self._wake.set()

    def _job_broken(self, job: JobId, error: Exception) -> None:
        self._log.error("job_broken", job=job, error=error)
        self._watch.alarm(f"job {job} failed by an internal error: {error!r}")

    def _check_group(self) -> None:
        self._group.tick()
        self._handshake.refresh(self._ledger)

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

    def _silent_after_s(self) -> float:
        """A worker is silent when it missed three reports, and no sooner than `SILENT_S`."""
        workers = len(self.machine.tables.workers)
        interval_s = self._timers_now().telemetry_interval_s(workers) * self._overload.pace
        return max(SILENT_S, 3.0 * interval_s)

    def _views(self) -> Views:
        def state() -> VolatileState | None:
            return self.director.state if self.director is not None else None

        def job(record: JobRecord) -> JobView:
            return job_view(self.machine.tables, record, self._ledger.group_ms(), state())

        def explained(record: JobRecord) -> tuple[list[str], list[str]]:
            known = state()
            lines = why(known, record) if known is not None else []
            lines.append(self._led_by())
            return lines, events(record, self.machine.tables.shown_events(record))

        def nodes() -> list[NodeView]:
            managers = self._group.managers(self._runtime.boot)
            return [*managers, *node_views(self.machine.tables, state())]

        def detailed(record: JobRecord) -> JobView:
            return detailed_view(job(record), self.machine.tables, record, state())

        return Views(job, nodes, explained, detailed)

    def _own_note(self) -> MemberNote:
        """What this member reports of its process to the group."""
        free = self._plan.disk_free
        return MemberNote(
            address=shown_address(self._advertised()),
            pid=self._plan.pid,
            version=self._plan.version,
            disk_free=free() if free is not None else -1,
            wall_s=self._clock.wall(),
        )

    def _advertised(self) -> Address:
        given = self._watch.addresses.get(self._runtime.node, self.address)
        return given if given[1] or is_name(given) else self.address

    def _led_by(self) -> str:
        fence = self._ledger.fence
        leader = self._ledger.primary or "no member"
        return f"{leader} leads the managers (epoch {fence.epoch}, view {fence.view})"

    def _channel_of(self, node: str, boot: str, bulk: bool) -> Channel | None:
        kind = LinkKind.BULK if bulk else LinkKind.CONTROL
        return self._endpoint.channel(NodeId(node), BootId(boot), kind)

    def _manager_addresses(self) -> list[str]:
        """The addresses of all members; empty while one is unknown, or if the log is in a store."""
        node, watch = self._runtime.node, self._watch
        found = [
            shown_address(self._advertised()) if name == node else watch.address_of(name)
            for name in self._ledger.standing().members or ()
        ]
        return sorted(found) if all(found) else []

    def _address_of(self, node: NodeId | None) -> str:
        return self._watch.address_of(node)

    def _readiness(self) -> str:
        return "" if self._ledger.is_primary else "this manager does not lead"

    async def _serve_metrics(self) -> MetricsServer | None:
        if self._plan.metrics is None:
            return None
        registry = self.registry
        manager_metrics(registry, self.machine, self._ledger)
        report_metrics(registry, self._leader.memory)
        self._overload.show(registry)
        group_metrics(registry, self._ledger, self._watch, self._group.view)
        server = MetricsServer(self._runtime.network, registry, Probes(ready=self._readiness))
        await server.start(self._plan.metrics)
        return server
