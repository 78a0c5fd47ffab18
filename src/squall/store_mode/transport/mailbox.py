"""The interface of a mailbox, which the network uses on every kind of store.

Two layouts implement `Mailbox`: `stream_mailbox` keeps a stream per mailbox, `record_mailbox` a
record per envelope, for S3. Both keep the envelopes of one sender in order, recognise a repeat
by its id, and let an inbox that is no longer read expire.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from squall.coordination.store_errors import CoordinationError
from squall.runtime.interfaces import Clock
from squall.runtime.tasks import TaskRunner, TaskToken

GROUP = "store network"
"""Task group of everything that a network starts."""
KIND = "mail"
ENVELOPES_AT_ONCE = 16
PENDING_MAX = 100_000
LAST_REMOVE_S = 1.0


class NetworkCounters(msgspec.Struct):
    """What a network has cost so far."""

    requests: int = 0
    """Requests to the store, as it counts and may charge them; a wait is one."""
    bytes_out: int = 0
    bytes_in: int = 0
    envelopes_out: int = 0
    envelopes_in: int = 0
    resets: int = 0
    """Connections that ended with an error."""
    outages: int = 0
    """How often the store stopped answering."""


class Mailbox(Protocol):
    """Appends to the mailboxes of others and reads this process's own."""

    async def append(self, to: str, envelope_id: str, content: bytes) -> None:
        """The caller sends one at a time per mailbox. After `StreamFullError` or an error of
        the store the envelope may have been stored: append the same one again."""
        ...

    async def wait(self) -> None:
        """Returns when there may be new envelopes, or after a while."""
        ...

    async def read(self, senders: Collection[str], *, listens: bool) -> Sequence[bytes]:
        """New envelopes, those of each sender in order. A process that does not listen may
        learn late of senders that it does not name."""
        ...

    def expect(self) -> None:
        """An answer or a new peer is expected: poll soon."""
        ...

    async def close(self) -> None: ...


class ReadRemover:
    """Removes envelopes that were read: some time later, many at once, and again after a
    failure. Those beyond `PENDING_MAX` are left to expire with the inbox."""

    def __init__(
        self,
        remove: Callable[[Sequence[str]], Awaitable[None]],
        *,
        at_once: int,
        wait_s: Callable[[], float],
        clock: Clock,
        tasks: TaskRunner,
    ) -> None:
        self._remove = remove
        self._at_once = at_once
        self._wait_s = wait_s
        self._clock = clock
        self._tasks = tasks
        # A dict as an ordered set: what was read first is removed first.
        self._read: dict[str, None] = {}
        self._task: TaskToken | None = None

    def add(self, names: Iterable[str]) -> None:
        if len(self._read) < PENDING_MAX:
            self._read.update(dict.fromkeys(names))
        if self._read and self._task is None:
            self._task = self._tasks.start("mail tidy", self._run(), group=GROUP)

    async def close(self) -> None:
        if self._task is not None:
            self._tasks.cancel(self._task)
            await self._tasks.stopped(self._task)
        with contextlib.suppress(CoordinationError, TimeoutError):
            async with asyncio.timeout(LAST_REMOVE_S):
                await self._round()

    async def _run(self) -> None:
        try:
            while self._read:
                await self._clock.sleep(self._wait_s())
                with contextlib.suppress(CoordinationError):
                    await self._round()
        finally:
            self._task = None

    async def _round(self) -> None:
        while self._read:
            names = list(islice(self._read, self._at_once))
            await self._remove(names)
            for name in names:
                self._read.pop(name, None)
