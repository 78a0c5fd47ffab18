"""A core process: one loop, one file, the shares it is given.

`python -m squall.engine.core INDEX FD [LEASE_FD NICENESS]` is started by the parent, with
one end of a socket pair. It ignores Ctrl-C (the parent decides) and ends at once when the
parent is gone: load that nobody owns must not go on. A worker's core also has a lease
(`lease.py`): when that ends, all its shares are cut and their last reports sent.
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
from squall.api.quantities import parse_duration
from squall.api.workflow import Workflow
from squall.clients.http import Exchange, HTTPShared
from squall.engine.collector import Collector
from squall.engine.exchanges import exchange_report
from squall.engine.health import HealthMeter, Heartbeat
from squall.engine.imports import Code, imported_code
from squall.engine.lease import CHECK_S, LeaseGuard, LeaseMemory
from squall.engine.limits import descriptor_budget, raise_descriptor_limit
from squall.engine.loading import author_location, load_file, workflow_classes
from squall.engine.output import OutputCapture, user_name
from squall.engine.plan import attribute
from squall.engine.program import Program, build_program
from squall.engine.protocol import (
    Adjust,
    Crashed,
    Ended,
    Exit,
    Go,
    Line,
    Load,
    Loaded,
    Prepare,
    Ready,
    Refused,
    ShareSpec,
    Stop,
    ToParent,
    frame,
    receive_in_core,
)
from squall.engine.requirements import check_python, check_requirements
from squall.engine.share import Share
from squall.engine.stacks import answer_with_stack
from squall.engine.url_workflow import url_workflow
from squall.engine.watchdog import Watchdog
from squall.stats.reports import Blocked

FOLD_S = 0.1
LEASE_ENDED = "lease ended"
PR_SET_PDEATHSIG = 1
LOADING = "SQUALL_LOADING"
"""Set in a core process: `squall.run` inside a file that is being loaded is a mistake."""


class Core:
    """Owns the process: its program, shares, heartbeat, collector, watchdog."""

    def __init__(
        self, index: int, send: Callable[[ToParent], None], lease: LeaseMemory | None = None
    ) -> None:
        self._index = index
        self._send = send
        self._program: Program | None = None
        self._load: Load | None = None
        self._shares: list[Share] = []
        self._run_began = 0.0
        loop = asyncio.get_running_loop()
        self._collector = Collector()
        self._watchdog: Watchdog | None = None
        self._meter = HealthMeter(
            index, gc_max_s=self._collector.take_max_s, blocked=self._take_blocked
        )
        self._heart = Heartbeat(loop, on_beat=self._meter.beat)
        self._loop = loop
        self._thread = threading.get_ident()
        self._output = OutputCapture(self._on_line, user_name)
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections = 0
        self._frozen_at = 0
        """Connections at which another freeze is worth it; 0 before the first."""
        self._stop: Stop | None = None
        self._health_at = 0.0
        self._adjust: Adjust | None = None
        self._went = False
        self._is_prepared = False
        self._shared = lease
        self._lease = None if lease is None else LeaseGuard(lease, self._on_lease_end)
        if self._lease is not None:
            self._heart.every(CHECK_S, self._lease.check)

    async def handle(self, message: Load | Prepare | Go | Adjust | Stop) -> None:
        match message:
            case Load():
                self._on_load(message)
            case Prepare():
                self._stop = None
                self._went = False
                self._spawn(self._prepare(message.shares))
            case Go():
                if not self._went:
                    self._go(message)
            case Adjust():
                self._adjust = message
                for share in self._shares if self._went else ():
                    share.adjust(message)
            case Stop():
                self._stop = message
                for share in self._shares:
                    share.stop(now=message.now)

    def _on_line(self, prefix: str, text: str) -> None:
        """The author may print from any thread; the stream to the parent is the loop's."""
        if threading.get_ident() == self._thread:
            self._send(Line(prefix, text))
        else:
            self._loop.call_soon_threadsafe(self._send, Line(prefix, text))

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback of ours that raised is a bug and ends the process; a task or a
        future that the author left behind is only told."""
        error = context.get("exception")
        if isinstance(error, Exception) and not context.keys() & {"task", "future"}:
            self._send(Crashed("".join(traceback.format_exception(error))))
        else:
            loop.default_exception_handler(context)

    def _on_lease_end(self) -> None:
        """Everything is cut, also what is still prepared; its last words are sent."""
        self._stop = Stop(now=True)
        for share in list(self._shares):
            share.cut(LEASE_ENDED)
        if self._is_prepared and not self._went:
            self._go_nowhere()

    def _go_nowhere(self) -> None:
        """Shares that were cut before their Go end as if they had begun now."""
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
                classes: list[type[Workflow]] = [url_workflow(options.url)]
                base_dir, shown = Path.cwd(), options.url
            else:
                module = load_file(Path(message.path), options.file)
                classes = workflow_classes(module, Workflow)
                base_dir, shown = Path(message.path).parent, options.file
            self._output.attach_logging()
            self._program = build_program(classes, shown, base_dir, options)
        except SquallError as error:
            self._send(Refused(str(error), int(error.exit_code)))
            return
        code = imported_code(Path(message.path)) if message.imports and message.path else Code()
        self._send(
            Loaded(self._program.manifest, descriptor_budget(), code.modules, code.requirements)
        )

    # One phase.

    async def _prepare(self, specs: list[ShareSpec]) -> None:
        self._collector.start()
        self._is_prepared = False
        self._shares = []
        shares = [self._make_share(spec) for spec in specs]
        await asyncio.gather(*(self._prepare_share(share) for share in shares))
        self._collector.freeze_prepared()
        self._heart.start()
        self._is_prepared = True
        self._send(Ready())
        if self._lease is not None and self._lease.ended:
            self._go_nowhere()

    async def _prepare_share(self, share: Share) -> None:
        self._shares.append(share)
        if self._stop is not None:
            share.stop(now=self._stop.now)
        # Sweeps must run before the clock starts too: start actions have timeouts.
        sweeper = self._heart.every(FOLD_S, lambda: share.http.sweep(perf_counter()))
        self._heart.start()
        try:
            await share.prepare()
        except ConfigError as error:
            self._drop(share, Refused(str(error), int(ExitCode.CONFIG), share.plan.name))
        except Exception as error:
            where = author_location(error).partition(" in ")[0] or share.plan.file
            text = f"{where}  {share.plan.name}: {type(error).__name__}: {error}"
            self._drop(share, Refused(text, int(AuthorError.exit_code), share.plan.name))
        finally:
            sweeper()

    def _drop(self, share: Share, refusal: Refused) -> None:
        self._shares.remove(share)
        self._send(refusal)

    def _make_share(self, spec: ShareSpec) -> Share:
        assert self._program is not None, "Prepare follows Load"
        assert self._load is not None, "Prepare follows Load"
        plan = self._program.plans[spec.workflow]
        options = self._load.options
        workflow = plan.workflow
        http = HTTPShared(
            host=options.host or str(attribute(workflow, "host") or ""),
            resolve=_resolutions(options.resolve),
            verify=not options.insecure,
            ca_file=options.ca_file or None,
            timeout_s=parse_duration(attribute(workflow, "timeout") or "60s", "timeout"),
            connections=attribute(workflow, "connections") or "vu",
            session=attribute(workflow, "session") or "iteration",
            base_dir=self._program.base_dir,
        )
        if options.once:
            name = spec.workflow

            def told(exchange: Exchange) -> None:
                self._send(exchange_report(name, exchange))

            http.on_exchange = told
        if self._lease is not None:
            http.limit, http.allows = self._lease.limit, self._lease.allows
        return Share(
            self._program,
            spec,
            http,
            on_report=self._send,
            on_error=self._send,
            paced=self._lease is not None,
        )

    def _go(self, message: Go) -> None:
        self._went = True
        self._run_began = message.run_began
        self._health_at = message.at + message.joined_s
        self._watchdog = Watchdog(
            asyncio.get_running_loop(),
            self._heart,
            Workflow,
            root=self._root(),
            on_held=None if self._shared is None else self._shared.holds,
        )
        self._watchdog.start()
        self._tell_beat()
        self._meter.restart()
        ends = [
            self._heart.every(FOLD_S, self._fold),
            self._heart.every(self._heart.interval_s, self._beat),
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
        self._heart.stop()
        self._shares = []

    async def _end(self, share: Share) -> None:
        ended: Ended = await share.wait()
        self._shares.remove(share)
        self._send(ended)

    # Heartbeat.

    def _fold(self) -> None:
        for share in self._shares:
            share.fold()
        self._collector.tick(perf_counter())
        self._output.tick()

    def _beat(self) -> None:
        now = perf_counter()
        for share in self._shares:
            share.beat(now)
        self._tell_beat()
        if now - self._health_at >= 1.0:
            self._health_at = max(self._health_at + 1.0, now - 1.0)
            self._report_health(now)
            self._collector.users = sum(share.user_count for share in self._shares)
            self._freeze_when_ramped()

    def _tell_beat(self) -> None:
        if self._shared is not None:
            self._shared.beats(self._heart.last_beat)

    def _report_health(self, now: float) -> None:
        self._send(self._meter.take(max(0.0, now - self._run_began)))

    def _freeze_when_ramped(self) -> None:
        """Once connections stop growing, what exists stays: keep the collector off it."""
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


def _resolutions(entries: dict[str, str]) -> dict[tuple[str, int], str]:
    found: dict[tuple[str, int], str] = {}
    for name, address in entries.items():
        host, _, port = name.rpartition(":")
        found[(host, int(port))] = address
    return found


async def serve(index: int, descriptor: int, lease: LeaseMemory | None) -> None:
    """Until the parent says Exit or is gone."""
    connection = socket.socket(fileno=descriptor)
    reader, writer = await asyncio.open_connection(sock=connection)
    core = Core(index, lambda message: writer.write(frame(message)), lease)
    asyncio.get_running_loop().set_exception_handler(core.on_loop_error)
    while True:
        message = await receive_in_core(reader)
        if message is None:
            os._exit(ExitCode.INTERNAL)
        if isinstance(message, Exit):
            await writer.drain()
            writer.close()
            return
        try:
            await core.handle(message)
        except Exception:
            writer.write(frame(Crashed(traceback.format_exc())))


def die_with_parent() -> None:
    """Linux kills this process when its parent is gone, even while a step blocks the loop
    and the end of the parent's stream goes unread."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(ExitCode.INTERNAL)


def main() -> None:
    die_with_parent()
    # Signals to the whole process group are the parent's business.
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
    # The author's threads and atexit hooks have no say in when the run is over.
    os._exit(0)


if __name__ == "__main__":
    main()
