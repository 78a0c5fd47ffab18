"""Runs a node as a process: starts the loop, stops it in order, leaves nothing behind.

The first SIGTERM or SIGINT sets the node's stop event: the node hands over what it leads and
returns. Tasks that have not ended by the deadline are cancelled, then named. Another signal, half
a second later or more, ends the process at once. The process never outlives the deadline, whatever
the node's code does: a thread ends it if the loop hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from squall.api.errors import ExitCode
from squall.runtime.interfaces import Address
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskFailure, TaskInfo, TaskRunner

Main = Callable[[RealRuntime, TaskRunner, asyncio.Event], Coroutine[Any, Any, int | None]]
OWN_SHARE = 0.6
"""Share of the deadline for the node's own shutdown; the rest is for its tasks."""
LAST_GRACE_S = 1.0
REPEAT_S = 0.5
"""One request to stop may arrive as several signals: from the launcher, because the launcher died,
and from a supervisor or terminal that signals every process. Only a later one is a second request.
"""
GC_THRESHOLDS = (20_000, 20, 50)


@dataclass(frozen=True)
class Frame:
    """The parameters of a node's process."""

    node: str
    boot: str | None = None
    data_dir: Path | None = None
    seed: int | None = None
    dns_server: Address | None = None
    """None: the servers of the system."""
    shutdown_s: float = 10.0
    drain_s: float = 0.0
    """How much longer the node may take for itself, because it finishes work that it has."""
    on_failure: Callable[[TaskFailure], None] | None = None
    on_unfinished: Callable[[tuple[TaskInfo, ...]], None] | None = None


def run(main: Main, frame: Frame) -> int:
    """Runs `main(runtime, tasks, stop)` until it returns or a signal stops it. Its result is the
    exit code: 0 if it is None, 1 if an essential task failed or something did not stop.
    Exceptions of `main` are raised here."""
    with _rare_collections(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code, unfinished = runner.run(_frame(main, frame))
        if unfinished:
            # The runner would wait for them without an end.
            _leave(ExitCode.INTERNAL)
    return code


@contextlib.contextmanager
def _rare_collections() -> Generator[None]:
    """Makes garbage collections rare: imported code stays, and a node holds much plain data
    that the collector would walk over again and again."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def _frame(main: Main, frame: Frame) -> tuple[int, bool]:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    runtime = RealRuntime(frame.node, frame.boot, frame.data_dir, frame.seed, frame.dns_server)
    tasks = TaskRunner(runtime.clock, runtime.random, on_failure=frame.on_failure)
    body = loop.create_task(main(runtime, tasks, stop), name="main")
    fatal = loop.create_task(tasks.fatal(), name="fatal")
    stop_requested = loop.create_task(stop.wait(), name="stop")
    watchdog = _Watchdog(frame.drain_s + frame.shutdown_s + LAST_GRACE_S)
    try:
        with _signals(loop, stop, watchdog):
            await asyncio.wait((body, fatal, stop_requested), return_when=asyncio.FIRST_COMPLETED)
            watchdog.arm()
            unfinished = await _end(body, stop, tasks, runtime, frame)
    finally:
        watchdog.disarm()
        failed = fatal.done() and not fatal.cancelled()
        fatal.cancel()
        stop_requested.cancel()
    if unfinished:
        return ExitCode.INTERNAL, True
    result = None if body.cancelled() else body.result()
    return (ExitCode.INTERNAL if failed else result or 0), False


async def _end(
    body: asyncio.Task[int | None],
    stop: asyncio.Event,
    tasks: TaskRunner,
    runtime: RealRuntime,
    frame: Frame,
) -> tuple[TaskInfo, ...]:
    """Ends the node itself, then its tasks, then its sockets, files and children."""
    started = runtime.clock.now()
    stop.set()
    deadline = started + frame.drain_s + frame.shutdown_s
    await asyncio.wait((body,), timeout=frame.drain_s + frame.shutdown_s * OWN_SHARE)
    own = () if body.done() else (TaskInfo("main", "", True, runtime.clock.now() - started),)
    body.cancel()
    unfinished = await tasks.shutdown(deadline - runtime.clock.now())
    await asyncio.wait((body,), timeout=max(deadline - runtime.clock.now(), 0.0))
    unfinished += () if body.done() else own
    if unfinished and frame.on_unfinished is not None:
        frame.on_unfinished(unfinished)
    if unfinished and body.done() and not body.cancelled():
        # `run` raises it otherwise; a process that has to be ended by force cannot.
        error = body.exception()
        if isinstance(error, Exception) and frame.on_failure is not None:
            frame.on_failure(TaskFailure("main", "", True, error))
    await runtime.close()
    return unfinished


@contextlib.contextmanager
def _signals(
    loop: asyncio.AbstractEventLoop, stop: asyncio.Event, watchdog: _Watchdog
) -> Generator[None]:
    first_at = math.inf

    def received() -> None:
        nonlocal first_at
        first_at = min(first_at, loop.time())
        if loop.time() - first_at >= REPEAT_S:
            _leave(ExitCode.INTERRUPTED)
        # Now, because the node's own code runs next and may never yield.
        watchdog.arm()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


class _Watchdog:
    """Ends the process from a thread if the loop does not."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timer: threading.Timer | None = None

    def arm(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(self._seconds, _leave, (ExitCode.INTERNAL,))
            self._timer.daemon = True
            self._timer.start()

    def disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()


def _leave(code: int) -> None:
    """Exits at once. Children die with this process (`processes`)."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
