"""A core process: one event loop that loads one file and runs the shares it is given.

The parent starts `python -m squall.engine.process.core INDEX FD [LEASE_FD NICENESS]` with one end
of a socket pair. The process ignores Ctrl-C (the parent decides) and ends at once when the
parent is gone: load without an owner must not continue. Each share of a worker also has a lease
(`lease.py`); when that ends, the core cuts the share and sends its last report.

Shares come, begin and end one by one (`core_share.py`); they have the event loop, the program and
the fate of the process in common.
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

from squall.api.errors import AuthorError, ConfigError, ExitCode, SquallError
from squall.api.workflow import Workflow
from squall.clients.calls.arrivals import ArrivalLoop
from squall.clients.http import Exchange
from squall.engine.core_protocol import (
    Abandon,
    AdjustShare,
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
    ShareName,
    ShareSpec,
    Stop,
    ToParent,
    frame,
    receive_in_core,
)
from squall.engine.measure.author_output import OutputCapture, user_name
from squall.engine.measure.garbage_collector import GarbageCollector
from squall.engine.measure.loop_health import BEAT_INTERVAL_S, HealthMeter, LoopHeartbeat
from squall.engine.measure.unawaited_calls import UnawaitedCalls
from squall.engine.measure.watchdog import Watchdog
from squall.engine.plan.author_file import author_location, load_file, workflow_classes
from squall.engine.plan.imported_code import Code, imported_code
from squall.engine.plan.program import Program, build_program
from squall.engine.plan.url_workflow import url_workflow
from squall.engine.process.core_share import FOLD_S, CoreShare
from squall.engine.process.lease import CHECK_S, LeaseGuard, LeaseMemory
from squall.engine.process.requirements import check_python, check_requirements
from squall.engine.process.stack_signal import answer_with_stack
from squall.engine.process.system_limits import descriptor_budget, raise_descriptor_limit
from squall.engine.users.exchange_report import exchange_report
from squall.engine.users.http_settings import http_shared
from squall.engine.users.share import Share
from squall.stats.reports import Blocked

# As many shares look at every beat whether their second is over; more of them do it in turn.
EACH_BEAT_MAX = 8
PR_SET_PDEATHSIG = 1
# A heartbeat that never comes.
_NO_BEAT_S = 86_400.0
# Set in a core process: `squall.run` refuses to run inside a file that is being loaded.
LOADING = "SQUALL_LOADING"


class CoreProcess:
    """Carries out the parent's messages; owns the program, shares, heartbeat and watchdog."""

    def __init__(
        self,
        index: int,
        send: Callable[[ToParent], None],
        lease: LeaseMemory | None = None,
        *,
        by_clock: bool = True,
    ) -> None:
        """`by_clock` runs the heartbeat, the folds and the watchdog. Without them the instructions
        of a run depend on its iterations alone, and not on how long it took."""
        self._index = index
        self._by_clock = by_clock
        self._send = send
        self._program: Program | None = None
        self._load: Load | None = None
        # From their Prepare to their end or refusal.
        self._shares: list[CoreShare] = []
        # All that were ever made.
        self._made = 0
        # Prepare messages that are being carried out.
        self._preparing = 0
        self._run_began = 0.0
        loop = asyncio.get_running_loop()
        self._collector = GarbageCollector()
        self._watchdog: Watchdog | None = None
        self._meter = HealthMeter(
            index, gc_max_s=self._collector.take_max_s, blocked=self._take_blocked
        )
        interval_s = BEAT_INTERVAL_S if by_clock else _NO_BEAT_S
        self._heartbeat = LoopHeartbeat(loop, interval_s, on_beat=self._meter.beat)
        # What ends the periodic work of running shares; empty while none has begun.
        self._timers: list[Callable[[], None]] = []
        self._loop = loop
        self._thread = threading.get_ident()
        self._output = OutputCapture(self._on_line, user_name)
        self._unawaited = UnawaitedCalls()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections = 0
        # Connections at which another freeze is worth its pass; 0 before the first.
        self._frozen_at = 0
        self._health_at = 0.0
        self._memory = lease
        if lease is not None:
            self._heartbeat.every(CHECK_S, self._check_leases)

    async def handle(self, message: Load | Prepare | Go | AdjustShare | Stop | Abandon) -> None:
        match message:
            case Load():
                self._on_load(message)
            case Prepare():
                self._on_prepare(message)
            case Go():
                self._go(message)
            case AdjustShare():
                for each in self._named(message.share):
                    each.adjust(message.load)
            case Stop():
                for each in self._named(message.share):
                    each.stop(message)
            case Abandon():
                for each in self._named(message.share):
                    ended = each.give_up(message.why)
                    self._spawn(each.share.http.close())
                    self._finish(each, ended)

    def _named(self, share: ShareName | None) -> list[CoreShare]:
        return [each for each in self._shares if share is None or each.name == share]

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

    def _check_leases(self) -> None:
        """Those of shares that have begun are checked with their counters (`CoreShare.fold`)."""
        for each in list(self._shares):
            if not each.begun:
                each.check_lease()

    def _on_cut(self, each: CoreShare) -> None:
        """The lease of a share has ended. One that waits for its Go starts, so that it ends and
        reports."""
        if each.prepared and not each.begun:
            now = perf_counter()
            self._begin([each], Go(now, self._run_began or now))

    # Loading.

    def _on_load(self, message: Load) -> None:
        self._load = message
        options = message.options
        if message.process:
            self._meter.process = message.process
        os.environ.update(options.env)
        os.environ.update(options.secrets)
        os.environ[LOADING] = "1"
        # Modules of the working directory can be imported, but hide no others: they come last.
        for entry in (*message.search_path, os.getcwd()):
            if entry not in sys.path:
                sys.path.append(entry)
        self._output.install()
        self._unawaited.install()
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

    # Shares.

    def _on_prepare(self, message: Prepare) -> None:
        self._collector.start()
        counters = message.counters or [""] * len(message.shares)
        leases = message.leases or [None] * len(message.shares)
        rows = zip(message.shares, counters, leases, strict=True)
        made = [self._make_share(spec, path, slot) for spec, path, slot in rows]
        self._shares += made
        self._preparing += 1
        self._spawn(self._prepare(made))

    async def _prepare(self, shares: list[CoreShare]) -> None:
        await asyncio.gather(*(self._prepare_share(each) for each in shares))
        self._preparing -= 1
        if not self._preparing and not self._timers:
            # A full pass of the collector is long, so it is made once, and before the load.
            self._collector.freeze_prepared()
        self._heartbeat.start()
        ready = [each for each in shares if each in self._shares]
        self._send(Ready([each.name for each in ready]))
        for each in ready:
            each.prepared = True
            if each.lease_ended:
                self._on_cut(each)

    async def _prepare_share(self, each: CoreShare) -> None:
        share = each.share
        # Sweeps enforce timeouts, and start actions make calls before the clock starts.
        interval_s = self._heartbeat.interval_s
        sweeper = self._heartbeat.every(interval_s, lambda: share.http.sweep(perf_counter()))
        self._heartbeat.start()
        try:
            await share.prepare()
        except ConfigError as error:
            self._refuse(each, str(error), int(ExitCode.CONFIG))
        except Exception as error:
            where = author_location(error).partition(" in ")[0] or share.plan.file
            text = f"{where}  {share.plan.name}: {type(error).__name__}: {error}"
            self._refuse(each, text, int(AuthorError.exit_code))
        finally:
            sweeper()

    def _refuse(self, each: CoreShare, text: str, exit_code: int) -> None:
        if each in self._shares:
            each.close()
            self._remove(each)
            self._send(CoreRefused(text, exit_code, *each.name))

    def _remove(self, each: CoreShare) -> None:
        if each in self._shares:
            self._shares.remove(each)

    def _make_share(self, spec: ShareSpec, counters: str, slot: int | None) -> CoreShare:
        assert self._program is not None, "Prepare follows Load"
        assert self._load is not None, "Prepare follows Load"
        plan = self._program.plans[spec.workflow]
        options = self._load.options
        http = http_shared(plan, options, self._program.base_dir)
        if options.once:
            # Of a URL, method and address say all.
            name = "" if options.url else spec.workflow

            def told(exchange: Exchange) -> None:
                self._send(exchange_report(name, exchange))

            http.on_exchange = told
        lease = None
        if self._memory is not None and slot is not None:
            lease = LeaseGuard(self._memory, slot)
            http.limit, http.allows = lease.limit, lease.allows
        share = Share(
            self._program,
            spec,
            http,
            on_report=self._send,
            on_error=self._send,
            paced=lease is not None,
        )
        if options.once:
            share.on_exchange = self._send
        self._made += 1
        return CoreShare(share, lease, counters, self._made, self._on_cut)

    def _go(self, message: Go) -> None:
        chosen = self._named(message.share)
        self._begin([each for each in chosen if each.prepared and not each.begun], message)

    def _begin(self, shares: list[CoreShare], message: Go) -> None:
        if shares and not self._timers:
            self._start_timers(message)
        measured = self._measures
        for each in shares:
            each.go(message)
            each.ending = self._spawn(self._end(each))
        if self._measures and not measured:
            self._meter.restart()
            self._health_at = message.at + message.joined_s

    def _start_timers(self, message: Go) -> None:
        self._run_began = message.run_began
        self._watchdog = Watchdog(
            asyncio.get_running_loop(),
            self._heartbeat,
            Workflow,
            root=self._root(),
            on_held=None if self._memory is None else self._memory.holds,
        )
        if self._by_clock:
            self._watchdog.start()
        self._publish_beat()
        self._timers = [
            self._heartbeat.every(FOLD_S, self._keep_house),
            self._heartbeat.every(self._heartbeat.interval_s, self._beat),
        ]

    async def _end(self, each: CoreShare) -> None:
        ended = await each.wait()
        # Every share of the process names them; the result has each note once.
        ended.warnings += self._unawaited.notes
        self._finish(each, ended)

    def _finish(self, each: CoreShare, ended: Ended) -> None:
        measured = self._measures
        self._remove(each)
        self._send(ended)
        if measured and not self._measures:
            self._report_health(perf_counter())
        self._rest_if_idle()

    @property
    def _measures(self) -> bool:
        """Whether a late loop could spoil a number: a share of a test runs. The code of a set-up
        may block the loop, and its health is not reported."""
        return any(each.begun and each.share.plan.is_test for each in self._shares)

    def _rest_if_idle(self) -> None:
        """After the last share: nothing is measured until others begin."""
        if self._shares or not self._timers:
            return
        for end in self._timers:
            end()
        self._timers = []
        if self._watchdog is not None:
            self._watchdog.stop()
        self._heartbeat.stop()

    # Heartbeat.

    def _keep_house(self) -> None:
        self._collector.tick(perf_counter())
        self._output.tick()

    def _beat(self) -> None:
        now = perf_counter()
        shares = [each for each in self._shares if each.begun]
        for each in shares:
            has_turn = each.has_turn(now)
            if has_turn or len(shares) <= EACH_BEAT_MAX:
                each.beat(now)
            if has_turn:
                each.fold()
        self._publish_beat()
        if now - self._health_at >= 1.0:
            # After a long block: one report for it, not one for each second that was missed.
            self._health_at = max(self._health_at + 1.0, now - 1.0)
            if self._measures:
                self._report_health(now)
            self._collector.users = sum(each.share.user_count for each in self._shares)
            self._freeze_when_ramped()

    def _publish_beat(self) -> None:
        if self._memory is not None:
            self._memory.beats(self._heartbeat.last_beat)

    def _report_health(self, now: float) -> None:
        self._send(self._meter.take(max(0.0, now - self._run_began)))

    def _freeze_when_ramped(self) -> None:
        """Freezes the collector's view once connections grow by less than 1 % a second: the objects
        that exist then stay, and scanning them again costs latency."""
        connections = sum(each.share.http.total("connections") for each in self._shares)
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

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

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
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    index, descriptor = int(sys.argv[1]), int(sys.argv[2])
    lease = None
    if len(sys.argv) > 3:
        lease = LeaseMemory(int(sys.argv[3]))
        os.nice(int(sys.argv[4]))
        answer_with_stack(lease.descriptor)
    with asyncio.Runner(loop_factory=ArrivalLoop) as runner:
        runner.run(serve(index, descriptor, lease))
    # Not `sys.exit`: the author's threads and atexit hooks must not delay the end of the run.
    os._exit(0)


if __name__ == "__main__":
    main()
