"""A mailbox as a stream, for stores that append in one step (Redis, SQLite, memory).

`mail/<owner>` is a stream: an append and a read are one request each. The store wakes the reader,
or the reader polls while an answer is due. On S3 a writer of a stream would pay a request for
every envelope of every other writer, so `record_mailbox` is used there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from squall.coordination.stores.interface import Append, Appended, Remove, Store, make_key
from squall.runtime.interfaces import Clock
from squall.runtime.tasks import TaskRunner
from squall.store_mode.transport.mailbox import (
    ENVELOPES_AT_ONCE,
    KIND,
    NetworkCounters,
    ReadRemover,
)
from squall.store_mode.transport.tuning import TransportTuning

REMOVES_AT_ONCE = 100


class StreamMailbox:
    """Implements `Mailbox` with one stream per mailbox."""

    def __init__(
        self,
        store: Store,
        *,
        own: str,
        clock: Clock,
        tasks: TaskRunner,
        tuning: TransportTuning,
        counters: NetworkCounters,
    ) -> None:
        self._store = store
        self._own = own
        self._clock = clock
        self._tuning = tuning
        self._counters = counters
        self._inbox = make_key(KIND, own)
        self._cursor = ""
        self._has_more = True
        self._busy_until = float("-inf")
        self._remover = ReadRemover(
            self._remove,
            at_once=REMOVES_AT_ONCE,
            wait_s=lambda: tuning.remove_s,
            clock=clock,
            tasks=tasks,
        )

    async def append(self, to: str, envelope_id: str, content: bytes) -> None:
        self._counters.requests += 1
        await self._store.write(
            Append(
                make_key(KIND, to),
                f"{self._own}-{envelope_id}",
                content,
                ttl_s=self._tuning.ttl_s,
                limit=self._tuning.inbox_envelopes,
            )
        )

    async def wait(self) -> None:
        if self._has_more:
            return
        pause_s = self._tuning.busy_poll_s
        # SQLite polls inside `wait`: while an answer is due, reading directly is quicker.
        if pause_s > 0.0 and self._clock.now() < self._busy_until:
            await self._clock.sleep(pause_s)
            return
        self._counters.requests += 1
        watch = Appended(self._inbox, self._cursor)
        await self._store.wait(watch, timeout_s=self._tuning.poll_s)

    async def read(self, senders: Collection[str], *, listens: bool) -> Sequence[bytes]:
        self._counters.requests += 1
        items = await self._store.read(self._inbox, after=self._cursor, limit=ENVELOPES_AT_ONCE)
        self._has_more = len(items) == ENVELOPES_AT_ONCE
        if items:
            self._cursor = items[-1].cursor
            self._remover.add(item.cursor for item in items)
            self.expect()
        return [item.value for item in items]

    def expect(self) -> None:
        self._busy_until = self._clock.now() + self._tuning.busy_s

    async def close(self) -> None:
        await self._remover.close()

    async def _remove(self, cursors: Sequence[str]) -> None:
        self._counters.requests += 1
        await self._store.write(*(Remove(self._inbox, cursor) for cursor in cursors))
