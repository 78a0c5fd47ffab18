"""Applies committed entries to the state machine, in their order, each once.

Long runs of entries are applied in slices, so that the loop gets its turns. It decides
nothing: what is committed is the caller's word. An entry that makes the machine raise is
a bug in the machine, and the member must not go on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from squall.ledger.interface import (
    Applied,
    Committed,
    Entry,
    OpNumber,
    OutcomeUnknown,
    StateMachine,
)
from squall.ledger.replica.types import NO_CHECKSUM, Base, Checksum, Kind, LogEntry
from squall.runtime.invariants import invariant
from squall.runtime.tasks import TaskRunner, TaskToken

Answer = asyncio.Future[Committed]


class Applier:
    """Stands before `applied + 1`. After a checkpoint, `restore` says where that is."""

    def __init__(
        self, machine: StateMachine, slice_entries: int, on_broken: Callable[[Exception], None]
    ) -> None:
        self.machine = machine
        self.applied = OpNumber(0)
        self.checksum: Checksum = NO_CHECKSUM
        """Of the last applied entry."""
        self.group_ms = 0
        self.active_version = 1
        self._slice = slice_entries
        self._queue: deque[tuple[LogEntry, Answer | None]] = deque()
        self._callbacks: list[Applied] = []
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._more = asyncio.Event()
        self._on_broken = on_broken
        self._broken: Exception | None = None

    def start(self, tasks: TaskRunner) -> TaskToken:
        return tasks.start("apply", self._run(), group="ledger", on_error=self._on_broken)

    def restore(self, base: Base) -> None:
        """The machine was loaded with the state that `base` stands for."""
        self.applied = base.op
        self.checksum = base.checksum
        self.group_ms = base.group_ms
        self.active_version = base.active_version

    def on_applied(self, callback: Applied) -> None:
        self._callbacks.append(callback)

    def commit(self, entries: Iterable[tuple[LogEntry, Answer | None]]) -> None:
        """In the order of the log. The first slice is applied at once, the rest soon."""
        busy = bool(self._queue)
        self._queue.extend(entries)
        if not busy:
            self._drain()

    async def wait(self, op: int) -> None:
        """Until that entry is applied. Raises what `abandon` was given."""
        if self.applied >= op:
            return
        if self._broken is not None:
            raise self._broken
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((op, future))
        await future

    def abandon(self, error: Exception) -> None:
        """Nothing more will be applied; what waits is told."""
        if self._broken is None:
            self._broken = error
        waiters, self._waiters = self._waiters, []
        for _, future in waiters:
            if not future.done():
                future.set_exception(error)
                future.exception()
        queue, self._queue = self._queue, deque[tuple[LogEntry, Answer | None]]()
        for _, answer in queue:
            if answer is not None and not answer.done():
                answer.set_exception(OutcomeUnknown(f"committed and not applied here: {error}"))

    def apply(self, entry: LogEntry, answer: Answer | None = None) -> None:
        if entry.op != self.applied + 1 or entry.previous != self.checksum:
            # The text is made only now: this is the inner loop of every start.
            invariant(False, f"entry {entry.op} follows {self.applied} in the log")
        if entry.group_ms < self.group_ms:
            invariant(False, "the group clock goes back in the log")
        result = b""
        command = None
        if entry.kind is Kind.COMMAND:
            command = Entry(entry.op, entry.group_ms, entry.version, entry.body)
            result = self.machine.apply(command)
        elif entry.kind is Kind.ACTIVATE:
            self.active_version = max(self.active_version, entry.version)
        self.applied = entry.op
        self.checksum = entry.checksum
        self.group_ms = entry.group_ms
        if command is not None:
            for callback in self._callbacks:
                callback(command, result)
        if answer is not None and not answer.done():
            answer.set_result(Committed(entry.op, entry.group_ms, result))
        if self._waiters:
            self._wake()

    def _wake(self) -> None:
        due = [future for op, future in self._waiters if op <= self.applied]
        self._waiters = [waiter for waiter in self._waiters if waiter[0] > self.applied]
        for future in due:
            if not future.done():
                future.set_result(None)

    def _drain(self) -> None:
        """One slice now; the task does the rest."""
        if self._broken is not None:
            return
        try:
            for _ in range(min(self._slice, len(self._queue))):
                # Stays in the queue until it is applied, so that it is told if it is not.
                self.apply(*self._queue[0])
                self._queue.popleft()
        except Exception as error:
            self._on_broken(error)
            return
        if self._queue:
            self._more.set()

    async def _run(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            # The others' turn, between two slices.
            await asyncio.sleep(0)
            self._drain()
