"""An agent: a worker, and a manager while it is elected, in one process without a port.

    Coordinator (election) ──► term begins ──► ManagerNode over the log in the store
    WorkerNode ──► ("leader", 0) ──► whoever coordinates, through the mailboxes of the store

The store is all that agents share. What a manager decides is in the log there, so another
agent goes on with it; what a worker runs is bound by its lease, as in a datacenter. The end
of a term ends its manager: it grants nothing and commits nothing from then on, because its
log asks for the term before each of both.

It composes; it must never act for a term that has ended, and must leave nothing running.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

import msgspec

from squall.api.errors import SquallError
from squall.coordination import events
from squall.coordination.coordinator import Coordinator
from squall.coordination.stores.interface import Store
from squall.coordination.terms import Term
from squall.nodes.agent.copies import Copies
from squall.nodes.agent.leader import LEADER_ADDRESS, find_leader
from squall.nodes.agent.ledger import open_store_log
from squall.nodes.agent.network import StoreNetwork, mailbox_name
from squall.nodes.agent.pace import Pace
from squall.nodes.agent.schedules import Office, Schedules, calendar_of
from squall.nodes.agent.schedules_desk import ManagerDesk
from squall.nodes.agent.schedules_judging import Judge, judge_here
from squall.nodes.agent.secret_check import renew_secret, settle_secret
from squall.nodes.agent.timers import AgentTimers
from squall.nodes.agent.world import World, new_boot
from squall.nodes.manager.node import ManagerNode, ManagerPlan
from squall.nodes.worker.host import Machine, ShareHost
from squall.nodes.worker.node import WorkerNode
from squall.nodes.worker.settings import WorkerSettings
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log
from squall.runtime.metrics import Registry
from squall.runtime.tasks import TaskFailure, TaskRunner
from squall.settings import Settings
from squall.wire.secrets import Secrets

DATACENTER = "store"
MANAGER_ENDS_S = 5.0
LOOK_S = 0.1
"""How often is looked who coordinates; the answer is in memory."""


@dataclass(frozen=True, kw_only=True)
class AgentPlan:
    """What an agent is."""

    cluster: str
    node_secrets: Secrets
    worker_secrets: Secrets
    proofs: tuple[str, ...]
    """Of the accepted secrets, that of the sending one first."""
    signing: tuple[str, ...]
    """What the election signs with, for each accepted secret, the newest last."""
    timers: AgentTimers
    pace: Pace
    cores: int
    settings: Settings = field(default_factory=Settings)
    version: str = ""
    python: str = ""
    descriptors: int = 0
    deliver_s: float = 8.0
    pid: int = 0
    judge: Judge = judge_here
    """Compares scheduled runs."""


class AgentFailed(SquallError):
    """The manager of a term ended before the term."""


class AgentNode:
    """One boot. `run` returns after `stop` was set and everything is in order."""

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
            pace=plan.pace,
            resolve=self._resolve,
            log=log,
        )
        self.worker = WorkerNode(
            World(runtime, self.network),
            host,
            machine,
            self._worker_settings(),
            tasks=tasks,
            log=log,
        )
        self.manager: ManagerNode | None = None
        self._led_by = ""
        self._copies = Copies(store)
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
        """Until `stop`. `SquallError` if this agent cannot be one."""
        await settle_secret(self._store, self._plan.proofs, shown=self._store.url)
        try:
            await self.coordinator.start()
            try:
                self.coordinator.on(events.ErrorEvent, self._member_lost)
                self._log.info("agent_starts", store=self._store.url, mailbox=self.mailbox)
                self._tasks.every("coordinator watch", LOOK_S, self._look, jitter=0.0)
                await self.worker.run(stop)
            finally:
                await self.coordinator.stop()
        finally:
            await self.network.close()

    # The manager of a term.

    async def _lead(self, term: Term) -> None:
        """For the whole term. What it raises is tried again while the term lasts."""
        runtime, plan = self._runtime, self._plan
        await renew_secret(self._store, plan.proofs)
        tasks = TaskRunner(runtime.clock, runtime.random, on_failure=self._failed)
        world = World(runtime, self.network, new_boot(runtime))
        manager = ManagerNode(world, tasks, self._manager_plan(term), self._log)
        stop = asyncio.Event()
        running = asyncio.ensure_future(manager.run(stop))
        over = asyncio.ensure_future(term.ended.wait())
        fatal = asyncio.ensure_future(tasks.fatal())
        self.manager = manager
        tasks.every("copies", plan.timers.copy_s, self._copy)
        tasks.start("schedules", Schedules(self._office(manager), term).run())
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

    async def _copy(self) -> None:
        if self.manager is None:
            return
        running = [node for node, live in self.manager.machine.tables.live.items() if live]
        for node in self._copies.chosen(str(self._runtime.node), running):
            await self._copies.keep(node, self.manager.reported(node))

    async def _end(self, running: asyncio.Future[int]) -> None:
        """Its own end, within a bound; nothing that it raises matters any more."""
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
            settings=msgspec.structs.replace(plan.settings, wire=plan.pace.wire),
            timers=plan.timers.work,
            pid=plan.pid,
            version=plan.version,
            opener=open_store_log(self._store, term=term, log=self._log),
            kept_cut=self._copies.read,
        )

    def _office(self, manager: ManagerNode) -> Office:
        plan = self._plan
        return Office(
            runtime=self._runtime,
            store=self._store,
            desk=ManagerDesk(manager),
            secrets=plan.node_secrets,
            cluster=plan.cluster,
            now=calendar_of(self.coordinator.parts),
            look_s=plan.pace.schedules_s,
            log=self._log,
            judge=plan.judge,
        )

    # What the parts need.

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
            deliver_s=plan.deliver_s,
            patience=plan.pace.patience,
        )

    def _look(self) -> None:
        """Links with a coordinator that is not one any more are given up at once: waiting
        for their keep-alives would cost the leases."""
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
    """Why a manager ended although its term goes on."""
    if fatal.done():
        return AgentFailed(f"{fatal.result().name}: {fatal.result().error}")
    error = running.exception()
    if isinstance(error, Exception):
        return error
    return AgentFailed("the manager gave up; its log says why")
