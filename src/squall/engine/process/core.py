"""A core process: one event loop that loads one file and runs the shares it is given.

The parent starts `python -m squall.engine.process.core INDEX FD [LEASE_FD NICENESS]` with one end
of a socket pair. The process ignores Ctrl-C (the parent decides) and ends at once when the
parent is gone: load without an owner must not continue. A worker's core also has a lease
(`lease.py`); when that ends, the core cuts all its shares and sends their last reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import perf_counter
from typing import Any

import uvloop

from squall.api.errors import AuthorError, ConfigError, ExitCode, SquallError
from squall.api.workflow import Workflow
from squall.clients.http import Exchange
from squall.engine.core_protocol import (
    Adjust,
    CoreRefused,
    Crashed,
    Ended,
    Exit,
    Go,
    Load,
    Loaded,
    OutputLine,
    Prepare,
    Ready,
    ShareSpec,
    Stop,
    ToParent,
    frame,
    receive_in_core,
)
from squall.engine.measure.author_output import OutputCapture, user_name
from squall.engine.measure.garbage_collector import GarbageCollector
from squall.engine.measure.loop_health import HealthMeter, LoopHeartbeat
from squall.engine.measure.watchdog import Watchdog
from squall.engine.plan.author_file import author_location, load_file, workflow_classes
from squall.engine.plan.imported_code import Code, imported_code
from squall.engine.plan.program import Program, build_program
from squall.engine.plan.url_workflow import url_workflow
from squall.engine.process.counter_file import CounterFile
from squall.engine.process.lease import CHECK_S, LeaseGuard, LeaseMemory
from squall.engine.process.requirements import check_python, check_requirements
from squall.engine.process.stack_signal import answer_with_stack
from squall.engine.process.system_limits import descriptor_budget, raise_descriptor_limit
from squall.engine.users.exchange_report import exchange_report
from squall.engine.users.http_settings import http_shared
from squall.engine.users.share import Share
from squall.stats.reports import Blocked

FOLD_S = 0.1
LEASE_ENDED = "lease ended"
PR_SET_PDEATHSIG = 1
# Set in a core process: `squall.run` refuses to run inside a file that is being loaded.
LOADING = "SQUALL_LOADING"


class CoreProcess:
    """Carries out the parent's messages; owns the program, shares, heartbeat and watchdog."""

    def __init__(
        self, index: int, send: Callable[[ToParent], None], lease: LeaseMemory | None = None
    ) -> None:
        self._index = index
        self._send = send
        self._program: Program | None = None
        self._load: Load | None = None
        self._shares: list[Share] = []
        self._counters: dict[Share, CounterFile] = {}
        self._run_began = 0.0
        loop = asyncio.get_running_loop()
        self._collector = GarbageCollector()
        self._watchdog: Watchdog | None = None
        self._meter = HealthMeter(
            index, gc_max_s=self._collector.take_max_s, blocked=self._take_blocked
        )
        self._heartbeat = LoopHeartbeat(loop, on_beat=self._meter.beat)
        self._loop = loop
        self._thread = threading.get_ident()
        self._output = OutputCapture(self._on_line, user_name)
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections = 0
        # Connections at which another freeze is worth its pass; 0 before the first.
        self._frozen_at = 0
        self._stop: Stop | None = None
        self._health_at = 0.0
        self._adjust: Adjust | None = None
        self._go_received = False
        self._is_prepared = False
        self._shared = lease
        self._lease = None if lease is None else LeaseGuard(lease, self._on_lease_end)
        if self._lease is not None:
            self._heartbeat.every(CHECK_S, self._lease.check)

    async def handle(self, message: Load | Prepare | Go | Adjust | Stop) -> None:
        match message:
            case Load():
                self._on_load(message)
            case Prepare():
                self._stop = None
                self._go_received = False
                self._spawn(self._prepare(message.shares, message.counters))
            case Go():
                if not self._go_received:
                    self._go(message)
            case Adjust():
                self._adjust = message
                for share in self._shares if self._go_received else ():
                    share.adjust(message)
            case Stop():
                self._stop = message
                for share in self._shares:
                    share.stop(now=message.now)

    def _on_line(self, prefix: str, text: str) -> None:
        """Sends a line that the author printed, from any thread. Only the loop's thread may write
        to the stream to the parent."""
        if threading.get_ident() == self._thread:
            self._send(OutputLine(prefix, text))
        else:
            self._loop.call_soon_threadsafe(self._send, OutputLine(prefix, text))

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Reports a crash if a callback of the engine raised; logs the error of a task or
        future that the author left behind."""
        error = context.get("exception")
        if isinstance(error, Exception) and not context.keys() & {"task", "future"}:
            self._send(Crashed("".join(traceback.format_exception(error))))
        else:
            loop.default_exception_handler(context)

    def _on_lease_end(self) -> None:
        """Cuts every share, including those in preparation, and lets them send their last
        reports."""
        self._stop = Stop(now=True)
        for share in list(self._shares):
            share.cut(LEASE_ENDED)
        if self._is_prepared and not self._go_received:
            self._go_nowhere()

    def _go_nowhere(self) -> None:
        """Starts shares that were cut before their Go, so that they end and report."""
        now = perf_counter()
        self._go(Go(now, self._run_began or now))

    # Loading.

    def _on_load(self, message: Load) -> None:
        self._load = message
        options = message.options
        if message.process:
            self._meter.process = message.process
        os.environ.update(options.env)
        os.environ.update(options.secrets)
        os.environ[LOADING] = "1"
        for entry in message.search_path:
            if entry not in sys.path:
                sys.path.append(entry)
        self._output.install()
        raise_descriptor_limit()
        try:
            check_python(message.python)
            check_requirements(message.requirements)
            if options.url:
                classes: list[type[Workflow]] = [url_workflow(options)]
                base_dir, shown = Path.cwd(), options.url
            else:
                module = load_file(Path(message.path), options.file)
                classes = workflow_classes(module, Workflow)
                base_dir, shown = Path(message.path).parent, options.file
            self._output.attach_logging()
            self._program = build_program(classes, shown, base_dir, options)
        except SquallError as error:
            self._send(CoreRefused(str(error), int(error.exit_code)))
            return
        code = imported_code(Path(message.path)) if message.imports and message.path else Code()
        self._send(
            Loaded(self._program.manifest, descriptor_budget(), code.modules, code.requirements)
        )

    # One phase.

    async def _prepare(self, specs: list[ShareSpec], counters: list[str]) -> None:
        self._collector.start()
        self._is_prepared = False
        self._shares = []
        shares = [self._make_share(spec) for spec in specs]
        paths = zip(shares, counters, strict=True) if counters else ()
        self._counters = {share: CounterFile(path) for share, path in paths}
        await asyncio.gather(*(self._prepare_share(share) for share in shares))
        self._collector.freeze_prepared()
        self._heartbeat.start()
        self._is_prepared = True
        self._send(Ready())
        if self._lease is not None and self._lease.ended:
            self._go_nowhere()

    async def _prepare_share(self, share: Share) -> None:
        self._shares.append(share)
        if self._stop is not None:
            share.stop(now=self._stop.now)
        # Sweeps enforce timeouts, and start actions make calls before the clock starts.
        sweeper = self._heartbeat.every(FOLD_S, lambda: share.http.sweep(perf_counter()))
        self._heartbeat.start()
        try:
            await share.prepare()
        except ConfigError as error:
            self._drop(share, CoreRefused(str(error), int(ExitCode.CONFIG), share.plan.name))
        except Exception as error:
            where = author_location(error).partition(" in ")[0] or share.plan.file
            text = f"{where}  {share.plan.name}: {type(error).__name__}: {error}"
            self._drop(share, CoreRefused(text, int(AuthorError.exit_code), share.plan.name))
        finally:
            sweeper()

    def _drop(self, share: Share, refusal: CoreRefused) -> None:
        self._shares.remove(share)
        self._send(refusal)

    def _make_share(self, spec: ShareSpec) -> Share:
        assert self._program is not None, "Prepare follows Load"
        assert self._load is not None, "Prepare follows Load"
        plan = self._program.plans[spec.workflow]
        options = self._load.options
        http = http_shared(plan, options, self._program.base_dir)
        if options.once:
            name = spec.workflow

            def told(exchange: Exchange) -> None:
                self._send(exchange_report(name, exchange))

            http.on_exchange = told
        if self._lease is not None:
            http.limit, http.allows = self._lease.limit, self._lease.allows
        share = Share(
            self._program,
            spec,
            http,
            on_report=self._send,
            on_error=self._send,
            paced=self._lease is not None,
        )
        if options.once:
            share.on_exchange = self._send
        return share

    def _go(self, message: Go) -> None:
        self._go_received = True
        self._run_began = message.run_began
        self._health_at = message.at + message.joined_s
        self._watchdog = Watchdog(
            asyncio.get_running_loop(),
            self._heartbeat,
            Workflow,
            root=self._root(),
            on_held=None if self._shared is None else self._shared.holds,
        )
        self._watchdog.start()
        self._publish_beat()
        self._meter.restart()
        ends = [
            self._heartbeat.every(FOLD_S, self._fold),
            self._heartbeat.every(self._heartbeat.interval_s, self._beat),
        ]
        for share in self._shares:
            if self._adjust is not None:
                share.adjust(self._adjust)
            share.go(message.at, message.joined_s)
            if self._stop is not None:
                share.stop(now=self._stop.now)
        self._spawn(self._finish(list(self._shares), ends))

    async def _finish(self, shares: list[Share], ends: list[Callable[[], None]]) -> None:
        await asyncio.gather(*(self._end(share) for share in shares))
        for end in ends:
            end()
        self._report_health(perf_counter())
        if self._watchdog is not None:
            self._watchdog.stop()
        self._heartbeat.stop()
        self._shares = []

    async def _end(self, share: Share) -> None:
        ended: Ended = await share.wait()
        self._shares.remove(share)
        self._send(ended)

    # Heartbeat.

    def _fold(self) -> None:
        for share in self._shares:
            share.fold()
            if (file := self._counters.get(share)) is not None:
                file.write(share.recorder.counters(perf_counter() - share.recorder.epoch))
        self._collector.tick(perf_counter())
        self._output.tick()

    def _beat(self) -> None:
        now = perf_counter()
        for share in self._shares:
            share.beat(now)
        self._publish_beat()
        if now - self._health_at >= 1.0:
            # After a long block: one report for it, not one for each second that was missed.
            self._health_at = max(self._health_at + 1.0, now - 1.0)
            self._report_health(now)
            self._collector.users = sum(share.user_count for share in self._shares)
            self._freeze_when_ramped()

    def _publish_beat(self) -> None:
        if self._shared is not None:
            self._shared.beats(self._heartbeat.last_beat)

    def _report_health(self, now: float) -> None:
        self._send(self._meter.take(max(0.0, now - self._run_began)))

    def _freeze_when_ramped(self) -> None:
        """Freezes the collector's view once connections grow by less than 1 % a second: the objects
        that exist then stay, and scanning them again costs latency."""
        connections = sum(share.http.counters.connections for share in self._shares)
        grown = connections - self._connections
        if not connections or connections < self._frozen_at:
            return
        if grown * 100 <= connections:
            self._collector.freeze_ramped()
            self._frozen_at = connections + connections // 2
        self._connections = connections

    def _take_blocked(self) -> list[Blocked]:
        return self._watchdog.take() if self._watchdog is not None else []

    def _root(self) -> Path:
        assert self._program is not None, "Go follows Load"
        return self._program.base_dir

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._send(Crashed("".join(traceback.format_exception(error))))


def end_at_once() -> None:
    """Ends the process without clean-up: load without an owner must stop, whatever the
    author's code is doing."""
    os._exit(ExitCode.INTERNAL)


async def serve(
    index: int,
    descriptor: int,
    lease: LeaseMemory | None,
    orphaned: Callable[[], object] = end_at_once,
) -> None:
    """Handles messages until the parent sends Exit. Calls `orphaned` if the parent is gone."""
    connection = socket.socket(fileno=descriptor)
    reader, writer = await asyncio.open_connection(sock=connection)
    core = CoreProcess(index, lambda message: writer.write(frame(message)), lease)
    asyncio.get_running_loop().set_exception_handler(core.on_loop_error)
    while True:
        message = await receive_in_core(reader)
        if message is None:
            orphaned()
            return
        if isinstance(message, Exit):
            await writer.drain()
            writer.close()
            return
        try:
            await core.handle(message)
        except Exception:
            writer.write(frame(Crashed(traceback.format_exc())))


def die_with_parent() -> None:
    """Asks Linux to kill this process when its parent ends, even while a step blocks the
    event loop and the end of the parent's stream goes unread."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have ended before the request took effect.
    if os.getppid() != parent:
        os._exit(ExitCode.INTERNAL)


def main() -> None:
    die_with_parent()
    # A terminal signals the whole process group; the parent decides what that means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    index, descriptor = int(sys.argv[1]), int(sys.argv[2])
    lease = None
    if len(sys.argv) > 3:
        lease = LeaseMemory(int(sys.argv[3]))
        os.nice(int(sys.argv[4]))
        answer_with_stack(lease.descriptor)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(index, descriptor, lease))
    # Not `sys.exit`: the author's threads and atexit hooks must not delay the end of the run.
    os._exit(0)


if __name__ == "__main__":
    main()
