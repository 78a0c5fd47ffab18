"""The background tasks of one node: every task has a name, an owner and an end.

A node starts tasks here and nowhere else. A failed task is counted and reported to its owner,
then to the node; the failure of an essential task ends the node. Shutdown cancels everything,
waits until its deadline and names what did not stop.

It runs on any asyncio loop and reads time only from the given clock, so it behaves the same
in a simulation. It loses no exception and keeps no finished task.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from squall.runtime.backoff import Backoff
from squall.runtime.interfaces import Clock

OnError = Callable[[Exception], None]
# A task may swallow its cancellation, as `except BaseException` does: it gets another one
# twice a second until the deadline of the shutdown.
CANCEL_AGAIN = Backoff(0.5, factor=1.0)


class TaskState(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class TaskFailure:
    name: str
    group: str
    essential: bool
    error: Exception


@dataclass(frozen=True)
class TaskInfo:
    name: str
    group: str
    essential: bool
    age_s: float


@dataclass
class TaskCounts:
    started: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: int = 0
    """Started after shutdown began, so they never ran."""


class TaskToken:
    """One started task; `TaskRunner.cancel` takes it."""

    __slots__ = ("essential", "group", "name", "on_error", "since", "state", "task")

    def __init__(self, name: str, group: str, essential: bool, on_error: OnError | None) -> None:
        self.name = name
        self.group = group
        self.essential = essential
        self.on_error = on_error
        self.since = 0.0
        self.state = TaskState.RUNNING
        self.task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<task {self.name} {self.state}>"


class TaskRunner:
    """Owns all tasks of a node. `on_failure` is called for every failed task, for the log."""

    def __init__(
        self,
        clock: Clock,
        random: random.Random,
        *,
        on_failure: Callable[[TaskFailure], None] | None = None,
    ) -> None:
        self._clock = clock
        self._random = random
        self._on_failure = on_failure
        self._tokens: dict[TaskToken, None] = {}
        self._stopping = False
        self._fatal: TaskFailure | None = None
        self._fatal_failed = asyncio.Event()
        self.counts = TaskCounts()

    def start(
        self,
        name: str,
        coroutine: Coroutine[Any, Any, Any],
        *,
        group: str = "",
        essential: bool = False,
        on_error: OnError | None = None,
    ) -> TaskToken:
        """Runs `coroutine` as a task. After shutdown began, the coroutine is closed without
        running, so the callbacks of a node that ends need no special case."""
        token = TaskToken(name, group, essential, on_error)
        if self._stopping:
            coroutine.close()
            self.counts.refused += 1
            token.state = TaskState.CANCELLED
            return token
        token.since = self._clock.now()
        token.task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tokens[token] = None
        self.counts.started += 1
        token.task.add_done_callback(lambda task: self._ended(token, task))
        return token

    def every(
        self,
        name: str,
        interval_s: float,
        function: Callable[[], Awaitable[Any] | None],
        *,
        jitter: float = 0.1,
        group: str = "",
        essential: bool = False,
        on_error: OnError | None = None,
    ) -> TaskToken:
        """Calls `function` once per interval, first after one interval. Each wait varies by up to
        the share `jitter`, so that nodes do not run in step. A call that raises is reported
        and the calls go on, unless the task is essential."""
        turns = self._turns(name, interval_s, function, jitter, group, essential, on_error)
        return self.start(name, turns, group=group, essential=essential, on_error=on_error)

    def group(self, name: str) -> TaskGroup:
        return TaskGroup(self, name)

    def cancel(self, token: TaskToken) -> None:
        """Cancels the task if it still runs."""
        if token.task is not None:
            token.task.cancel()

    def cancel_group(self, group: str) -> None:
        for token in [token for token in self._tokens if token.group == group]:
            self.cancel(token)

    async def stopped(self, token: TaskToken) -> TaskState:
        """Waits until the task has ended and returns how it ended."""
        if token.task is not None and not token.task.done():
            await asyncio.wait([token.task])
        if token.state is TaskState.RUNNING:
            # The task ended in this turn; the callback that sets the state runs in the next.
            await asyncio.sleep(0)
        return token.state

    @property
    def running(self) -> tuple[TaskInfo, ...]:
        """In the order of their start."""
        now = self._clock.now()
        return tuple(
            TaskInfo(token.name, token.group, token.essential, now - token.since)
            for token in self._tokens
        )

    async def fatal(self) -> TaskFailure:
        """Returns when an essential task has failed; the node must end then."""
        while self._fatal is None:
            await self._fatal_failed.wait()
        return self._fatal

    async def shutdown(self, deadline_s: float) -> tuple[TaskInfo, ...]:
        """Cancels all tasks and waits; returns those that still run at the deadline. It does
        not cancel the calling task."""
        self._stopping = True
        deadline = self._clock.now() + deadline_s
        me = asyncio.current_task()
        while tasks := [
            token.task for token in self._tokens if token.task is not None and token.task is not me
        ]:
            for task in tasks:
                task.cancel()
            remaining_s = deadline - self._clock.now()
            if remaining_s <= 0.0:
                break
            await asyncio.wait(tasks, timeout=min(remaining_s, CANCEL_AGAIN.first_s))
        own = next((token for token in self._tokens if token.task is me), None)
        return tuple(
            info for token, info in zip(self._tokens, self.running, strict=True) if token is not own
        )

    async def _turns(
        self,
        name: str,
        interval_s: float,
        function: Callable[[], Awaitable[Any] | None],
        jitter: float,
        group: str,
        essential: bool,
        on_error: OnError | None,
    ) -> None:
        while True:
            await self._clock.sleep(interval_s * self._random.uniform(1.0 - jitter, 1.0 + jitter))
            try:
                result = function()
                if inspect.isawaitable(result):
                    await result
            except Exception as error:
                if essential:
                    raise
                self._failed(TaskFailure(name, group, essential, error), on_error)

    def _ended(self, token: TaskToken, task: asyncio.Task[None]) -> None:
        del self._tokens[token]
        if task.cancelled():
            token.state = TaskState.CANCELLED
            self.counts.cancelled += 1
            return
        error = task.exception()
        if error is None:
            token.state = TaskState.COMPLETED
            self.counts.completed += 1
            return
        token.state = TaskState.FAILED
        if isinstance(error, Exception):
            failure = TaskFailure(token.name, token.group, token.essential, error)
            self._failed(failure, token.on_error)
        else:
            # KeyboardInterrupt or SystemExit: the loop itself hands it to its caller.
            self.counts.failed += 1

    def _failed(self, failure: TaskFailure, on_error: OnError | None) -> None:
        self.counts.failed += 1
        if failure.essential and self._fatal is None:
            self._fatal = failure
            self._fatal_failed.set()
        if on_error is not None:
            try:
                on_error(failure.error)
            except Exception as error:
                # The owner's callback failed; the first error is still reported below.
                self._report(TaskFailure(f"{failure.name}.on_error", failure.group, False, error))
        self._report(failure)

    def _report(self, failure: TaskFailure) -> None:
        loop = asyncio.get_running_loop()
        if self._on_failure is None:
            message = f"task {failure.name} failed"
            loop.call_exception_handler({"message": message, "exception": failure.error})
            return
        with contextlib.suppress(Exception):
            self._on_failure(failure)


class TaskGroup:
    """Tasks of one job or one connection, which are cancelled together."""

    def __init__(self, runner: TaskRunner, name: str) -> None:
        self._runner = runner
        self.name = name

    def start(
        self,
        name: str,
        coroutine: Coroutine[Any, Any, Any],
        *,
        essential: bool = False,
        on_error: OnError | None = None,
    ) -> TaskToken:
        return self._runner.start(
            name, coroutine, group=self.name, essential=essential, on_error=on_error
        )

    def every(
        self,
        name: str,
        interval_s: float,
        function: Callable[[], Awaitable[Any] | None],
        *,
        jitter: float = 0.1,
        essential: bool = False,
        on_error: OnError | None = None,
    ) -> TaskToken:
        return self._runner.every(
            name,
            interval_s,
            function,
            jitter=jitter,
            group=self.name,
            essential=essential,
            on_error=on_error,
        )

    def cancel(self) -> None:
        self._runner.cancel_group(self.name)
