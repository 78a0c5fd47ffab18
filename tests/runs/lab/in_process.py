"""Runs without core processes: the real controller and the real cores, in threads of the test.

A core thread serves its parent as a core process does: `serve` on a loop of its own, the
same messages over the same socket pair. What belongs to the whole process (environment,
streams, modules, warnings) is given back when the run ends. What a thread cannot show
(death, signals, exit codes of a process) needs `tests.runs.lab.command`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Generator
from math import inf
from pathlib import Path
from typing import Any, TextIO, cast
from unittest.mock import patch

from squall.clients.calls.arrivals import ArrivalLoop
from squall.engine.core_protocol import Load
from squall.engine.measure.author_output import OutputCapture
from squall.engine.process import core, core_pool
from squall.engine.process.core_pool import CoreHandle
from squall.stats.totals import run as run_totals
from squall.stats.verdict_settings import VerdictSettings

PATIENT = VerdictSettings(
    blocked_degraded_share=inf,
    blocked_invalid_share=inf,
    saturated_cpu=inf,
    lag_degraded_s=inf,
    lag_invalid_s=inf,
    late_degraded_s=inf,
)
"""A busy machine may delay a run for as long as it likes: the verdict judges only what the
workflow itself causes (lost starts, users that did not start, feeds without rows)."""


class CoreThread:
    """A core in a thread, with the part of `subprocess.Popen` that `CoreHandle` uses."""

    def __init__(self, index: int, descriptor: int) -> None:
        self.pid = os.getpid()
        self.returncode: int | None = None
        self._index = index
        self._descriptor = descriptor
        # The parent waits for the end of the stream, also when the core did not close it.
        self._stream = socket.socket(fileno=os.dup(descriptor))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name=f"core {index}", daemon=True)
        self._thread.start()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("a core thread", timeout or 0.0)
        return self.returncode

    def kill(self) -> None:
        if self._loop is not None and self._serving is not None and self.returncode is None:
            # The loop may be closed by now: it closes before there is a return code.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._serving.cancel)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=ArrivalLoop) as runner:
                runner.run(self._serve())
            self.returncode = 0
        except asyncio.CancelledError:
            self.returncode = -9
        finally:
            with contextlib.suppress(OSError):
                self._stream.shutdown(socket.SHUT_RDWR)
            self._stream.close()

    async def _serve(self) -> None:
        self._loop, self._serving = asyncio.get_running_loop(), asyncio.current_task()
        await core.serve(self._index, self._descriptor, None, orphaned=lambda: None)


class ThreadedCore(CoreHandle):
    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        thread = CoreThread(self.index, os.dup(theirs.fileno()))
        return cast("subprocess.Popen[bytes]", thread)


class StreamByThread:
    """A standard stream of the test that core threads and the author's threads write past:
    theirs goes to the core's capture, as in a process of its own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._parent = threading.get_ident()
        self._captured: dict[int, TextIO] = {}

    def capture(self, stream: TextIO) -> None:
        self._captured[threading.get_ident()] = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of_this_thread(), name)

    def _of_this_thread(self) -> TextIO:
        thread = threading.get_ident()
        if thread == self._parent or not self._captured:
            return self._stream
        # Threads that the author started belong to the first core.
        return self._captured.get(thread) or next(iter(self._captured.values()))


class ThreadOutput(OutputCapture):
    def install(self) -> None:
        shared = sys.stdout, sys.stderr
        super().install()
        for stream, captured in zip(shared, (sys.stdout, sys.stderr), strict=True):
            cast("StreamByThread", stream).capture(captured)
        sys.stdout, sys.stderr = shared


_LOADING = threading.Lock()


class ThreadedProcess(core.CoreProcess):
    def _on_load(self, message: Load) -> None:
        # Loading sets the environment, the streams and the modules, and `inspect` parses the
        # file, which CPython 3.11 cannot do in two threads at once. Processes share none of it.
        with _LOADING:
            super()._on_load(message)


@contextlib.contextmanager
def in_process(folder: Path) -> Generator[None]:
    """Inside, runs have core threads. `folder` is where the author's modules are."""
    importlib.invalidate_caches()
    root = logging.getLogger()
    handlers, path, watchers = root.handlers[:], sys.path[:], gc.callbacks[:]
    streams = StreamByThread(sys.stdout), StreamByThread(sys.stderr)
    with (
        patch.dict(os.environ),
        patch.object(sys, "stdout", streams[0]),
        patch.object(sys, "stderr", streams[1]),
        patch.object(core_pool, "CoreHandle", ThreadedCore),
        patch.object(core, "CoreProcess", ThreadedProcess),
        patch.object(core, "OutputCapture", ThreadOutput),
        patch.object(run_totals, "VerdictSettings", lambda: PATIENT),
        warnings.catch_warnings(),
    ):
        # The author's mistakes are part of a test: a coroutine that is never awaited.
        warnings.simplefilter("ignore")
        root.handlers.clear()
        try:
            yield
        finally:
            root.handlers[:] = handlers
            sys.path[:] = path
            # A core process never needs its collector back; this process does.
            gc.callbacks[:] = watchers
            gc.unfreeze()
            gc.enable()
            for name, module in list(sys.modules.items()):
                if str(getattr(module, "__file__", None)).startswith(str(folder)):
                    del sys.modules[name]
