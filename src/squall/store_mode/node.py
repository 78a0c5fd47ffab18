"""An agent: a worker, and while elected also a manager, in one process without an open port.

    Coordinator (election) ──► term begins ──► ManagerNode over the log in the store
    WorkerNode ──► ("leader", 0) ──► the current coordinator, through the mailboxes of the store

Agents share nothing but the store. The manager's decisions are in the log there, so another agent
can continue; a worker's load is bound by its lease, as in a datacenter (R5). When a term ends, its
manager ends: from then on it grants and commits nothing, because its log checks the term before
both.

This module only connects the parts. It must never act for a term that has ended, and must leave
nothing running.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from squall.api.errors import SquallError
from squall.cluster.manager.command_log import event_counts
from squall.cluster.manager.node import ManagerNode, ManagerPlan
from squall.cluster.settings_tree import Settings
from squall.cluster.wire.seal.secrets import Secrets
from squall.cluster.worker.node import WorkerNode
from squall.cluster.worker.settings import FormerProcess, WorkerSettings
from squall.cluster.worker.share_host import Machine, ShareHost
from squall.coordination import events
from squall.coordination.coordinator import Coordinator
from squall.coordination.election.term import Term
from squall.coordination.stores.interface import Store
from squall.engine.process.machine_usage import MachineUsage
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log
from squall.runtime.metrics import Registry
from squall.runtime.tasks import TaskFailure, TaskRunner
from squall.store_mode.find_coordinator import LEADER_ADDRESS, find_leader
from squall.store_mode.ledger.open_store_ledger import open_store_log
from squall.store_mode.report_copies import ReportCopies
from squall.store_mode.runtime_over_store import StoreRuntime, new_boot
from squall.store_mode.schedules.comparison import Judge, judge_here
from squall.store_mode.schedules.runner import ScheduleDependencies, ScheduleRunner, calendar_of
from squall.store_mode.schedules.submit import ManagerSubmitter
from squall.store_mode.secret_check import renew_secret, settle_secret
from squall.store_mode.timers import AgentTimers
from squall.store_mode.transport.network import StoreNetwork, mailbox_name
from squall.store_mode.transport.tuning import TransportTuning

DATACENTER = "store"
MANAGER_ENDS_S = 5.0
LEADER_POLL_S = 0.1
"""Poll interval for the current leader. The lookup is served from memory."""


@dataclass(frozen=True, kw_only=True)
class AgentPlan:
    """The configuration of an agent."""

    cluster: str
    node_secrets: Secrets
    worker_secrets: Secrets
    proofs: tuple[str, ...]
    """Proofs of the accepted secrets; the first one belongs to the secret that sends."""
    signing: tuple[str, ...]
    """Signing secrets of the election, one for each accepted secret, the newest last."""
    timers: AgentTimers
    tuning: TransportTuning
    cores: int
    settings: Settings = field(default_factory=Settings)
    version: str = ""
    python: str = ""
    descriptors: int = 0
    deliver_s: float = 8.0
    pid: int = 0
    former: FormerProcess | None = None
    """The main process that this one replaces, if a launcher saw its end."""
    judge: Judge = judge_here
    """Compares a scheduled run with the run before it."""


class AgentFailed(SquallError):
    """The manager ended before its term."""


class AgentNode:
    """Runs one boot of an agent: a worker, an election member, and a manager while elected."""

    def __init__(
        self,
        runtime: Runtime,
        store: Store,
        host: ShareHost,
        machine: Machine,
        plan: AgentPlan,
        *,
        tasks: TaskRunner,
        log: Log,
        usage: Callable[[], MachineUsage] = MachineUsage,
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._plan = plan
        self._tasks = tasks
        self._log = log.bind(node=runtime.node)
        self.mailbox = mailbox_name(str(runtime.node), str(runtime.boot))
        self.network = StoreNetwork(
            store,
            own=self.mailbox,
            clock=runtime.clock,
            random=runtime.random,
            tasks=tasks,
            tuning=plan.tuning,
            resolve=self._resolve,
            log=log,
        )
        self.worker = WorkerNode(
            StoreRuntime(runtime, self.network),
            host,
            machine,
            self._worker_settings(),
            tasks=tasks,
            log=log,
            usage=usage,
        )
        self.manager: ManagerNode | None = None
        self._job_events = event_counts(self.worker.registry)
        self._led_by = ""
        self._report_copies = ReportCopies(store)
        self.coordinator = Coordinator(
            store,
            member_id=self.mailbox,
            on_become=self._lead,
            runtime=runtime,
            log=log,
            registry=Registry(),
            namespace=DATACENTER,
            profile=plan.timers.election,
            unsafe_timings=plan.timers.unsafe,
            secret=plan.signing,
            skip_cold_start=True,
            metadata=lambda: {"name": str(runtime.node), "cores": plan.cores},
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until `stop` is set and everything is shut down; raises `SquallError` if this
        process cannot be an agent of this store."""
        await settle_secret(self._store, self._plan.proofs, shown=self._store.url)
        try:
            await self.coordinator.start()
            try:
                self.coordinator.on(events.ErrorEvent, self._member_lost)
                self._log.info("agent_starts", store=self._store.url, mailbox=self.mailbox)
                self._tasks.every(
                    "coordinator watch", LEADER_POLL_S, self._abandon_former_leader, jitter=0.0
                )
                await self.worker.run(stop)
            finally:
                await self.coordinator.stop()
        finally:
            await self.network.close()

    # The manager of a term.

    async def _lead(self, term: Term) -> None:
        """Runs the manager for the whole term. If it raises, the coordinator calls it again while
        the term lasts."""
        runtime, plan = self._runtime, self._plan
        await renew_secret(self._store, plan.proofs)
        tasks = TaskRunner(runtime.clock, runtime.random, on_failure=self._failed)
        # Each term is a new boot of the manager: a message to an earlier one must not count.
        store_runtime = StoreRuntime(runtime, self.network, new_boot(runtime))
        manager = ManagerNode(store_runtime, tasks, self._manager_plan(term), self._log)
        stop = asyncio.Event()
        running = asyncio.ensure_future(manager.run(stop))
        over = asyncio.ensure_future(term.ended.wait())
        fatal = asyncio.ensure_future(tasks.fatal())
        self.manager = manager
        tasks.every("copies", plan.timers.copy_s, self._copy_reports)
        tasks.start("schedules", ScheduleRunner(self._dependencies(manager), term).run())
        self._log.info("term_begins", epoch=term.epoch)
        try:
            await asyncio.wait((running, over, fatal), return_when=asyncio.FIRST_COMPLETED)
            if not over.done():
                raise await _cause(running, fatal)
        finally:
            self.manager = None
            stop.set()
            over.cancel()
            fatal.cancel()
            await self._end(running)
            await tasks.shutdown(MANAGER_ENDS_S)
            self._log.info("term_ends", epoch=term.epoch, why=term.reason)

    async def _copy_reports(self) -> None:
        if self.manager is None:
            return
        running = [node for node, live in self.manager.machine.tables.live.items() if live]
        for node in self._report_copies.chosen(str(self._runtime.node), running):
            await self._report_copies.keep(node, self.manager.reported(node))

    async def _end(self, running: asyncio.Future[int]) -> None:
        """Waits at most `MANAGER_ENDS_S` for the manager to end; ignores its errors."""
        await asyncio.wait((running,), timeout=MANAGER_ENDS_S)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await running

    def _manager_plan(self, term: Term) -> ManagerPlan:
        plan = self._plan
        address = (self.mailbox, 0)
        return ManagerPlan(
            datacenter=DATACENTER,
            listen=address,
            members={str(self._runtime.node): address},
            secrets=plan.node_secrets,
            cluster=plan.cluster,
            settings=msgspec.structs.replace(plan.settings, wire=plan.tuning.wire),
            timers=plan.timers.work,
            pid=plan.pid,
            version=plan.version,
            opener=open_store_log(self._store, term=term, log=self._log),
            find_cut=self._report_copies.read,
            job_events=self._job_events,
        )

    def _dependencies(self, manager: ManagerNode) -> ScheduleDependencies:
        plan = self._plan
        return ScheduleDependencies(
            runtime=self._runtime,
            store=self._store,
            submitter=ManagerSubmitter(manager),
            secrets=plan.node_secrets,
            cluster=plan.cluster,
            now=calendar_of(self.coordinator.parts),
            poll_s=plan.tuning.schedules_poll_s,
            log=self._log,
            judge=plan.judge,
        )

    # Configuration and callbacks of the parts.

    def _worker_settings(self) -> WorkerSettings:
        plan = self._plan
        return WorkerSettings(
            datacenter=DATACENTER,
            managers=(LEADER_ADDRESS,),
            cores=plan.cores,
            secrets=plan.worker_secrets,
            cluster=plan.cluster,
            timers=plan.timers.work,
            version=plan.version,
            python=plan.python,
            descriptors=plan.descriptors,
            drain_s=plan.settings.worker.drain_timeout_s,
            deliver_s=plan.deliver_s,
            former=plan.former,
            timeouts=plan.tuning.request_timeouts,
        )

    def _abandon_former_leader(self) -> None:
        """Abandons the links to a former coordinator at once. Waiting for their keep-alives to
        fail would let leases expire."""
        led_by = self.coordinator.current_coordinator or ""
        former, self._led_by = self._led_by, led_by or self._led_by
        if led_by and former and former != led_by:
            self.network.abandon(former)

    async def _resolve(self, name: str) -> str:
        return await find_leader(self._store)

    def _member_lost(self, event: events.ErrorEvent) -> None:
        self._log.warning("agent_lost", why=str(event.error))

    def _failed(self, failure: TaskFailure) -> None:
        self._log.error("task_failed", task=failure.name, error=repr(failure.error))


async def _cause(running: asyncio.Future[int], fatal: asyncio.Future[TaskFailure]) -> Exception:
    """Returns the error that ended the manager while its term was still valid."""
    if fatal.done():
        return AgentFailed(f"{fatal.result().name}: {fatal.result().error}")
    error = running.exception()
    if isinstance(error, Exception):
        return error
    return AgentFailed("the manager gave up; its log says why")
