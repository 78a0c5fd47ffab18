"""Applies committed entries to the state machine, in log order, each one once.

The applier works in slices, so that a long run of entries does not block the event loop. The
caller decides what is committed. The machine must not raise (R3): if it does, it has a bug,
and the member must stop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from squall.cluster.ledger.interface import (
    Applied,
    Committed,
    Entry,
    OpNumber,
    OutcomeUnknown,
    StateMachine,
)
from squall.cluster.ledger.replica.types import NO_CHECKSUM, Base, Checksum, Kind, LogEntry
from squall.runtime.invariants import invariant
from squall.runtime.tasks import TaskRunner, TaskToken

Answer = asyncio.Future[Committed]
COMMAND = Kind.COMMAND
NEVER = 1 << 62
"""Above every op number."""


class Applier:
    """Applies committed entries one by one, starting after the checkpoint that was loaded."""

    def __init__(
        self,
        machine: StateMachine,
        slice_entries: int,
        on_broken: Callable[[Exception], None] | None = None,
    ) -> None:
        """`on_broken` receives the machine's exception. A ledger that is created after its
        applier sets it later, before the first commit."""
        self.machine = machine
        self.applied = OpNumber(0)
        # The checksum of the last applied entry.
        self.checksum: Checksum = NO_CHECKSUM
        self.group_ms = 0
        self.active_version = 1
        self._slice = slice_entries
        self._queue: deque[tuple[LogEntry, Answer | None]] = deque()
        self._callbacks: list[Applied] = []
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        # The lowest op in `_waiters`: one comparison per entry instead of a scan.
        self._wake_at = NEVER
        self._more = asyncio.Event()
        self.on_broken = on_broken or _raise
        self._broken: Exception | None = None

    def start(self, tasks: TaskRunner) -> TaskToken:
        return tasks.start("apply", self._run(), group="ledger", on_error=self.on_broken)

    def restore(self, base: Base) -> None:
        """Continues after `base`, whose state the caller has loaded into the machine."""
        self.applied = base.op
        self.checksum = base.checksum
        self.group_ms = base.group_ms
        self.active_version = base.active_version

    def on_applied(self, callback: Applied) -> None:
        self._callbacks.append(callback)

    def commit(self, entries: Iterable[tuple[LogEntry, Answer | None]]) -> None:
        """Takes committed entries in log order. It applies the first slice before it returns,
        and leaves the rest to the task."""
        busy = bool(self._queue)
        self._queue.extend(entries)
        if not busy:
            self._drain()

    async def wait(self, op: int) -> None:
        """Waits until entry `op` is applied. Raises the error given to `abandon`."""
        if self.applied >= op:
            return
        if self._broken is not None:
            raise self._broken
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((op, future))
        self._wake_at = min(self._wake_at, op)
        await future

    def abandon(self, error: Exception) -> None:
        """Stops applying, and fails everything that waits with `error`."""
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
            # Format the text only on failure: replay runs this for every entry.
            invariant(False, f"entry {entry.op} follows {self.applied} in the log")
        if entry.group_ms < self.group_ms:
            invariant(False, "the group clock goes back in the log")
        result = b""
        command = None
        if entry.kind is COMMAND:
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
        if self.applied >= self._wake_at:
            self._wake()

    def _wake(self) -> None:
        due = [future for op, future in self._waiters if op <= self.applied]
        self._waiters = [waiter for waiter in self._waiters if waiter[0] > self.applied]
        self._wake_at = min((op for op, _ in self._waiters), default=NEVER)
        for future in due:
            if not future.done():
                future.set_result(None)

    def _drain(self) -> None:
        """Applies one slice; wakes the task if entries remain."""
        if self._broken is not None:
            return
        try:
            queue, apply, left = self._queue, self.apply, self._slice
            while queue and left:
                # The entry stays in the queue until it is applied, so that `abandon` can fail
                # its answer.
                apply(*queue[0])
                queue.popleft()
                left -= 1
        except Exception as error:
            self.on_broken(error)
            return
        if self._queue:
            self._more.set()

    async def _run(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            # Let other tasks run between two slices.
            await asyncio.sleep(0)
            self._drain()


def _raise(error: Exception) -> None:
    raise error
