"""A gate: one member of the group that hands jobs over to datacenters, composed from its parts.

    wire ──► GateClientApi, PartReports, OperatorApi, Transfers    requests
    ledger ──► Assignments                                         what is committed
    Steward ──► StewardEffects                                     decisions, effects (primary)
    GateOutbox ──► OrderDriver ──► datacenters                     orders (primary)
    DatacenterProber ──► KnownDatacenters ──► DatacenterRouter     where a part may go
    GateJobLeader                                                  live numbers of running jobs

The node sets the order of the steps: open the log, listen, lead when the log says so, drive steward
and outbox whenever something changed. When the log fails the node ends, and its supervisor starts
it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from squall.cluster.assignments import commands
from squall.cluster.assignments.commands import GateCommand
from squall.cluster.assignments.records import GateJobRecord
from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.gate.clients.api import GateClientApi
from squall.cluster.gate.clients.job_views import detailed_view, job_view, why
from squall.cluster.gate.clients.node_lists import GATES, NodeLists
from squall.cluster.gate.command_log import GateCommandLog
from squall.cluster.gate.datacenter_links import DatacenterLinks
from squall.cluster.gate.effect_runner import StewardEffects
from squall.cluster.gate.job_parts import part_submission
from squall.cluster.gate.live.job_leader import GateJobLeader
from squall.cluster.gate.live.part_follower import PartAsker
from squall.cluster.gate.metrics import gate_metrics
from squall.cluster.gate.orders import OrderDriver
from squall.cluster.gate.outbox import GateOutbox
from squall.cluster.gate.prober import DatacenterProber
from squall.cluster.gate.reports import PartReports
from squall.cluster.gate.result_merger import ResultMerger
from squall.cluster.gate.router import DatacenterRouter
from squall.cluster.gate.routing.known_datacenters import KnownDatacenters
from squall.cluster.gate.routing.settings import RoutingSettings, fast
from squall.cluster.gate.routing_metrics import part_counter, routing_metrics
from squall.cluster.gate.steward.policy import Steward
from squall.cluster.gate.timers import GateTimers, gate_timers
from squall.cluster.group.clients.job_requests import JobRequests, Views, event_lines
from squall.cluster.group.clients.operator_api import NOTE_S
from squall.cluster.group.clients.relay import ClientRelay
from squall.cluster.group.clients.submissions import SubmissionCheck
from squall.cluster.group.committer import CommandCodec
from squall.cluster.group.job_leaders.rpc import JobLeaderRpc
from squall.cluster.group.member import (
    GroupParts,
    MemberWire,
    open_group,
    open_member_log,
    serve_metrics,
)
from squall.cluster.group.metrics import refusal_counter, region_metrics
from squall.cluster.group.open_log import LogOpener
from squall.cluster.group.presence.members_api import MembersApi
from squall.cluster.group.primary.effect_tasks import EffectTasks
from squall.cluster.ledger.interface import Entry, Fence, Ledger
from squall.cluster.ledger.settings import LedgerSettings
from squall.cluster.protocol.gates.handover_keys import GateFence
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import JobView
from squall.cluster.settings_tree import Settings
from squall.cluster.wire.errors import WireError
from squall.cluster.wire.links.switchboard import LinkTLS
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.addresses import shown_address
from squall.runtime.interfaces import Address, Runtime
from squall.runtime.log import Log
from squall.runtime.tasks import TaskRunner

SECOND_S = 1.0
SHOW_S = 0.1
"""How often running jobs are checked for a second that is complete and can be shown."""
IDLE_S = 1.0
"""The steward is driven at least this often."""
GROUP_ID_BYTES = 2
STEP_ASIDE_S = 1.0
ASK_S = 5.0
"""The timeout of a client's request that a datacenter answers."""
CODEC: CommandCodec[GateCommand] = CommandCodec(commands.VERSION, commands.encode)


@dataclass(frozen=True, kw_only=True)
class GatePlan:
    """The identity and settings of one gate."""

    listen: Address
    members: dict[str, Address]
    """All gates of the group, this one among them."""
    datacenters: dict[str, tuple[str, ...]]
    """host:port of the managers of each datacenter."""
    secrets: Secrets
    cluster: str
    region: str = ""
    """Where this gate is: gates of one region are lost together."""
    settings: Settings = field(default_factory=Settings)
    tls: LinkTLS | None = None
    ledger: LedgerSettings = field(default_factory=lambda: LedgerSettings(role="gate"))
    metrics: Address | None = None
    timers: GateTimers | None = None
    """None: derived from the settings."""
    routing: RoutingSettings | None = None
    joins: bool = False
    """An empty data directory waits to be admitted to an existing group."""
    pid: int = 0
    version: str = ""
    """Pid and version are only shown."""
    disk_free: Callable[[], int] | None = None
    """Returns the free bytes for the data directory."""
    dns_server: Address | None = None
    """Where names are looked up; None: as the machine does it."""
    opener: LogOpener | None = None
    """None: the log is in this node's data directory."""
    membership: bool = False
    """It takes part in the membership of the gates, if the settings allow it."""


class GateNode:
    """One boot of a gate."""

    def __init__(self, runtime: Runtime, tasks: TaskRunner, plan: GatePlan, log: Log) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._plan = plan
        self._log = log
        self._clock = runtime.clock
        settings, profile = plan.settings, plan.settings.timers.profile
        self._timers = plan.timers or gate_timers(profile, settings.jobs, settings.routing)
        routing = plan.routing or RoutingSettings()
        if plan.routing is None and profile == "fast":
            routing = fast(routing)
        self.known = KnownDatacenters(dict(plan.datacenters), routing)
        self._wake = asyncio.Event()
        self._over = asyncio.Event()
        self._failed = False
        self.machine = Assignments()
        self.steward: Steward | None = None
        self._outbox: GateOutbox | None = None
        self.address: Address = plan.listen
        self.ready = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> int:
        """Runs until `stop` is set or the log fails; returns the exit code."""
        plan, tasks = self._plan, self._tasks
        wire = self._wire = MemberWire(
            self._runtime, tasks, plan, self._log, group=f"{plan.cluster}//{GATES}"
        )
        self._commands = GateCommandLog(self._log, wire.registry)
        ledger = await open_member_log(self._runtime, tasks, plan, wire, self.machine)
        self._compose(ledger)
        ledger.on_applied(self._applied)
        ledger.on_role(self._role_changed)
        # Not before the handlers are registered: a request that arrived earlier would be
        # refused as unknown.
        await wire.listen(plan.listen)
        self.address = wire.address
        prober = DatacenterProber(
            self.known, self._links, clock=self._clock, tasks=tasks, log=self._log
        )
        if plan.metrics is not None:
            gate_metrics(wire.registry, self.machine, ledger)
            routing_metrics(wire.registry, self.known, prober, self._clock)
            region_metrics(wire.registry, self._parts.operators.view)
        metrics = await serve_metrics(
            self._runtime, plan, wire, self._parts, not_leading="this gate does not lead"
        )
        self._log.info("gate_ready", address=shown_address(self.address), op=ledger.applied)
        tasks.start("steward", self._drive(), group="gate", essential=True)
        tasks.start("pressure", wire.overload.watch(), group="gate", essential=True)
        tasks.start("prober", prober.run(), group="gate", essential=True)
        tasks.every("leader", SHOW_S, self._leader.tick, jitter=0.0, group="gate")
        tasks.every("log watch", SECOND_S, self._watch_ledger, group="gate")
        tasks.every("group watch", NOTE_S, self._check_group, group="gate")
        self._parts.presence.start(tasks, NOTE_S)
        tasks.every("job leaders", NOTE_S, self._parts.leaders.replace_lost, group="gate")
        self.ready.set()
        try:
            await self._until(stop)
            self._parts.presence.driver.leave()
            await ledger.step_aside(STEP_ASIDE_S)
        finally:
            await self._parts.presence.driver.close()
            await self._links.close()
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
            role="gate",
            codec=CODEC,
            lead_jobs=lambda leaders: commands.LeadJobs(leaders=leaders),
            speaks=self.machine.version,
            is_unused=lambda: not self.machine.tables.group,
            nodes=lambda: len(wire.watch.addresses),
            region=plan.region,
        )
        handlers = wire.board.handlers
        self._links = DatacenterLinks(wire.board, self.known)
        self._router = DatacenterRouter(
            self.known, self._clock, lambda: self.machine.tables, part_counter(wire.registry)
        )
        led = JobLeaderRpc(
            machine=self.machine,
            ledger=ledger,
            committer=parts.committer,
            leaders=parts.leaders,
            clock=self._clock,
            tasks=self._tasks,
            end_job=self._end_job,
        )
        self._leader = GateJobLeader(
            self.machine,
            self._tasks,
            clock=self._clock,
            group_ms=ledger.group_ms,
            wall_s=wire.watch.wall_s,
            part_of=part_submission,
            ask=PartAsker(self._links).ask,
            on_abort=led.abort,
            leads=parts.leaders.leads,
            settle_s=self._timers.settle_s,
            on_broken=lambda job, error: self._log.error("job_not_shown", job=job, error=error),
        )
        led.register(handlers, cut=self._leader.lost_part, judged=self._leader.judged)
        wake = self._wake.set
        effects = EffectTasks(ledger, CODEC, self._tasks, self._clock, self._log, wake)
        self._effects = StewardEffects(
            ledger=ledger,
            machine=self.machine,
            leader=self._leader,
            leaders=parts.leaders,
            merger=ResultMerger(ledger.blobs),
            effects=effects,
        )
        self._orders = OrderDriver(
            self._links,
            parts.committer,
            clock=self._clock,
            tasks=self._tasks,
            log=self._log,
            on_done=self._wake.set,
        )
        self._answer(ledger, parts)

    def _answer(self, ledger: Ledger, parts: GroupParts[GateCommand]) -> None:
        """Registers the handlers for datacenters, clients and operators."""
        plan, handlers = self._plan, self._wire.board.handlers
        self._lists = NodeLists(
            self.known,
            self._clock.now,
            lambda: parts.operators.members(self._runtime.boot),
            self._ask_datacenter,
        )
        requests = JobRequests(
            machine=self.machine,
            ledger=ledger,
            committer=parts.committer,
            stream=self._leader.stream,
            views=self._views(),
            clock=self._clock,
            led_elsewhere=parts.leaders.elsewhere,
            ask_primary=parts.leaders.relay,
            log=self._log,
            rates=plan.settings.clients,
            on_refused=refusal_counter(self._wire.registry),
        )
        submissions = SubmissionCheck(
            machine=self.machine,
            ledger=ledger,
            committer=parts.committer,
            sealer=parts.sealer,
            queue_max=plan.settings.jobs.queue_max,
            datacenters=lambda: self.known.names,
        )
        GateClientApi(
            machine=self.machine,
            committer=parts.committer,
            requests=requests,
            submissions=submissions,
            known=self.known,
            router=self._router,
            node=str(self._runtime.node),
            clock=self._clock,
            wall_s=self._wire.watch.wall_s,
            lead_member=parts.leaders.choose,
            ask=self._ask_datacenter,
            log=self._log,
        ).register(handlers)
        PartReports(
            machine=self.machine,
            ledger=ledger,
            committer=parts.committer,
            transfers=parts.transfers,
            leaders=parts.leaders,
        ).register(handlers)
        parts.transfers.register(handlers)
        ClientRelay(
            handlers,
            machine=self.machine,
            ledger=ledger,
            leaders=parts.leaders,
            clock=self._clock,
        )
        parts.operators.register(handlers)
        MembersApi(
            parts.presence,
            self._wire.watch,
            self._clock,
            name=GATES,
            far=self._lists.members,
        ).register(handlers)

    # Callbacks of the log.

    def _applied(self, entry: Entry, result: bytes) -> None:
        try:
            if self.steward is not None:
                self._commands.applied(entry.body, result)
            self._leader.changed()
        except Exception as error:
            # An error that leaves this callback stops the log, and what is shown is not worth it.
            self._log.error("display_failed", error=error)
        self._wake.set()

    def _role_changed(self, fence: Fence | None) -> None:
        if fence is None:
            self.steward = self._outbox = None
            self._log.warning("stepped_down")
            return
        self._log.info("leads", epoch=fence.epoch, view=fence.view)
        # At once, because no command of this version can be proposed before.
        self._parts.operators.activate()
        self.steward = Steward(
            self.machine,
            self._timers,
            group=self._runtime.entropy(GROUP_ID_BYTES).hex(),
            datacenters=self._plan.datacenters,
            now=self._clock.now(),
            group_ms=self._ledger.group_ms(),
            route=self._router.route,
            is_unreachable=self._router.is_unreachable,
            silent_s=self._router.silent_s,
            on_broken=self._job_broken,
        )
        # The fence of this term, not that of the ledger: another gate may lead by the time that an
        # order of this term is made.
        self._outbox = GateOutbox(
            lambda: self.machine.tables,
            lambda: self._gate_fence(fence),
            part_submission,
            self._parts.addresses,
            self.steward.fail_job,
        )
        self._wake.set()

    def _gate_fence(self, fence: Fence) -> GateFence:
        """The fence by which managers tell this term of the gate from all other terms."""
        tables = self.machine.tables
        return GateFence(tables.group, fence.epoch, fence.view, tables.former)

    def _job_broken(self, job: JobId, error: Exception) -> None:
        self._log.error("job_broken", job=job, error=error)
        self._wire.watch.alarm(f"job {job} failed by an internal error: {error!r}")

    def _check_group(self) -> None:
        # A gate that restarted leads its jobs again without a new command, and the primary stands
        # in for a leader that it does not hear.
        self._leader.changed()
        self._parts.operators.tick()
        self._wire.handshake.refresh(self._ledger)

    def _watch_ledger(self) -> None:
        if self._ledger.failure is not None and not self._failed:
            self._log.error("log_failed", error=str(self._ledger.failure))
            self._failed = True
            self._over.set()

    # Driving.

    async def _drive(self) -> None:
        while True:
            self._wake.clear()
            wait_s = IDLE_S
            try:
                wait_s = self._drive_once()
            except Exception as error:
                # The steward fails a job whose rules raise. Whatever is left must not end the
                # gate either: another member would raise the same (R3).
                self._log.error("steward_failed", error=error)
            try:
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _drive_once(self) -> float:
        """Drives steward and outbox once; returns the seconds until something is due."""
        steward, outbox = self.steward, self._outbox
        if steward is None or outbox is None:
            return IDLE_S
        now, group_ms = self._clock.now(), self._ledger.group_ms()
        for effect in steward.tick(now, group_ms):
            self._effects.start(steward, effect)
        # A job is named after its group: before that is known there is no order.
        if self.machine.tables.group:
            for order in outbox.due(now, group_ms):
                self._orders.start(outbox, order)
        due = min(steward.deadline(), outbox.next_due())
        return min(max(due - self._clock.now(), 0.0), IDLE_S)

    def _end_job(self, job: JobId, text: str) -> bool:
        """Ends a job for a threshold; False if this member does not lead the group."""
        if self.steward is None or not self._ledger.is_primary:
            return False
        self.steward.abort(job, text)
        self._wake.set()
        return True

    async def _until(self, stop: asyncio.Event) -> None:
        async def watch_stop() -> None:
            await stop.wait()
            self._over.set()

        self._tasks.start("stop", watch_stop(), group="gate")
        await self._over.wait()

    # What other parts read.

    async def _ask_datacenter(self, datacenter: str, message: msgspec.Struct) -> Any:
        """Asks the primary of a datacenter and returns its answer. Raises WireError."""
        found = await self._links.any_link(datacenter, ASK_S)
        if not found:
            raise WireError(f"no manager of {datacenter} can be reached")
        return await found[0].request(message, ASK_S)

    def _views(self) -> Views[GateJobRecord]:
        def job(record: GateJobRecord) -> JobView:
            return job_view(self.machine.tables, record, self._ledger.group_ms())

        def detailed(record: GateJobRecord) -> JobView:
            return detailed_view(job(record), record)

        async def explained(record: GateJobRecord) -> tuple[list[str], list[str]]:
            lines = why(record, self._ledger.group_ms(), self.steward)
            lines.append(self._parts.led_by(GATES))
            happened = self.machine.tables.events.get(record.job, ())
            return lines, event_lines(record, happened)

        return Views(job, self._lists.nodes, explained, detailed)
