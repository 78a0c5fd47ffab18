"""Runs the attempts of a worker in core processes, under leases.

Processes are started ahead (spares), so that an attempt does not wait for imports. Attempts of one
`group` run in one process (`hosted_core.py`), which exits after the last of them. The end of an
attempt is reported exactly once, when it makes no more load: by its own end, a refusal, a kill, or
the death of the process. The end of the last one waits until the process is gone.

Keys and groups are opaque here; only the layers above know workers and jobs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from math import inf
from time import perf_counter
from typing import Any, Generic, TypeVar

from squall.api.errors import ExitCode
from squall.engine.core_protocol import (
    Adjust,
    AdjustShare,
    CoreRefused,
    Ended,
    ExchangeReport,
    Go,
    Load,
    OutputLine,
    Prepare,
    Ready,
    ShareName,
    ShareSpec,
    Stop,
    ToParent,
)
from squall.engine.process.attempt_events import AttemptEvents, Refusal
from squall.engine.process.counter_file import read_counters
from squall.engine.process.hosted_core import HostedCore
from squall.stats.attempt_record import RecordEnd
from squall.stats.reports import ErrorSample, HealthReport, WindowReport

CHECK_S = 1.0
"""How often the beats of the core processes are checked."""

K = TypeVar("K", bound=Hashable)
Event = Callable[[AttemptEvents[Any]], None]
"""Calls one method of the owner."""


class CoreHost(Generic[K]):
    """Runs attempts on `cores` cores. Create it on the main thread: the kernel ends a child with
    the thread that created it. Calls that name an attempt which is over, or never was, are
    ignored."""

    def __init__(self, cores: int, environment: dict[str, str]) -> None:
        self._cores = cores
        self._events: AttemptEvents[K] | None = None
        self._environment = environment
        self._spares: deque[HostedCore] = deque()
        # The processes that have attempts, or had some and are not reaped yet.
        self._hosting: list[HostedCore] = []
        self._attempts: dict[K, HostedAttempt[K]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._checks = False

    def attach(self, events: AttemptEvents[K]) -> None:
        self._events = events
        self._fill()

    def _fill(self) -> None:
        """Starts spare processes for the idle cores."""
        while len(self._spares) + len(self._hosting) < self._cores and not self._closed:
            self._spares.append(HostedCore(self._environment))

    def start(self, key: K, group: Hashable, spec: ShareSpec, load: Load, counters: str) -> None:
        """Loads the code at once, unless a process of the same group has loaded it, and opens users
        as soon as a lease covers their requests. The process keeps its counters in the file
        `counters`, which survives it."""
        if not self._checks:
            self._checks = True
            self.spawn(self._check_beats())
        process = next((each for each in self._hosting if each.takes(group, spec)), None)
        if process is None:
            process = self._spares.popleft() if self._spares else HostedCore(self._environment)
            process.group = group
            self._hosting.append(process)
            self.spawn(process.begin(load))
        self._attempts[key] = HostedAttempt(self, key, process, spec, load, counters)
        if process.loaded:
            self.post(lambda events: events.on_loaded(key))

    def go(self, key: K, elapsed_s: float, run_elapsed_s: float) -> None:
        if (attempt := self._attempts.get(key)) is not None:
            attempt.go(elapsed_s, run_elapsed_s)

    def stop(self, key: K, *, now: bool, cut: str) -> None:
        if (attempt := self._attempts.get(key)) is not None:
            attempt.stop(now=now, cut=cut)

    def kill(self, key: K, cut: str) -> None:
        if (attempt := self._attempts.get(key)) is not None:
            attempt.kill(cut)

    def set_lease(self, key: K, until: float, boot_until: float) -> None:
        """Readings of `perf_counter`, which is the runtime's clock, and of CLOCK_BOOTTIME."""
        if (attempt := self._attempts.get(key)) is not None:
            attempt.set_lease(until, boot_until)

    def adjust(self, key: K, load: Adjust) -> None:
        if (attempt := self._attempts.get(key)) is not None:
            attempt.adjust(load)

    # What its attempts need.

    def is_current(self, key: K, attempt: HostedAttempt[K]) -> bool:
        return self._attempts.get(key) is attempt

    def post(self, event: Event) -> None:
        """Reports to the owner, in a turn of the loop of its own."""
        if self._events is not None:
            asyncio.get_running_loop().call_soon(event, self._events)

    def forget(self, key: K) -> None:
        """This attempt is over and makes no more load."""
        self._attempts.pop(key, None)

    async def close_process(self, process: HostedCore) -> None:
        await process.close()
        if process in self._hosting:
            self._hosting.remove(process)
        asyncio.get_running_loop().call_soon(self._fill)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def close(self) -> None:
        """Kills what still runs and reaps all of it, without reporting any end."""
        self._closed = True
        cores = [process.core for process in (*self._hosting, *self._spares)]
        self._attempts.clear()
        self._hosting.clear()
        for core in cores:
            core.on_message = core.on_death = _ignore
            core.kill()
        await asyncio.gather(*(core.close() for core in cores))
        self._spares.clear()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _check_beats(self) -> None:
        while not self._closed:
            await asyncio.sleep(CHECK_S)
            for process in list(self._hosting):
                process.check_beat()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            loop = asyncio.get_running_loop()
            loop.call_exception_handler({"message": "a hosted attempt", "exception": error})


class HostedAttempt(Generic[K]):
    """One attempt, from its process to its end. Passes through: loading, loaded, asked to
    prepare (with a lease), ready, begun, over."""

    def __init__(
        self,
        host: CoreHost[K],
        key: K,
        process: HostedCore,
        spec: ShareSpec,
        load: Load,
        counters: str,
    ) -> None:
        self._host = host
        self._key = key
        self._process = process
        self._spec = spec
        self._load = load
        self._counters = counters
        # The core was asked to prepare: from here on its users may send requests.
        self._asked = False
        self._ready = False
        # The `perf_counter` reading at which the workflow's clock was zero.
        self._began: float | None = None
        # The latest adjustment that the core does not have yet.
        self._wanted: Adjust | None = None
        self._stop: Stop | None = None
        # Why it ends before its time; the first reason counts.
        self._cut = ""
        # Since this moment it has certainly sent nothing, although its process was alive.
        self._silent_from = inf
        self.over = False
        self._slot = process.add(self)

    @property
    def name(self) -> ShareName:
        return self._spec.name

    @property
    def has_begun(self) -> bool:
        return self._began is not None

    # What the worker asks for.

    def set_lease(self, monotonic: float, boot: float) -> None:
        """A deadline never moves back."""
        if not self.over and monotonic > self._deadline:
            self._process.memory.write(self._slot, monotonic, boot)
            self._ask()

    def go(self, elapsed_s: float, run_elapsed_s: float) -> None:
        if self._began is None and self._ready:
            now = perf_counter()
            self._began = now - elapsed_s
            joined_s = max(elapsed_s, 0.0)
            self._process.core.send(Go(self._began, now - run_elapsed_s, joined_s, self.name))

    def adjust(self, wanted: Adjust) -> None:
        if self._asked:
            self._process.core.send(AdjustShare(self.name, wanted))
        else:
            self._wanted = wanted

    def stop(self, *, now: bool, cut: str) -> None:
        if self.over or (self._stop is not None and (self._stop.now or not now)):
            return
        self._cut = self._cut or cut
        self._stop = Stop(now, self.name)
        if not self._asked:
            self._end_unasked()
            return
        self._process.core.send(self._stop)
        if self._ready:
            self.go(0.0, 0.0)

    def kill(self, cut: str) -> None:
        if self.over or self._process.leaving:
            return
        self._cut = self._process.why_held() or cut
        if self._asked:
            self._process.kill(self, cut)
        else:
            self._end_unasked()

    def _end_unasked(self) -> None:
        """Nothing of it has begun, so there is nothing to wait for, nor to lose."""
        end = RecordEnd(elapsed_s=0.0, cut=self._cut)
        self._finish(lambda events: events.on_ended(self._key, end))

    # What the process reports.

    def on_loaded(self) -> None:
        key = self._key
        self._host.post(lambda events: events.on_loaded(key))
        self._ask()

    def on_held(self, why: str, silent_s: float) -> None:
        self._host.post(lambda events: events.on_held(self._key, why, silent_s))

    def on_killed(self, why: str, silent_from: float) -> None:
        self._cut, self._silent_from = why, silent_from

    def on_message(self, message: ToParent) -> None:
        key = self._key
        match message:
            case CoreRefused():
                refusal = Refusal(text=message.text, exit_code=message.exit_code)
                self._finish(lambda events: events.on_refused(key, refusal))
            case Ready() if not self.over:
                self._ready = True
                if self._stop is not None:
                    # It was stopped while it prepared: begin, so that it ends in order.
                    self.go(0.0, 0.0)
                else:
                    self._host.post(lambda events: events.on_ready(key))
            case Ended():
                end = self._end(message)
                self._finish(lambda events: events.on_ended(key, end))
            case WindowReport() | HealthReport() | ErrorSample() | OutputLine():
                if self._host.is_current(key, self):
                    self._host.post(lambda events: events.on_report(key, message))
            case _:
                assert not isinstance(message, ExchangeReport) or self._load.options.once

    def on_death(self, died: str, crash: str) -> None:
        key, cut = self._key, self._cut or died
        if self._asked or self._stop is not None or self._cut:
            # It may have sent requests: whatever it reported counts as a cut record. Beyond its
            # lease it sent none, however late its death is noticed.
            ended = min(perf_counter(), self._silent_from, self._deadline)
            elapsed_s = 0.0 if self._began is None else max(ended - self._began, 0.0)
            end = RecordEnd(elapsed_s=elapsed_s, cut=cut)
            counters = read_counters(self._counters)
            if counters is not None and not self.over:
                self._host.post(lambda events: events.on_report(key, counters))
            self._finish(lambda events: events.on_ended(key, end))
        else:
            text = crash.strip().rsplit("\n", 1)[-1] or cut
            refusal = Refusal(text=text, exit_code=int(ExitCode.INTERNAL), retryable=True)
            self._finish(lambda events: events.on_refused(key, refusal))

    @property
    def _deadline(self) -> float:
        return self._process.memory.deadlines(self._slot)[0]

    def _ask(self) -> None:
        """Opens users once the code is loaded and a lease covers their requests (R5)."""
        leased = self._deadline > perf_counter()
        if self._process.loaded and leased and not self._asked and self._stop is None:
            self._asked = True
            self._process.core.send(Prepare([self._spec], [self._counters], [self._slot]))
            if self._wanted is not None:
                self._process.core.send(AdjustShare(self.name, self._wanted))

    def _finish(self, event: Event) -> None:
        if not self.over:
            self.over = True
            if self._process.remove(self):
                self._host.spawn(self._leave(event))
            else:
                self._report(event)

    async def _leave(self, event: Event) -> None:
        """The last attempt of a process waits for its end: author's code that outlived the others
        is gone by then."""
        await self._host.close_process(self._process)
        self._report(event)

    def _report(self, event: Event) -> None:
        if self._host.is_current(self._key, self):
            self._host.forget(self._key)
            self._host.post(event)

    def _end(self, ended: Ended) -> RecordEnd:
        return RecordEnd(
            elapsed_s=ended.elapsed_s,
            error=ended.error,
            cut=ended.cut or self._cut,
            values=ended.values,
            provided=ended.provided,
            notes=ended.notes,
            warnings=ended.warnings,
            reported_by_process=True,
        )


def _ignore(*_: object) -> None:
    return None
