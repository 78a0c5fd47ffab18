"""The worker node: its session with the primary, and everything that follows from it.

It registers this boot, then reports every interval what it runs and holds, and does what the
answer says. Everything that may be lost on the way is sent again. When it is asked to stop it
drains: it takes no new work, lets its shares end or go to other workers for a while, then stops
them, delivers their records within a bound, and leaves the rest in the outbox for the next boot.

It only composes; `session` decides, `attempts` and `deliveries` do the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

import msgspec

from squall.api.errors import SquallError
from squall.cluster.ledger.blobs.in_memory import MemoryBlobs
from squall.cluster.protocol.messages import (
    DRAINED,
    HeldRecord,
    Registered,
    RegisterWorker,
    SessionAnswer,
    SessionPush,
    WorkerLoad,
)
from squall.cluster.wire.blob_transfer import BlobFetcher, serve_blobs
from squall.cluster.wire.counters import wire_metrics
from squall.cluster.wire.errors import NotSent, OutcomeUnknown, RemoteError
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.links.switchboard import Switchboard, make_keyring
from squall.cluster.worker.attempts import Attempts
from squall.cluster.worker.data_directory import LeftRecord, WorkerDirectory
from squall.cluster.worker.deliveries import Deliveries
from squall.cluster.worker.manager_links import ManagerLinks, addresses_in, admit_all
from squall.cluster.worker.membership import WorkerMembership
from squall.cluster.worker.session import WorkerSession
from squall.cluster.worker.settings import WorkerSettings
from squall.cluster.worker.share_host import Machine, ShareHost
from squall.engine.process.machine_usage import MachineUsage
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.metrics import Registry
from squall.runtime.metrics_http import MetricsServer, Probes
from squall.runtime.tasks import TaskRunner

TURN_MIN_S = 0.01
"""The least pause between two sessions: an answer that only says "ask again" must not keep both
sides busy."""
TICK_S = 0.1
OFFER_S = 1.0
NAME_WAIT = 5.0
"""Session intervals for which a worker waits for its name: a dead one loses it after three."""
LOG_AGAIN_S = 10.0
"""There are many tries per second; the same unreachable manager is logged once per this
interval."""
SAME_INTERVAL = 0.1
"""By which part the intervals of sessions and telemetry may differ and still count as one."""


class WorkerRefused(SquallError):
    """The managers refuse this worker; the text says why."""


class WorkerNode:
    """One boot of a worker. `run` returns after `stop` was set and the shares have ended."""

    def __init__(
        self,
        runtime: Runtime,
        host: ShareHost,
        machine: Machine,
        settings: WorkerSettings,
        *,
        tasks: TaskRunner | None = None,
        log: Log | None = None,
        usage: Callable[[], MachineUsage] = MachineUsage,
    ) -> None:
        """`usage` reads how busy the machine is; without it the managers do not learn it."""
        self._runtime = runtime
        self._host = host
        self._machine = machine
        self._settings = settings
        self._owns_tasks = tasks is None
        self._tasks = tasks or TaskRunner(runtime.clock, runtime.random)
        self._log = (log or Log(MemorySink(), runtime.clock)).bind(node=runtime.node)
        self._wakes, self._stop = asyncio.Event(), asyncio.Event()
        self._usage = usage
        # When it ticked last, and the longest delay of a tick since the last session.
        self._ticked_at, self._lag_s = inf, 0.0
        self._registered = False
        # Whether a manager answered the last request.
        self._is_reached = False
        # Until when a refusal because of a taken name is not final; None: there was none.
        self._name_wait_ends: float | None = None
        # Unreachable managers that were logged, and when.
        self._logged_unreachable: dict[str, float] = {}
        # When the last round of telemetry began, and whether it is under way.
        self._reported_at, self._reports = -inf, False
        # Former boots of this worker whose processes are certainly dead.
        self._dead_boots: tuple[str, ...] = ()
        self._left: list[LeftRecord] = []
        self._blobs = MemoryBlobs()
        self._board = self._switchboard()
        self._links = ManagerLinks(
            self._board, settings.managers, longest_s=lambda: self.session.interval_s
        )
        chunk_s = settings.timeouts.chunk_s
        fetcher = BlobFetcher(
            self._blobs, self._board.counters, self._tasks, chunk_timeout_s=chunk_s
        )
        self.session = _session(runtime, settings, fetcher)
        self._directory = WorkerDirectory(runtime.disk, self._log)
        self._attempts = Attempts(
            runtime,
            self._tasks,
            self._log,
            self.session,
            host,
            self._directory,
            self._blobs,
            fetcher,
            holders=lambda: [self._links.current.bulk],
            wake=self._wakes.set,
            register=self._register_again,
            offer=self._offer_now,
            send_part=lambda key: self._deliveries.send_part(key),
        )
        self._deliveries = Deliveries(
            runtime, self._links, self.session, self._attempts, settings.timeouts
        )
        self.registry = Registry()
        self._add_metrics()
        self._membership = self._take_part() if settings.membership else None

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Runs until `stop`. Raises `SquallError` if the managers refuse this worker, or its data
        directory is in use."""
        self._stop = stop or self._stop
        try:
            lock = self._runtime.disk.lock()
        except BlockingIOError:
            raise SquallError(
                "another worker uses this data directory: give each its own"
            ) from None
        metrics = MetricsServer(self._runtime.network, self.registry, self._probes())
        try:
            await self._open()
            self._host.attach(self._attempts)
            if self._settings.metrics is not None:
                await metrics.start(self._settings.metrics)
            self._start_tasks()
            await self._serve()
            await self._end()
        finally:
            await metrics.close()
            await self._host.close()
            if self._membership is not None:
                await self._membership.close()
            await self._links.close()
            lock.release()
            if self._owns_tasks:
                await self._tasks.shutdown(1.0)

    # Start.

    def _take_part(self) -> WorkerMembership:
        return WorkerMembership(
            self._runtime,
            self._board,
            self._links,
            self.session,
            self._log,
            self.registry,
            self._settings.cores,
        )

    async def _open(self) -> None:
        """Ends what a former boot left running and adopts its records (R6)."""
        runtime = self._runtime
        node, boot = str(runtime.node), str(runtime.boot)
        self._dead_boots = await self._directory.open(
            node, boot, self._machine, dead_by=self._former_dead_by
        )
        await self._links.learn(addresses_in(await self._directory.managers()))
        self._left = await self._directory.left()
        for left in self._left:
            self._blobs.put(left.data)
            if left.complete:
                self.session.adopt(left.key, left.digest, len(left.data))
                self._attempts.adopt(left.key, left.digest, len(left.data))
        self._log.info(
            "worker_starts",
            boot=boot,
            cores=self._settings.cores,
            dead_boots=len(self._dead_boots),
            records=len(self._left),
        )

    def _start_tasks(self) -> None:
        tasks = self._tasks
        tasks.every("ladders", TICK_S, self._tick, jitter=0.0)
        tasks.start("telemetry", self._report(), essential=True)
        tasks.every("offers", OFFER_S, self._deliveries.offer_records)

    def _tick(self) -> None:
        now = self._runtime.clock.now()
        self._lag_s = max(self._lag_s, now - self._ticked_at - TICK_S)
        self._ticked_at = now
        self._attempts.perform(self.session.tick(now))

    def _load(self) -> WorkerLoad:
        cpu, memory = self._usage()
        lag_s, self._lag_s = self._lag_s, 0.0
        return WorkerLoad(cpu=cpu, memory=memory, lag_s=round(lag_s, 4))

    async def _report(self) -> None:
        """Sends telemetry. Where sessions have the same interval it goes along with them, so that
        a manager of thousands has one arrival from each instead of two. Without a session for
        a while it goes by itself: the leader of the job may be another manager."""
        clock = self._runtime.clock
        while True:
            interval_s = self.session.telemetry_interval_s
            await clock.sleep(interval_s)
            if (
                not self._telemetry_joins_session
                or clock.now() - self._reported_at >= 1.5 * interval_s
            ):
                await self._send_telemetry()

    @property
    def _telemetry_joins_session(self) -> bool:
        interval_s = self.session.interval_s
        return abs(interval_s - self.session.telemetry_interval_s) <= SAME_INTERVAL * interval_s

    async def _send_telemetry(self) -> None:
        self._reported_at, self._reports = self._runtime.clock.now(), True
        try:
            await self._deliveries.send_telemetry()
        finally:
            self._reports = False

    # The session.

    async def _serve(self) -> None:
        while not self._stop.is_set():
            waits_s = await self._turn()
            await self._rest(waits_s, self._stop)

    async def _turn(self) -> float:
        """One exchange with the current manager; returns the wait before the next."""
        if not self._registered:
            for manager, why in (await self._links.reach_any()).items():
                self._log_unreachable(manager, why)
        peer = self._links.current
        try:
            if not self._registered and not await self._register(peer):
                await self._runtime.clock.sleep(self.session.interval_s)
                return 0.0
            await self._exchange(peer)
        except (NotSent, OutcomeUnknown, RemoteError) as error:
            self._is_reached = False
            self._log_unreachable(self._links.shown, error)
            await self._runtime.clock.sleep(self._links.failed(error))
            return 0.0
        self._links.worked()
        self._is_reached = True
        self._logged_unreachable.clear()
        return self.session.interval_s if self._registered else 0.0

    def _log_unreachable(self, manager: str, error: Exception) -> None:
        now = self._runtime.clock.now()
        if now - self._logged_unreachable.get(manager, -inf) >= LOG_AGAIN_S:
            self._logged_unreachable[manager] = now
            self._log.warning("manager_unreachable", manager=manager, error=str(error))

    async def _register(self, peer: Peer) -> bool:
        """Returns False if another boot of this name was heard a moment ago: ask again soon."""
        for left in self._left:
            await self._deliveries.offer(left.digest, len(left.data))
        runtime, settings = self._runtime, self._settings
        message = RegisterWorker(
            node=str(runtime.node),
            boot=str(runtime.boot),
            datacenter=settings.datacenter,
            cores=settings.cores,
            pid=self._machine.pid,
            host=self._machine.host,
            python=settings.python,
            version=settings.version,
            descriptors=settings.descriptors,
            dead_boots=self._dead_boots,
            former_ended_ago_s=self._former_ended_ago_s(),
            held=[
                HeldRecord(left.key, left.digest, len(left.data), left.complete)
                for left in self._left
            ],
            relay=self._links.relays,
        )
        answer: Registered = await peer.request(message, settings.timeouts.register_s)
        if answer.name_in_use and self._may_wait_for_name():
            return False
        if answer.refused:
            raise WorkerRefused(f"{self._links.shown} refuses this worker: {answer.refused}")
        self._registered = True
        self.session.interval_s = answer.interval_s
        self._log.info("worker_registered", manager=self._links.shown, lease_s=answer.lease_s)
        await self._forget_cuts()
        return True

    def _former_end(self) -> float | None:
        """When the former boot ended by CLOCK_BOOTTIME, if the launcher saw it. The process that it
        saw must be the one of the directory: another one, without this launcher, may have lived
        longer."""
        former = self._settings.former
        return former.ended_at if former and former.pid == self._directory.dead_pid else None

    def _former_dead_by(self) -> float:
        """By when its processes were dead: they have just been reaped, if the launcher says no
        more."""
        ended_at, now = self._former_end(), self._runtime.clock.boot_time()
        return now if ended_at is None else min(ended_at, now)

    def _former_ended_ago_s(self) -> float | None:
        ended_at = self._former_end()
        return None if ended_at is None else max(self._runtime.clock.boot_time() - ended_at, 0.0)

    def _may_wait_for_name(self) -> bool:
        """The other boot of this name may just have died, on another machine or with another
        directory. The managers give its name away a few session intervals later."""
        now = self._runtime.clock.now()
        if self._name_wait_ends is None:
            self._name_wait_ends = now + NAME_WAIT * self.session.interval_s
        return now < self._name_wait_ends

    async def _forget_cuts(self) -> None:
        """Drops cut records, which the log has now. Complete ones stay until they are freed."""
        cuts = [left for left in self._left if not left.complete]
        self._left = []
        if cuts:
            for left in cuts:
                self._blobs.drop(left.digest)
            await self._directory.forget_cuts()

    def _register_again(self) -> None:
        self._registered = False
        self._wakes.set()

    async def _exchange(self, peer: Peer) -> None:
        clock = self._runtime.clock
        self._wakes.clear()
        if self._telemetry_joins_session and not self._reports and self._registered:
            # Its task runs in the turn before ours, so both messages leave in one send.
            self._tasks.start("telemetry of a session", self._send_telemetry())
            await clock.sleep(0.0)
        request = self.session.request(clock.now(), clock.boot_time(), self._load())
        if self._links.relays:
            request = msgspec.structs.replace(request, relay=True)
        request_s = self._settings.timeouts.request_s
        answer = await peer.request(request, max(request_s, 2.0 * self.session.interval_s))
        if isinstance(answer, SessionAnswer):
            self._attempts.perform(self.session.answer(answer, clock.now()))
            if answer.managers and answer.epoch != self.session.managers_epoch:
                self.session.managers_epoch = answer.epoch
                await self._links.learn(addresses_in(answer.managers))
                await self._directory.store_managers(answer.managers)
            if self._membership is not None:
                await self._membership.answered(answer.membership)

    def _offer_now(self) -> None:
        self._tasks.start("offer", self._deliveries.offer_records())

    def _pushed(self, message: SessionPush, incoming: Incoming) -> None:
        self._wakes.set()

    async def _rest(self, seconds: float, stop: asyncio.Event) -> None:
        """Waits until the interval is over, the session asks for another turn, or `stop` is
        set."""
        await self._runtime.clock.sleep(TURN_MIN_S)
        if seconds <= 0.0 or self._wakes.is_set():
            return
        waiting = self._tasks.start("wake", self._wakes.wait())
        stopping = self._tasks.start("stop", stop.wait())
        try:
            tasks = [token.task for token in (waiting, stopping) if token.task is not None]
            if tasks:
                await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._tasks.cancel(waiting)
            self._tasks.cancel(stopping)

    # End.

    async def _end(self) -> None:
        """Takes no new work. Running shares end or are continued by other workers within the time
        of the drain; the others are stopped then. Delivers the records, as far as the time
        allows."""
        clock = self._runtime.clock
        until = self.session.drains_until = clock.now() + self._settings.drain_s
        self._log.info("worker_drains", live=self.session.live, within_s=self._settings.drain_s)
        while self.session.live and clock.now() < until:
            waits_s = await self._last_turn(until)
            await self._rest(min(waits_s, max(until - clock.now(), 0.0)), asyncio.Event())
        if self._membership is not None:
            self._membership.leave()
        until = clock.now() + self._settings.deliver_s
        self._attempts.perform(self.session.stop_all(clock.now(), DRAINED))
        self._log.info("worker_stops", live=self.session.live, held=len(self.session.held))
        while self._is_needed() and clock.now() < until:
            await self._last_turn(until)
            await clock.sleep(min(0.1, self.session.interval_s))
        if self.session.held:
            self._log.warning("records_left", count=len(self.session.held))

    def _is_needed(self) -> bool:
        """The managers lack a record, or may still place a share here: without their word that
        they know of the drain, a share that they place now would be lost with this boot."""
        may_get_work = self._is_reached and self._registered and not self.session.drained
        return bool(self.session.held) or may_get_work

    async def _last_turn(self, until: float) -> float:
        try:
            async with asyncio.timeout(max(until - self._runtime.clock.now(), 0.01)):
                return await self._turn()
        except TimeoutError:
            return 0.0

    def _switchboard(self) -> Switchboard:
        runtime, settings = self._runtime, self._settings
        return Switchboard(
            runtime=runtime,
            keyring=make_keyring(runtime, settings.secrets, settings.cluster),
            admit=admit_all,
            tasks=self._tasks,
            handlers=self._handlers(),
            limits=settings.timeouts.limits,
            tls=settings.tls,
        )

    def _handlers(self) -> Handlers:
        handlers = Handlers()
        handlers.on(SessionPush, self._pushed)
        serve_blobs(handlers, self._blobs)
        return handlers

    # Metrics and probes.

    def _probes(self) -> Probes:
        return Probes(ready=lambda: "" if self._registered else "not registered with a manager")

    def _add_metrics(self) -> None:
        registry, session = self.registry, self.session
        wire_metrics(registry, self._board.counters)
        registry.gauge("squall_worker_cores", "Cores that this worker offers.").set(
            float(self._settings.cores)
        )
        registry.gauge("squall_worker_attempts", "Attempts that run here.").follow(
            lambda: float(session.live)
        )
        registry.gauge(
            "squall_worker_records", "Final records that no manager has acknowledged."
        ).follow(lambda: float(len(self._attempts.final_records())))


def _session(runtime: Runtime, settings: WorkerSettings, fetcher: BlobFetcher) -> WorkerSession:
    node, boot = str(runtime.node), str(runtime.boot)
    return WorkerSession(node, boot, settings.cores, settings.timers, lambda: fetcher.arrived)
