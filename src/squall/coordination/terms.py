"""What is done while leading, and that it has ended before somebody else begins.

A `Term` is one epoch of this member. Work under it is cancelled when the term ends; a term
that is given up by choice lets work end by itself first, because the lease is held until it
has: for `PATIENCE_S`, or for `STOP_PATIENCE_S` when the member stops. Become and stop
callbacks alternate and never overlap. It must never report the end of work while some of it
still runs, unless that work ignored its cancellation for `PATIENCE_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from squall.coordination.election_messages import PLANNED
from squall.coordination.errors import LeadershipLost, StaleEpochError
from squall.coordination.keys import LEADER
from squall.coordination.stores.interface import Fence, Store, Write
from squall.runtime.tasks import TaskGroup

PATIENCE_S = 10.0
STOP_PATIENCE_S = 5.0
"""The rest of the time of a stop is for callbacks, the lease and the registration."""


class Term:
    """Leave to act, for one epoch. Hold it no longer than `valid` says."""

    def __init__(
        self,
        epoch: int,
        store: Store,
        leads: Callable[[], bool],
        on_fenced: Callable[[int], None],
    ) -> None:
        self.epoch = epoch
        self.fence = Fence(LEADER, epoch)
        self.reason = ""
        self.ended = asyncio.Event()
        self._store = store
        self._leads = leads
        self._on_fenced = on_fenced
        self._scopes: dict[object, asyncio.Task[Any]] = {}
        """In the order in which they were entered: of one task, the outermost first."""
        self._cancelled: set[object] = set()
        self._excused: asyncio.Task[Any] | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def valid(self) -> bool:
        """False from the local limit of the lease on, without asking anybody."""
        return not self.ended.is_set() and self._leads()

    def check(self) -> None:
        if not self.valid:
            raise LeadershipLost(self.epoch, self.reason or "lease_lost")

    async def write(self, *writes: Write) -> tuple[str, ...]:
        """Fenced: the store takes it only while this epoch is the present one."""
        self.check()
        try:
            return await self._store.write(*writes, fence=self.fence)
        except StaleEpochError:
            self._on_fenced(self.epoch)
            raise

    def end(self, reason: str) -> None:
        if not self.ended.is_set():
            self.reason = reason
            self.ended.set()

    # The scopes of `async with coordinator.lead()`.

    def enter(self, scope: object, task: asyncio.Task[Any]) -> None:
        self._scopes[scope] = task
        self._empty.clear()

    def leave(self, scope: object) -> bool:
        """True if the end of the term cancelled the task for this scope."""
        self._scopes.pop(scope, None)
        cancelled = scope in self._cancelled
        self._cancelled.discard(scope)
        if not self._scopes:
            self._empty.set()
        return cancelled

    def excuse(self, task: asyncio.Task[Any] | None) -> None:
        """Who ends the term out of its own work is neither waited for nor cancelled: it waits for
        the end itself."""
        self._excused = task
        for scope in [scope for scope, each in self._scopes.items() if each is task]:
            self.leave(scope)

    def is_excused(self, task: asyncio.Task[Any]) -> bool:
        return task is self._excused

    def cancel_scopes(self) -> None:
        """A task once, for its outermost scope: those inside let the cancellation pass."""
        told = {self._scopes[scope] for scope in self._cancelled}
        for scope, task in self._scopes.items():
            if task not in told:
                told.add(task)
                self._cancelled.add(scope)
                task.cancel()

    async def scopes_left(self) -> None:
        await self._empty.wait()


class LeadScope:
    """`async with coordinator.lead() as term`: waits for leadership; the body is cancelled
    when it ends, and `LeadershipLost` comes out."""

    def __init__(self, wait_for_term: Callable[[], Awaitable[Term]]) -> None:
        self._wait_for_term = wait_for_term
        self._term: Term | None = None

    async def __aenter__(self) -> Term:
        while True:
            term = await self._wait_for_term()
            task = asyncio.current_task()
            assert task is not None
            if term.valid:
                term.enter(self, task)
                self._term = term
                return term
            await asyncio.sleep(0)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> bool | None:
        term, task = self._term, asyncio.current_task()
        assert term is not None
        assert task is not None
        if term.leave(self) and task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise LeadershipLost(term.epoch, term.reason) from error
        return None


Callback = Callable[[Term], Awaitable[None]]


class Work:
    """What one component does while leading. `periodic` is called again and again."""

    def __init__(
        self,
        name: str,
        *,
        become: Callback | None = None,
        stop: Callback | None = None,
        periodic: Callback | None = None,
        interval: float = 1.0,
    ) -> None:
        self.name = name
        self.become = become
        self.stop = stop
        self.periodic = periodic
        self.interval = interval
        self.failures = 0
        """Of `periodic`, in a row."""


FAILURES_TO_RESIGN = 5
BACKOFF_S = (1.0, 2.0, 4.0, 8.0)


class TermRunner:
    """Runs the works of one term from its beginning to its end."""

    def __init__(
        self,
        works: Callable[[], Sequence[Work]],
        tasks: TaskGroup,
        on_failure: Callable[[str, Exception], None],
        on_unhealthy: Callable[[], None],
    ) -> None:
        self._works = works
        self._tasks = tasks
        self._on_failure = on_failure
        self._on_unhealthy = on_unhealthy

    async def run(self, term: Term) -> None:
        """Returns when the term has ended and everything under it has stopped."""
        works = tuple(self._works())
        started = [
            self._tasks.start(f"term {term.epoch} {work.name}", self._lead(work, term))
            for work in works
        ]
        running = [token.task for token in started if token.task is not None]
        await term.ended.wait()
        if term.reason in PLANNED:
            patience_s = STOP_PATIENCE_S if term.reason == "stopped" else PATIENCE_S
            await self._ended(term, running, patience_s)
        term.cancel_scopes()
        for task in running:
            if not term.is_excused(task):
                task.cancel()
        await self._ended(term, running, PATIENCE_S)
        for work in reversed(works):
            if work.stop is not None:
                await self._stop(work, work.stop, term)

    async def _lead(self, work: Work, term: Term) -> None:
        """A `become` that raises is repeated after a pause, as a turn of the work is."""
        began = work.become is None
        try:
            while term.valid:
                callback = work.periodic if began else work.become
                if callback is None:
                    return
                pause_s = await self._turn(work, callback, term)
                if pause_s is None and not began:
                    began = True
                    continue
                await self._pause(term, work.interval if pause_s is None else pause_s)
        except (LeadershipLost, StaleEpochError):
            return

    async def _turn(self, work: Work, callback: Callback, term: Term) -> float | None:
        """One call; the pause before the next one if it failed."""
        try:
            await callback(term)
        except Exception as error:
            # Of another fence or another group while this term goes on, they are failures, too.
            if isinstance(error, (LeadershipLost, StaleEpochError)) and not term.valid:
                raise
            self._on_failure(f"{work.name}_failed", error)
            work.failures += 1
            pause_s = BACKOFF_S[min(work.failures, len(BACKOFF_S)) - 1]
            if work.failures >= FAILURES_TO_RESIGN:
                work.failures = 0
                self._on_unhealthy()
            return pause_s
        work.failures = 0
        return None

    async def _pause(self, term: Term, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await term.ended.wait()

    async def _stop(self, work: Work, callback: Callback, term: Term) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await callback(term)
        except Exception as error:
            self._on_failure(f"{work.name}_stop_failed", error)

    async def _ended(
        self, term: Term, running: list[asyncio.Task[None]], patience_s: float
    ) -> None:
        """Works and scopes; or they did not end in that time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await term.scopes_left()
                left = [each for each in running if not each.done() and not term.is_excused(each)]
                if left:
                    await asyncio.wait(left)
