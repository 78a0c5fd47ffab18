"""Attempts at shares on behalf of a worker: each in a core process of its own, under a lease.

Processes are started ahead (spares), so that an attempt does not wait for imports; each
serves one attempt and exits. An attempt is told over exactly once, after its process is
gone: by its own end, a refusal, a kill, or the death of the process.

Keys are opaque here; what a worker is belongs to the layers above.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, Generic, Protocol, TypeVar

from squall.api.errors import ExitCode
from squall.engine.lease import LeaseMemory
from squall.engine.pool import CoreHandle, Hosting
from squall.engine.protocol import (
    Adjust,
    Ended,
    ExchangeReport,
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
)
from squall.engine.stacks import authors_place
from squall.stats.record import RecordEnd
from squall.stats.reports import ErrorSample, HealthReport, WindowReport

NICENESS = 2
"""Below the worker's main process, which has to renew leases while its cores are busy."""

HELD_S = 5.0
"""A loop that has not run for so long is held by somebody: no verdict, only a line."""
LOOK_S = 1.0
ROUND_S = 1.0
"""More than the round of a loop takes in which everybody who is ready has a turn."""

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)
Report = WindowReport | HealthReport | ErrorSample | Line


class Told(Protocol[K_contra]):
    """Who is told what becomes of the attempts."""

    def ready(self, key: K_contra) -> None: ...
    def refused(self, key: K_contra, text: str, exit_code: int, retryable: bool) -> None: ...
    def report(self, key: K_contra, report: Report) -> None: ...
    def held(self, key: K_contra, why: str, silent_s: float) -> None:
        """Its process lives and its loop does not run, for so long by now; "" when it runs
        again."""
        ...

    def ended(self, key: K_contra, end: RecordEnd) -> None: ...


class _Spare:
    """A process that has imported its libraries and waits for an attempt."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.lease = LeaseMemory()
        self.core = CoreHandle(0, Hosting(self.lease, NICENESS, environment))


class CoreHost(Generic[K]):
    """All core processes of a worker with so many cores. Make it on the main thread: the
    kernel ends a child with the thread that made it."""

    def __init__(self, cores: int, told: Told[K], environment: dict[str, str]) -> None:
        self._cores = cores
        self._told = told
        self._environment = environment
        self._spares: deque[_Spare] = deque()
        self._attempts: dict[K, HostedAttempt[K]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._looks = False

    @property
    def running(self) -> int:
        return len(self._attempts)

    def attempt(self, key: K) -> HostedAttempt[K] | None:
        return self._attempts.get(key)

    def fill(self) -> None:
        """Spares for the cores that nothing runs on."""
        while len(self._spares) + len(self._attempts) < self._cores and not self._closed:
            self._spares.append(_Spare(self._environment))

    def prepare(self, key: K, spec: ShareSpec, load: Load) -> None:
        if not self._looks:
            self._looks = True
            self.spawn(self._look())
        spare = self._spares.popleft() if self._spares else _Spare(self._environment)
        attempt = HostedAttempt(self, key, spare.core, spare.lease, spec, load)
        self._attempts[key] = attempt
        self.spawn(attempt.begin())

    def tell(self) -> Told[K]:
        return self._told

    def forget(self, key: K) -> None:
        self._attempts.pop(key, None)
        asyncio.get_running_loop().call_soon(self.fill)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def close(self) -> None:
        """Kills what still runs and reaps all of it; nobody is told."""
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

    async def _look(self) -> None:
        while not self._closed:
            await asyncio.sleep(LOOK_S)
            for attempt in list(self._attempts.values()):
                attempt.look()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            loop = asyncio.get_running_loop()
            loop.call_exception_handler({"message": "a hosted attempt", "exception": error})


class HostedAttempt(Generic[K]):
    """One attempt, from its process to its end."""

    def __init__(
        self,
        host: CoreHost[K],
        key: K,
        core: CoreHandle,
        lease: LeaseMemory,
        spec: ShareSpec,
        load: Load,
    ) -> None:
        self.core = core
        self._host = host
        self._key = key
        self._lease = lease
        self._spec = spec
        self._load = load
        self._loaded = False
        self._asked = False
        """Told to prepare: from here on its users may send requests."""
        self._ready = False
        self._began: float | None = None
        self._stop: Stop | None = None
        self._cut = ""
        self._silent_from = inf
        """From when on it sent nothing for certain, although its process lived."""
        self._told_beat = 0.0
        self._asked_beat = 0.0
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
                # Without a beat no user is woken again: each may have sent once more.
                self._silent_from = self._lease.beat + ROUND_S
            self._cut = why or cut
            self.core.kill()

    def look(self) -> None:
        """Every second: tells once of code that holds the loop and may do so for ever. What
        the process cannot tell itself (a call into C that keeps the interpreter's lock) is
        seen by the beat that is missing."""
        if self._over:
            return
        why, beat = self._why_held(), self._lease.beat
        if why and beat not in (self._told_beat, self._asked_beat) and not self._lease.held_by:
            # It cannot say who; its stack can, at the next look.
            self._asked_beat = beat
            self._lease.await_stack()
            self.core.ask_for_stack()
        elif why and beat != self._told_beat:
            self._told_beat = beat
            self._host.tell().held(self._key, why, perf_counter() - beat)
        elif not why and self._told_beat:
            self._told_beat = 0.0
            self._host.tell().held(self._key, "", 0.0)

    def _why_held(self) -> str:
        """Why nothing is heard of a process that lives; "" when its loop runs."""
        beat = self._lease.beat
        if self._began is None or not beat or perf_counter() - beat < HELD_S:
            return ""
        return self._lease.held_by or self._seen_outside()

    def _seen_outside(self) -> str:
        place = ""
        if self._asked_beat == self._lease.beat:
            place = authors_place(self._lease.stack, str(Path(self._load.path).parent))
        return f"its core process does not answer: held by {place or 'something unknown'}"

    # What the process tells.

    def _on_message(self, core: CoreHandle, message: ToParent) -> None:
        told = self._host.tell()
        match message:
            case Loaded():
                self._loaded = True
                self._ask()
            case Refused():
                self._finish(
                    lambda: told.refused(self._key, message.text, message.exit_code, False)
                )
            case Ready() if not self._over:
                self._ready = True
                if self._stop is not None:
                    self.go(0.0, 0.0)
                else:
                    told.ready(self._key)
            case Ended():
                self._finish(lambda: told.ended(self._key, self._end(message)))
            case WindowReport() | HealthReport() | ErrorSample() | Line():
                if self._key_is_known:
                    told.report(self._key, message)
            case _:
                assert not isinstance(message, ExchangeReport) or self._load.options.once

    @property
    def _key_is_known(self) -> bool:
        return self._host.attempt(self._key) is self

    def _on_death(self, core: CoreHandle) -> None:
        told, cut = self._host.tell(), self._cut or core.died
        if self._asked or self._stop is not None or self._cut:
            ended = min(perf_counter(), self._silent_from)
            elapsed_s = 0.0 if self._began is None else max(ended - self._began, 0.0)
            end = RecordEnd(elapsed_s=elapsed_s, cut=cut)
            self._finish(lambda: told.ended(self._key, end))
        else:
            text = core.crash.strip().rsplit("\n", 1)[-1] or cut
            self._finish(lambda: told.refused(self._key, text, int(ExitCode.INTERNAL), True))

    def _ask(self) -> None:
        """Users are opened once the code is there and a lease covers their requests."""
        leased = self._lease.deadlines[0] > perf_counter()
        if self._loaded and leased and not self._asked and self._stop is None:
            self._asked = True
            self.core.send(Prepare([self._spec]))

    def _finish(self, tell: Callable[[], None]) -> None:
        if not self._over:
            self._over = True
            self._host.spawn(self._leave(tell))

    async def _leave(self, tell: Callable[[], None]) -> None:
        """The process ends first: its last reports are read by then, and none is left."""
        await self.core.close()
        self._lease.close()
        if self._key_is_known:
            self._host.forget(self._key)
            tell()

    def _end(self, ended: Ended) -> RecordEnd:
        return RecordEnd(
            elapsed_s=ended.elapsed_s,
            error=ended.error,
            cut=ended.cut or self._cut,
            values=ended.values,
            provided=ended.provided,
            notes=ended.notes,
            warnings=ended.warnings,
            told_all=True,
        )


def _ignore(*_: object) -> None:
    return None
