"""Runs the work of the leader, and ensures that it has ended before the next leader begins.

A `Term` is one epoch in which this member leads. Its end cancels the work under it. A planned end
first lets work finish, because the member still holds the lease: for `END_TIMEOUT_S`, or for
`STOP_TIMEOUT_S` when the member stops. Become and stop callbacks alternate and never overlap. The
runner never reports the end of work while some of it runs, unless that work ignored its
cancellation for `END_TIMEOUT_S`. When the member stops it waits `IGNORED_S` for that and then calls
the stop callbacks, but does not report the end: the lease runs out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from squall.coordination.election.messages import PLANNED
from squall.coordination.errors import LeadershipLost, StaleEpochError
from squall.coordination.records.keys import LEADER
from squall.coordination.stores.interface import Fence, Store, Write, check_own_writes
from squall.coordination.value_rules import async_function, check, or_none, seconds
from squall.runtime.backoff import Backoff
from squall.runtime.tasks import TaskGroup

END_TIMEOUT_S = 10.0
# A stop has ten seconds: two for plugins that return what they hold, these two for the work, the
# rest for callbacks, the lease and the registration.
STOP_TIMEOUT_S = 4.0
IGNORED_S = 1.0
# After so many failures in a row of one work, another member shall try.
FAILURES_TO_RESIGN = 5
# A callback of the leader failed. Four pauses pass before the fifth failure makes it resign: 15 s,
# about as long as a failover takes.
WORK_BACKOFF = Backoff(first_s=1.0, cap_s=8.0)


class Term:
    """One epoch in which this member leads. Act under it only while `valid`."""

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
        # In the order of entry: of one task, the outermost scope comes first.
        self._scopes: dict[object, asyncio.Task[Any]] = {}
        self._cancelled: set[object] = set()
        self._exempt_task: asyncio.Task[Any] | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def valid(self) -> bool:
        """False from the local limit of the lease on; asks only the local clock."""
        return not self.ended.is_set() and self._leads()

    def check(self) -> None:
        if not self.valid:
            raise LeadershipLost(self.epoch, self.reason or "lease_lost")

    async def write(self, *writes: Write) -> tuple[str, ...]:
        """Writes records of the application under the fence: the store refuses once a higher epoch
        exists. Records of the library are refused with `ConfigurationError`."""
        check_own_writes(writes)
        return await self._write(*writes)

    async def _write(self, *writes: Write) -> tuple[str, ...]:
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

    # Scopes: the bodies of `async with coordinator.lead()`.

    def enter(self, scope: object, task: asyncio.Task[Any]) -> None:
        self._scopes[scope] = task
        self._empty.clear()

    def leave(self, scope: object) -> bool:
        """Whether the end of the term cancelled the task for this scope."""
        self._scopes.pop(scope, None)
        cancelled = scope in self._cancelled
        self._cancelled.discard(scope)
        if not self._scopes:
            self._empty.set()
        return cancelled

    def exempt(self, task: asyncio.Task[Any] | None) -> None:
        """A task that stops the member from inside its own work waits for the end of the term: to
        wait for it, or to cancel it, would be a deadlock."""
        self._exempt_task = task
        for scope in [scope for scope, each in self._scopes.items() if each is task]:
            self.leave(scope)

    def is_exempt(self, task: asyncio.Task[Any]) -> bool:
        return task is self._exempt_task

    def cancel_scopes(self) -> None:
        """Cancels each task once, for its outermost scope; inner scopes let it pass."""
        cancelled = {self._scopes[scope] for scope in self._cancelled}
        for scope, task in self._scopes.items():
            if task not in cancelled:
                cancelled.add(task)
                self._cancelled.add(scope)
                task.cancel()

    async def scopes_left(self) -> None:
        await self._empty.wait()


async def write_library_records(term: Term, *writes: Write) -> tuple[str, ...]:
    """As `term.write`, for the library's own records. No method of `Term`, which applications
    have: one of theirs must not damage the records of the group by mistake."""
    return await term._write(*writes)  # pyright: ignore[reportPrivateUsage]


class LeadScope:
    """`async with coordinator.lead() as term`: waits until the member leads.

    The end of the term cancels the body; the block then raises `LeadershipLost`.
    """

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
    """The callbacks of one component of the leader.

    `become` runs once at the begin of a term, `periodic` every `interval` seconds, `stop` at the
    end.
    """

    def __init__(
        self,
        name: str,
        *,
        become: Callback | None = None,
        stop: Callback | None = None,
        periodic: Callback | None = None,
        interval: float = 1.0,
    ) -> None:
        for what, callback in (("become", become), ("stop", stop), ("periodic", periodic)):
            check(what, callback, or_none(async_function("f")))
        check("interval", interval, seconds(above=0.0, example=1.0))
        self.name = name
        self.become = become
        self.stop = stop
        self.periodic = periodic
        self.interval = interval
        # Failed calls in a row; a call that succeeds resets it.
        self.failures = 0


class TermRunner:
    """Runs all works of a term from its begin to its end."""

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

    async def run(self, term: Term) -> bool:
        """Returns when the term has ended and everything under it has stopped. False if the member
        stops and some work still runs, because it ignored its cancellation."""
        works = tuple(self._works())
        started = [
            self._tasks.start(f"term {term.epoch} {work.name}", self._lead(work, term))
            for work in works
        ]
        running = [token.task for token in started if token.task is not None]
        await term.ended.wait()
        if term.reason in PLANNED:
            timeout_s = STOP_TIMEOUT_S if term.reason == "stopped" else END_TIMEOUT_S
            await self._ended(term, running, timeout_s)
        term.cancel_scopes()
        for task in running:
            if not term.is_exempt(task):
                task.cancel()
        is_stopped = term.reason == "stopped"
        ended = await self._ended(term, running, IGNORED_S if is_stopped else END_TIMEOUT_S)
        if not ended:
            left = [
                work.name for work, task in zip(works, running, strict=False) if not task.done()
            ]
            self._on_failure("work_ignored_its_end", RuntimeError(", ".join(left) or "a scope"))
        for work in reversed(works):
            if work.stop is not None:
                await self._stop(work, work.stop, term)
        return ended or not is_stopped

    async def _lead(self, work: Work, term: Term) -> None:
        """Repeats a `become` that raises, with the same backoff as a failed turn."""
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
            # From another group or another fence, while this term goes on, these are ordinary
            # failures of the callback.
            if isinstance(error, (LeadershipLost, StaleEpochError)) and not term.valid:
                raise
            self._on_failure(f"{work.name}_failed", error)
            work.failures += 1
            pause_s = WORK_BACKOFF.delay_s(work.failures)
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
            async with asyncio.timeout(END_TIMEOUT_S):
                await callback(term)
        except Exception as error:
            self._on_failure(f"{work.name}_stop_failed", error)

    async def _ended(self, term: Term, running: list[asyncio.Task[None]], timeout_s: float) -> bool:
        """Waits for works and scopes, at most for `timeout_s`; whether they ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await term.scopes_left()
                left = [each for each in running if not each.done() and not term.is_exempt(each)]
                if left:
                    await asyncio.wait(left)
                return True
        return False
