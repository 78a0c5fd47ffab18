"""The worker: a session with the primary, and everything that follows from it.

It registers this boot, then tells every interval what it runs and holds, and does what the
answer says. Everything that could be lost is told again. When it is asked to stop it ends
its shares, delivers their records within a bound, and leaves the rest in the outbox for
the next boot.

It composes; decisions are in `session`, work in `attempts` and `deliveries`.
"""

from __future__ import annotations

import asyncio
from math import inf

import msgspec

from squall.api.errors import SquallError
from squall.nodes.memory_blobs import MemoryBlobs
from squall.nodes.messages import (
    HeldRecord,
    Registered,
    RegisterWorker,
    SessionAnswer,
    SessionPush,
)
from squall.nodes.worker.attempts import Attempts
from squall.nodes.worker.deliveries import Deliveries
from squall.nodes.worker.directory import Left, WorkerDirectory
from squall.nodes.worker.host import Machine, ShareHost
from squall.nodes.worker.links import ManagerLinks, admit
from squall.nodes.worker.session import WorkerSession
from squall.nodes.worker.settings import WorkerSettings
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.metrics import Registry
from squall.runtime.metrics_http import MetricsServer, Probes
from squall.runtime.tasks import TaskRunner
from squall.wire.blobs import BlobFetcher, serve_blobs
from squall.wire.dispatch import Handlers, Incoming
from squall.wire.errors import NotSent, OutcomeUnknown, RemoteError
from squall.wire.peer import Peer
from squall.wire.switchboard import Switchboard, make_keyring

BREATH_S = 0.01
TICK_S = 0.1
FLUSH_S = 1.0
OFFER_S = 1.0
TELL_AGAIN_S = 10.0
ALIKE = 0.1
"""By which part the intervals of sessions and telemetry may differ and be one."""


class WorkerRefused(SquallError):
    """The managers do not take this worker; the line says why."""


class WorkerNode:
    """One boot. `run` returns after `stop` was set and everything is in order."""

    def __init__(
        self,
        runtime: Runtime,
        host: ShareHost,
        machine: Machine,
        settings: WorkerSettings,
        *,
        tasks: TaskRunner | None = None,
        log: Log | None = None,
    ) -> None:
        self._runtime = runtime
        self._host = host
        self._machine = machine
        self._settings = settings
        self._owns_tasks = tasks is None
        self._tasks = tasks or TaskRunner(runtime.clock, runtime.random)
        self._log = (log or Log(MemorySink(), runtime.clock)).bind(node=runtime.node)
        self._wakes = asyncio.Event()
        self._stop = asyncio.Event()
        self._registered = False
        self._told_unreachable: dict[str, float] = {}
        """When it was said of which manager."""
        self._told_at = -inf
        self._tells = False
        """A round of telemetry is under way."""
        self._proven = False
        self._left: list[Left] = []
        self._blobs = MemoryBlobs()
        handlers = Handlers()
        handlers.on(SessionPush, self._pushed)
        serve_blobs(handlers, self._blobs)
        self._board = Switchboard(
            runtime=runtime,
            keyring=make_keyring(runtime, settings.secrets, settings.cluster),
            admit=admit,
            tasks=self._tasks,
            handlers=handlers,
            limits=settings.patience.limits,
        )
        self._links = ManagerLinks(
            self._board, settings.managers, longest_s=lambda: self.session.interval_s
        )
        self.session = _session(runtime, settings, self._blobs)
        self._directory = WorkerDirectory(runtime.disk, self._log)
        self._attempts = Attempts(
            runtime,
            self._tasks,
            self._log,
            self.session,
            host,
            self._directory,
            self._blobs,
            BlobFetcher(
                self._blobs,
                self._board.counters,
                self._tasks,
                chunk_timeout_s=settings.patience.chunk_s,
            ),
            holders=lambda: [self._links.current.bulk],
            wake=self._wakes.set,
            register=self._register_again,
            offer=self._offer_now,
            send_part=lambda key: self._deliveries.send_part(key),
        )
        self._deliveries = Deliveries(
            runtime, self._links, self.session, self._attempts, settings.patience
        )
        self.registry = Registry()
        self._add_metrics()

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Until `stop`. `SquallError` if this worker cannot be one."""
        self._stop = stop or self._stop
        try:
            lock = self._runtime.disk.lock()
        except BlockingIOError:
            raise SquallError("another worker uses this data directory") from None
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
            await self._links.close()
            lock.release()
            if self._owns_tasks:
                await self._tasks.shutdown(1.0)

    # Start.

    async def _open(self) -> None:
        """Nothing of a former boot runs when this returns, or it is called unproven."""
        runtime = self._runtime
        node, boot = str(runtime.node), str(runtime.boot)
        self._proven = await self._directory.open(node, boot, self._machine)
        self._left = await self._directory.left()
        for left in self._left:
            self._blobs.put(left.data)
            if left.complete:
                self.session.adopt(left.key, left.digest, len(left.data))
                self._attempts.records[left.key] = (left.digest, len(left.data))
        self._log.info(
            "worker_starts",
            boot=boot,
            cores=self._settings.cores,
            proven=self._proven,
            records=len(self._left),
        )

    def _start_tasks(self) -> None:
        tasks = self._tasks
        tasks.every("ladders", TICK_S, self._tick, jitter=0.0)
        tasks.every("live records", FLUSH_S, self._attempts.flush)
        tasks.start("telemetry", self._tell(), essential=True)
        tasks.every("offers", OFFER_S, self._deliveries.offer_records)

    def _tick(self) -> None:
        self._attempts.perform(self.session.tick(self._runtime.clock.now()))

    async def _tell(self) -> None:
        """Where sessions come as often, telemetry goes along with them: a manager of thousands
        then has one arrival from each instead of two. Without a session for a while it goes
        alone: another manager may lead the job."""
        clock = self._runtime.clock
        while True:
            interval_s = self.session.telemetry_interval_s
            await clock.sleep(interval_s)
            if not self._goes_along or clock.now() - self._told_at >= 1.5 * interval_s:
                await self._send_telemetry()

    @property
    def _goes_along(self) -> bool:
        interval_s = self.session.interval_s
        return abs(interval_s - self.session.telemetry_interval_s) <= ALIKE * interval_s

    async def _send_telemetry(self) -> None:
        self._told_at, self._tells = self._runtime.clock.now(), True
        try:
            await self._deliveries.send_telemetry()
        finally:
            self._tells = False

    # The session.

    async def _serve(self) -> None:
        while not self._stop.is_set():
            waits_s = await self._turn()
            await self._rest(waits_s)

    async def _turn(self) -> float:
        """One exchange with the manager that is asked; how long to wait for the next."""
        if not self._registered:
            for manager, why in (await self._links.reach_any()).items():
                self._tell_unreachable(manager, why)
        peer = self._links.current
        try:
            if not self._registered:
                await self._register(peer)
            await self._exchange(peer)
        except (NotSent, OutcomeUnknown, RemoteError) as error:
            self._tell_unreachable(self._links.shown, error)
            await self._runtime.clock.sleep(self._links.failed(error))
            return 0.0
        self._links.worked()
        self._told_unreachable.clear()
        return self.session.interval_s if self._registered else 0.0

    def _tell_unreachable(self, manager: str, error: Exception) -> None:
        """Of each manager at once, and then now and again: the tries are many a second."""
        now = self._runtime.clock.now()
        if now - self._told_unreachable.get(manager, -inf) >= TELL_AGAIN_S:
            self._told_unreachable[manager] = now
            self._log.warning("manager_unreachable", manager=manager, error=str(error))

    async def _register(self, peer: Peer) -> None:
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
            proven=self._proven,
            held=[
                HeldRecord(left.key, left.digest, len(left.data), left.complete)
                for left in self._left
            ],
            relay=self._links.relays,
        )
        answer: Registered = await peer.request(message, settings.patience.register_s)
        if answer.refused:
            raise WorkerRefused(f"{self._links.shown} does not take this worker: {answer.refused}")
        self._registered = True
        self.session.interval_s = answer.interval_s
        self._log.info("worker_registered", manager=self._links.shown, lease_s=answer.lease_s)
        await self._forget_cuts()

    async def _forget_cuts(self) -> None:
        """What is complete stays until it is freed; the cuts are in the log now."""
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
        if self._goes_along and not self._tells and self._registered:
            # It is posted in the turn that comes before ours, and both leave in one send.
            self._tasks.start("telemetry of a session", self._send_telemetry())
            await clock.sleep(0.0)
        request = self.session.request(clock.now(), clock.boot_time())
        if self._links.relays:
            request = msgspec.structs.replace(request, relay=True)
        request_s = self._settings.patience.request_s
        answer = await peer.request(request, max(request_s, 2.0 * self.session.interval_s))
        if isinstance(answer, SessionAnswer):
            self._attempts.perform(self.session.answer(answer, clock.now()))

    def _offer_now(self) -> None:
        self._tasks.start("offer", self._deliveries.offer_records())

    def _pushed(self, message: SessionPush, incoming: Incoming) -> None:
        self._wakes.set()

    async def _rest(self, seconds: float) -> None:
        """Until the interval is over, something is to be told, or the worker stops; never
        so short that an answer which only says "ask again" keeps both sides busy."""
        await self._runtime.clock.sleep(BREATH_S)
        if seconds <= 0.0 or self._wakes.is_set():
            return
        waiting = self._tasks.start("wake", self._wakes.wait())
        stopping = self._tasks.start("stop", self._stop.wait())
        try:
            tasks = [token.task for token in (waiting, stopping) if token.task is not None]
            if tasks:
                await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._tasks.cancel(waiting)
            self._tasks.cancel(stopping)

    # End.

    async def _end(self) -> None:
        """Shares are stopped and their records delivered, as far as the time allows."""
        clock = self._runtime.clock
        until = clock.now() + self._settings.deliver_s
        self.session.draining = True
        self._attempts.perform(self.session.stop_all(clock.now(), "worker stopped"))
        self._log.info("worker_stops", live=self.session.live, held=len(self.session.held))
        while self.session.held and clock.now() < until:
            try:
                async with asyncio.timeout(max(until - clock.now(), 0.01)):
                    await self._turn()
            except TimeoutError:
                break
            await clock.sleep(min(0.1, self.session.interval_s))
        if self.session.held:
            self._log.warning("records_left", count=len(self.session.held))

    # What others may look at.

    def _probes(self) -> Probes:
        return Probes(ready=lambda: "" if self._registered else "not registered with a manager")

    def _add_metrics(self) -> None:
        registry, session = self.registry, self.session
        registry.gauge("squall_worker_cores", "Cores that this worker offers.").set(
            float(self._settings.cores)
        )
        registry.gauge("squall_worker_attempts", "Attempts that run here.").follow(
            lambda: float(session.live)
        )
        registry.gauge("squall_worker_records", "Final records that nobody acknowledged.").follow(
            lambda: float(len(self._attempts.records))
        )


def _session(runtime: Runtime, settings: WorkerSettings, blobs: MemoryBlobs) -> WorkerSession:
    node, boot = str(runtime.node), str(runtime.boot)
    return WorkerSession(node, boot, settings.cores, settings.timers, lambda: blobs.arrived)
