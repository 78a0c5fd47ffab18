"""Delivers the numbers of a running test to live outputs, each in a thread of its own.

The run only appends to a bounded queue, so a backend that is dead, slow or hangs costs it nothing.
Each output has a thread with its own event loop, so code that blocks there, also in an author's
reporter, delays neither the run nor the other outputs. The threads are daemons, because one that
hangs must not keep the command from exiting.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from squall.api.errors import SquallError
from squall.api.reporting import LiveReporter, LiveRun
from squall.stats.snapshot import Snapshot

SECONDS_WAITING_MAX = 60
"""Seconds that wait for a slow backend; then the oldest are dropped."""
CALL_LONGEST_S = 20.0
"""Time limit of one call that waits in its event loop."""
START_AGAIN_S = 2.0
"""The interval between two tries to start an output whose backend did not answer."""
DRAIN_S = 3.0
"""How long the seconds that still wait are delivered after the end, before the totals."""
FINISH_S = 10.0
"""How long the command waits for the last delivery of all live outputs together."""
_END_AGAIN_S = 0.5


@dataclass(frozen=True)
class LiveOutput:
    """A live reporter with its name in messages."""

    name: str
    reporter: LiveReporter


class LiveDelivery:
    """Feeds all live outputs of one run: `start`, `put` each second, `end`, `wait`."""

    def __init__(self, outputs: Sequence[LiveOutput]) -> None:
        self._threads = [_OutputThread(each) for each in outputs]
        self._until = 0.0

    def start(self, run: LiveRun) -> None:
        for each in self._threads:
            each.start(run)

    def put(self, snapshot: Snapshot) -> None:
        for each in self._threads:
            each.put(snapshot)

    def end(self, document: dict[str, Any] | None) -> None:
        self._until = time.monotonic() + FINISH_S
        for each in self._threads:
            each.end(document)

    def wait(self) -> list[str]:
        """Waits until the end is delivered; returns one line for each output that lost something.
        The run is over, so this delays no load."""
        for each in self._threads:
            each.join(max(self._until - time.monotonic(), 0.0))
        return [line for each in self._threads if (line := each.line())]


class _OutputThread:
    """One output and its thread.

    Two threads use it without a lock: the run's thread puts snapshots, the output's thread takes
    them. Each value that one writes and the other reads is replaced as a whole, never changed in
    place. The queue is the exception; `deque.append` and `popleft` are atomic."""

    def __init__(self, output: LiveOutput) -> None:
        self._output = output
        self._seconds: deque[Snapshot] = deque()
        self._overflowed = 0
        self._failed = 0
        self._delivered = 0
        self._error = ""
        self._run: LiveRun | None = None
        self._document: dict[str, Any] | None = None
        self._ended_at = 0.0
        self._is_done = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._work, name=f"live {output.name}", daemon=True)

    # In the thread of the run.

    def start(self, run: LiveRun) -> None:
        self._run = run
        self._thread.start()

    def put(self, snapshot: Snapshot) -> None:
        if len(self._seconds) >= SECONDS_WAITING_MAX:
            # It raises if the thread has just taken the last one.
            with suppress(IndexError):
                self._seconds.popleft()
                self._overflowed += 1
        self._seconds.append(snapshot)
        self._wake()

    def end(self, document: dict[str, Any] | None) -> None:
        self._document = document
        self._ended_at = time.monotonic()
        self._wake()

    def join(self, timeout_s: float) -> None:
        if self._run is not None:
            self._thread.join(timeout_s)

    def line(self) -> str:
        """What was not delivered; empty if nothing is missing."""
        if self._run is None:
            return ""
        lost = self._failed + self._overflowed + len(self._seconds)
        if self._is_done and not lost:
            return ""
        parts: list[str] = []
        if lost:
            parts.append(f"{lost} of {lost + self._delivered} seconds were not delivered")
        parts.append(f"the final totals were {'' if self._is_done else 'not '}delivered")
        reason = self._error or "the backend is too slow"
        return f"{self._output.name}: {', '.join(parts)}: {reason}"

    def _wake(self) -> None:
        loop, news = self._loop, self._news
        if loop is not None and news is not None:
            # It raises if the thread has ended.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(news.set)

    # In its own thread.

    def _work(self) -> None:
        try:
            asyncio.run(self._deliver())
        except BaseException as error:
            # A reporter that raises SystemExit, or that breaks the loop it runs in.
            self._note(error)

    async def _deliver(self) -> None:
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        assert self._run is not None, "started with the run"
        run, reporter = self._run, self._output.reporter
        started = await self._call(lambda: reporter.start(run))
        tried_at = time.monotonic()
        while not self._ended_at or (self._seconds and self._may_drain()):
            if not self._seconds:
                self._news.clear()
                # Checked again after the clearing: what came before it is not waited for.
                if not self._seconds and not self._ended_at:
                    await self._news.wait()
                continue
            snapshot = self._seconds.popleft()
            if not started and time.monotonic() >= tried_at + START_AGAIN_S:
                started = await self._call(lambda: reporter.start(run))
                tried_at = time.monotonic()
            sent = started and await self._call(lambda: reporter.tick(snapshot))  # noqa: B023
            self._delivered += sent
            self._failed += not sent
        self._failed += len(self._seconds)
        self._seconds.clear()
        await self._end(started)

    def _may_drain(self) -> bool:
        return time.monotonic() < self._ended_at + DRAIN_S

    async def _end(self, started: bool) -> None:
        """Retries until the delivery succeeds or the command no longer waits: the final totals
        make up for lost seconds."""
        run, reporter = self._run, self._output.reporter
        assert run is not None
        while True:
            started = started or await self._call(lambda: reporter.start(run))
            if started and await self._call(lambda: reporter.end(self._document)):
                self._is_done = True
                return
            if time.monotonic() >= self._ended_at + FINISH_S - _END_AGAIN_S:
                return
            await asyncio.sleep(_END_AGAIN_S)

    async def _call(self, call: Callable[[], Awaitable[None]]) -> bool:
        try:
            async with asyncio.timeout(CALL_LONGEST_S):
                await call()
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            self._note(error)
            return False
        return True

    def _note(self, error: BaseException) -> None:
        """Keeps the first error for the report: later ones often only follow from it."""
        if self._error:
            return
        if isinstance(error, SquallError):
            self._error = str(error)
        elif isinstance(error, TimeoutError) and not str(error):
            self._error = "no answer in time"
        elif isinstance(error, OSError):
            self._error = error.strerror or " ".join(str(error).split()) or type(error).__name__
        else:
            self._error = " ".join(f"{type(error).__name__}: {error}".split())
