"""Runs the attempts of a worker: each in a core process of its own, under a lease.

Processes are started ahead (spares), so that an attempt does not wait for imports; each
serves one attempt and exits. The end of an attempt is reported exactly once, after its
process is gone: by its own end, a refusal, a kill, or the death of the process.

Keys are opaque here; only the layers above know workers and jobs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, TypeVar

from squall.api.errors import ExitCode
from squall.engine.core_protocol import (
    Adjust,
    CoreRefused,
    Ended,
    ExchangeReport,
    Go,
    Load,
    Loaded,
    OutputLine,
    Prepare,
    Ready,
    ShareSpec,
    Stop,
    ToParent,
)
from squall.engine.process.attempt_events import AttemptEvents, Refusal
from squall.engine.process.core_pool import CoreHandle, WorkerHosting
from squall.engine.process.counter_file import read_counters
from squall.engine.process.lease import LeaseMemory
from squall.engine.process.stack_signal import authors_place
from squall.stats.attempt_record import RecordEnd
from squall.stats.reports import ErrorSample, HealthReport, WindowReport

NICENESS = 2
"""Below the worker's main process, which has to renew leases while its cores are busy."""

HELD_S = 5.0
"""A loop that has not run for this long is blocked by some code. The host reports it; it does not
end the attempt for it."""
CHECK_S = 1.0
"""How often the beats of the core processes are checked."""
ROUND_S = 1.0
"""Longer than one round of a loop, in which every task that is ready has a turn."""

K = TypeVar("K", bound=Hashable)
Event = Callable[[AttemptEvents[Any]], None]
"""Calls one method of the owner."""


class _Spare:
    """A process that has imported its libraries and waits for an attempt."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.lease = LeaseMemory()
        self.core = CoreHandle(0, WorkerHosting(self.lease, NICENESS, environment))


class CoreHost(Generic[K]):
    """Runs attempts on `cores` cores. Create it on the main thread: the kernel ends a child with
    the thread that created it. Calls that name an attempt which is over, or never was, are
    ignored."""

    def __init__(self, cores: int, environment: dict[str, str]) -> None:
        self._cores = cores
        self._events: AttemptEvents[K] | None = None
        self._environment = environment
        self._spares: deque[_Spare] = deque()
        self._attempts: dict[K, HostedAttempt[K]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._checks = False

    def attach(self, events: AttemptEvents[K]) -> None:
        self._events = events
        self._fill()

    def _fill(self) -> None:
        """Starts spare processes for the idle cores."""
        while len(self._spares) + len(self._attempts) < self._cores and not self._closed:
            self._spares.append(_Spare(self._environment))

    def start(self, key: K, spec: ShareSpec, load: Load, counters: str) -> None:
        """Loads the code at once and opens users as soon as a lease covers their requests. The
        process keeps its counters in the file `counters`, which survives it."""
        if not self._checks:
            self._checks = True
            self.spawn(self._check_beats())
        spare = self._spares.popleft() if self._spares else _Spare(self._environment)
        attempt = HostedAttempt(self, key, spare.core, spare.lease, spec, load, counters)
        self._attempts[key] = attempt
        self.spawn(attempt.begin())

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
        """The process of this attempt is gone."""
        self._attempts.pop(key, None)
        asyncio.get_running_loop().call_soon(self._fill)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def close(self) -> None:
        """Kills what still runs and reaps all of it, without reporting any end."""
        self._closed = True
        cores = [attempt.core for attempt in self._attempts.values()]
        cores += [spare.core for spare in self._spares]
        self._attempts.clear()
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
            for attempt in list(self._attempts.values()):
                attempt.check_beat()

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
        core: CoreHandle,
        lease: LeaseMemory,
        spec: ShareSpec,
        load: Load,
        counters: str,
    ) -> None:
        self.core = core
        self._host = host
        self._key = key
        self._lease = lease
        self._spec = spec
        self._load = load
        self._counters = counters
        self._loaded = False
        # The core was asked to prepare: from here on its users may send requests.
        self._asked = False
        self._ready = False
        # The `perf_counter` reading at which the workflow's clock was zero.
        self._began: float | None = None
        self._stop: Stop | None = None
        # Why it ends before its time; the first reason counts.
        self._cut = ""
        # Since this moment it has certainly sent nothing, although its process was alive.
        self._silent_from = inf
        # The last beat of a standstill that was reported, or that a stack was asked for: each
        # standstill is reported once.
        self._reported_beat = 0.0
        self._stack_beat = 0.0
        self._over = False

    async def begin(self) -> None:
        self.core.on_message, self.core.on_death = self._on_message, self._on_death
        await self.core.attach()
        self.core.send(self._load)

    # What the worker asks for.

    def set_lease(self, monotonic: float, boot: float) -> None:
        """A deadline never moves back."""
        if not self._over and monotonic > self._lease.deadlines[0]:
            self._lease.write(monotonic, boot)
            self._ask()

    def go(self, elapsed_s: float, run_elapsed_s: float) -> None:
        if self._began is None and self._ready:
            now = perf_counter()
            self._began = now - elapsed_s
            self.core.send(Go(self._began, now - run_elapsed_s, max(elapsed_s, 0.0)))

    def adjust(self, wanted: Adjust) -> None:
        self.core.send(wanted)

    def stop(self, *, now: bool, cut: str) -> None:
        if self._over or (self._stop is not None and (self._stop.now or not now)):
            return
        self._cut = self._cut or cut
        self._stop = Stop(now)
        if not self._asked:
            # Nothing of it has begun, so there is nothing to wait for.
            self.core.kill()
            return
        self.core.send(self._stop)
        if self._ready:
            self.go(0.0, 0.0)

    def kill(self, cut: str) -> None:
        if not self._over:
            why, self._silent_from = self._why_held(), self._lease.held_since
            if why and self._silent_from == inf:
                # Without a beat no user is woken again, but each that was ready in the last
                # round may still have sent a request.
                self._silent_from = self._lease.beat + ROUND_S
            self._cut = why or cut
            self.core.kill()

    def check_beat(self) -> None:
        """Reports once that some code blocks the loop, which may last for ever. A process that
        cannot report it itself (a call into C that keeps the interpreter's lock) is found by
        the beat that is missing."""
        if self._over:
            return
        why, beat = self._why_held(), self._lease.beat
        unseen = beat not in (self._reported_beat, self._stack_beat)
        if why and unseen and not self._lease.held_by:
            # Its watchdog does not run either. Its stack names the line, at the next check.
            self._stack_beat = beat
            self._lease.await_stack()
            self.core.ask_for_stack()
        elif why and beat != self._reported_beat:
            self._reported_beat = beat
            self._report_held(why, perf_counter() - beat)
        elif not why and self._reported_beat:
            self._reported_beat = 0.0
            self._report_held("", 0.0)

    def _report_held(self, why: str, silent_s: float) -> None:
        self._host.post(lambda events: events.on_held(self._key, why, silent_s))

    def _why_held(self) -> str:
        """What blocks the loop of a process that lives; "" when the loop runs."""
        beat = self._lease.beat
        if self._began is None or not beat or perf_counter() - beat < HELD_S:
            return ""
        return self._lease.held_by or self._seen_outside()

    def _seen_outside(self) -> str:
        place = ""
        if self._stack_beat == self._lease.beat:
            place = authors_place(self._lease.stack, str(Path(self._load.path).parent))
        return f"its core process does not answer: held by {place or 'something unknown'}"

    # What the process reports.

    def _on_message(self, core: CoreHandle, message: ToParent) -> None:
        key = self._key
        match message:
            case Loaded():
                self._loaded = True
                self._ask()
            case CoreRefused():
                refusal = Refusal(text=message.text, exit_code=message.exit_code)
                self._finish(lambda events: events.on_refused(key, refusal))
            case Ready() if not self._over:
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

    def _on_death(self, core: CoreHandle) -> None:
        key, cut = self._key, self._cut or core.died
        if self._asked or self._stop is not None or self._cut:
            # It may have sent requests: whatever it reported counts as a cut record.
            ended = min(perf_counter(), self._silent_from)
            elapsed_s = 0.0 if self._began is None else max(ended - self._began, 0.0)
            end = RecordEnd(elapsed_s=elapsed_s, cut=cut)
            counters = read_counters(self._counters)
            if counters is not None and not self._over:
                self._host.post(lambda events: events.on_report(key, counters))
            self._finish(lambda events: events.on_ended(key, end))
        else:
            text = core.crash.strip().rsplit("\n", 1)[-1] or cut
            refusal = Refusal(text=text, exit_code=int(ExitCode.INTERNAL), retryable=True)
            self._finish(lambda events: events.on_refused(key, refusal))

    def _ask(self) -> None:
        """Opens users once the code is loaded and a lease covers their requests (R5)."""
        leased = self._lease.deadlines[0] > perf_counter()
        if self._loaded and leased and not self._asked and self._stop is None:
            self._asked = True
            self.core.send(Prepare([self._spec], [self._counters]))

    def _finish(self, event: Event) -> None:
        if not self._over:
            self._over = True
            self._host.spawn(self._leave(event))

    async def _leave(self, event: Event) -> None:
        """Waits for the process to end before it reports the end: by then its last reports
        are read and it makes no more load."""
        await self.core.close()
        self._lease.close()
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
