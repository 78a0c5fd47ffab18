"""The write-ahead log: numbers records, puts them on disk in their order, says when.

States: open -> closing -> closed, and from anywhere -> failed. `accept` gives a record
its number at once. One task owns the file: it takes all that waits (up to a bound) as
one block, appends and syncs it in one call, then lets everybody know. No timer waits for
company: what arrives during a sync is the next block. At most one block is in flight, so
a block on disk proves that those before it were synced.

A failed sync, or an append that could not be taken back, ends it for good: everything
that waits fails, nothing is retried, the durable position stays. A full disk fails what
waits and leaves the log as it was.

Invariants: accepted = written + waiting; durable <= written <= accepted; numbers are
dense from 1; what `durable_lsn` covers survives a loss of power.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Protocol

from squall.ledger.settings import Durability, WalSettings
from squall.ledger.wal.batch import Batch, Order, fail
from squall.ledger.wal.counters import SyncTimer, WalCounters
from squall.ledger.wal.errors import DiskFull, TooLarge, WalBusy, WalClosed, WalFailed
from squall.ledger.wal.format import (
    BLOCK_HEADER_BYTES,
    CLEAN,
    MAX_BLOCK_BYTES,
    RECORD_OVERHEAD_BYTES,
    RESET,
    FileHeader,
    encode_block,
)
from squall.ledger.wal.recovery import Recovered, begin, release
from squall.ledger.wal.room import Room
from squall.ledger.wal.segments import Hold, Segment, SegmentTable
from squall.runtime.interfaces import Clock, Disk, File
from squall.runtime.invariants import invariant
from squall.runtime.tasks import TaskRunner

NONE, FSYNC = Durability.NONE, Durability.FSYNC


class WalListener(Protocol):
    """Hears, on the loop, what became of accepted records. Must not raise."""

    def on_durable(self, lsn: int) -> None:
        """All up to here survives a loss of power."""
        ...

    def on_refused(self, from_lsn: int, error: DiskFull) -> None:
        """The accepted records from here on are not in the log and never will be."""
        ...

    def on_failed(self, error: WalFailed) -> None:
        """What is not durable by now has an unknown outcome."""
        ...


class Wal:
    """Made by `open.open_wal`."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        directory: str,
        identity: bytes,
        settings: WalSettings,
        recovered: Recovered,
        file: File,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.recovered = recovered
        self.counters = WalCounters()
        self.failure: WalFailed | None = None
        self.disk = disk
        self.table: SegmentTable = recovered.table
        self.cuts = 0
        """Readers look at it to see that numbers were taken back."""
        self._timer = SyncTimer(clock, self.counters, settings.slow_sync_s)
        self._identity = identity
        self._file = file
        self._accepted = self._written = self._durable = recovered.next_lsn - 1
        self._next_block = recovered.next_block
        self._queue: deque[Batch | Order] = deque()
        self._filling: Batch | None = None
        """The last in the queue, if it takes more records."""
        self._flying: Batch | None = None
        """The records at the disk."""
        self._batch_bytes = min(settings.max_batch_bytes, MAX_BLOCK_BYTES // 2)
        self._room = Room(settings.max_waiting_records, settings.max_waiting_bytes)
        self._followers: list[tuple[int, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._listener: WalListener | None = None
        self._leaving: deque[Segment] = deque()
        """Out of the table, and perhaps still on disk."""
        self._compacting = asyncio.Lock()
        self._closed = False

    def start(self, tasks: TaskRunner) -> None:
        token = tasks.start("wal writer", self._run(), group="ledger", on_error=self._broke)
        if token.task is None:
            self._fail(WalFailed("the node is stopping"))

    def listen(self, listener: WalListener) -> None:
        self._listener = listener

    # Positions.

    @property
    def first_lsn(self) -> int:
        """The oldest record that is still there, if there is any."""
        return self.table.first_lsn

    @property
    def next_lsn(self) -> int:
        return self._accepted + 1

    @property
    def durable_lsn(self) -> int:
        return self._durable

    @property
    def waiting_bytes(self) -> int:
        return self._room.bytes

    @property
    def waiting_records(self) -> int:
        return self._room.records

    @property
    def room_waits(self) -> int:
        """How often a caller had to wait for room."""
        return self._room.waits

    @property
    def bytes_on_disk(self) -> int:
        return sum(segment.readable for segment in self.table.segments)

    def sync_age_s(self) -> float:
        """How long the call that is at the disk now has been there; 0 when there is none."""
        return self._timer.age_s()

    # Writing.

    def has_room(self, size: int, records: int = 1) -> bool:
        return self._room.fits(size, records)

    def accept(self, kind: int, body: bytes, durability: Durability | None = None) -> int:
        """The number of the record, which is not durable yet. Raises WalBusy, WalClosed,
        WalFailed, TooLarge, and then it is not and will not be in the log."""
        self._check()
        size = self._fitting(body)
        if not self._room.fits(size, 1):
            raise WalBusy(f"{self._room.records} records wait for the disk")
        self._room.take(size, 1)
        self._add(kind, body, size, durability)
        return self._accepted

    def append(
        self,
        kind: int,
        body: bytes,
        durability: Durability | None = None,
        *,
        room_s: float | None = None,
    ) -> Awaitable[int]:
        """Takes the record at once, or when there is room for it (WalBusy after `room_s`).
        Awaited, it gives the number when the record is as durable as asked for. Cancelled
        after it was taken, its outcome is unknown. No coroutine: dozens per block tell."""
        if self.failure is not None or self._closed:
            self._check()
        size = len(body)
        if size > self.settings.max_record_bytes:
            self._fitting(body)
        if not self._room.enter(size):
            return self._append_in_turn(kind, body, durability, room_s)
        return self._append(kind, body, size, durability)

    def _append(
        self, kind: int, body: bytes, size: int, durability: Durability | None
    ) -> asyncio.Future[int]:
        future = self._loop.create_future()
        batch = self._add(kind, body, size, durability)
        if durability is NONE or (durability is None and self.settings.durability is NONE):
            future.set_result(self._accepted)
        else:
            batch.callers.append((self._accepted, future))
        return future

    async def _append_in_turn(
        self, kind: int, body: bytes, durability: Durability | None, room_s: float | None
    ) -> int:
        await self._room.wait(len(body), 1, room_s)
        self._check()
        self._room.take(len(body), 1)
        return await self._append(kind, body, len(body), durability)

    async def append_many(self, records: Sequence[tuple[int, bytes]]) -> range:
        """Several records with numbers in a row, and one wait."""
        if not records:
            return range(self.next_lsn, self.next_lsn)
        size = sum(self._fitting(body) for _, body in records)
        self._check()
        await self._room.wait(size, len(records), None)
        self._check()
        self._room.take(size, len(records))
        first = self.next_lsn
        *rest, (kind, last) = records
        for other, body in rest:
            self._add(other, body, len(body), None)
        await self._append(kind, last, len(last), None)
        return range(first, first + len(records))

    def _fitting(self, body: bytes) -> int:
        """Its size."""
        size = len(body)
        limit = self.settings.max_record_bytes
        if size > limit:
            raise TooLarge(f"a record of {size} bytes is over the limit of {limit}")
        return size

    def _add(self, kind: int, body: bytes, size: int, durability: Durability | None) -> Batch:
        """Into the batch that is being filled, or a new one."""
        batch = self._filling
        if (
            batch is None
            or batch.size + size > self._batch_bytes
            or len(batch.bodies) >= self.settings.max_batch_records
        ):
            batch = self._filling = Batch()
            self._queue.append(batch)
            self._wake.set()
        batch.kinds.append(kind)
        batch.bodies.append(body)
        batch.size += size
        self._accepted += 1
        if durability is None:
            durability = self.settings.durability
        if durability >= FSYNC:
            batch.syncs = True
            if durability is FSYNC:
                self._filling = None
        return batch

    async def flush(self) -> None:
        """All that was accepted before is durable when it returns."""
        self._check()
        await self._order(Order(self._future()))

    async def cut(self, lsn: int) -> None:
        """Takes back the records from `lsn` on; the next one gets that number."""
        self._check()
        invariant(self.first_lsn <= lsn <= self.next_lsn, f"a cut to {lsn} is outside the log")
        await self._renumber(Order(self._future(), cut_to=lsn))

    async def reset(self, lsn: int) -> None:
        """Forgets all records; the next one gets that number. For a state that came
        whole from elsewhere."""
        self._check()
        await self._renumber(Order(self._future(), cut_to=lsn, reset=True))

    async def close(self) -> None:
        """Writes what was accepted, then a mark that says so. Safe to call again."""
        if self._closed:
            return
        self._closed = True
        self._room.turn_away(WalClosed("the log was closed"))
        if self.failure is None:
            await self._order(Order(self._future(), closes=True))
        for _, waiter in self._followers:
            fail(waiter, WalClosed("the log was closed"))
        await release(self._file)

    # Following.

    def hold(self, lsn: int) -> Hold:
        """Keeps the records from `lsn` on from being compacted away."""
        return Hold(self.table.holds, lsn)

    async def wait_durable(self, lsn: int) -> None:
        if self._durable >= lsn:
            return
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise WalClosed("the log was closed")
        future = self._future()
        self._followers.append((lsn, future))
        await future

    async def compact(self, below_lsn: int) -> int:
        """Deletes segments of which no record is at or above `below_lsn` or a hold; says
        how many. One by one from the oldest, so that no crash leaves a gap."""
        self._leaving.extend(self.table.obsolete(below_lsn))
        count = 0
        async with self._compacting:
            while self._leaving:
                # One whose deletion failed before comes first again, and is still there or
                # not: a younger one must not go before it is surely gone.
                with suppress(FileNotFoundError):
                    await self.disk.remove(self._leaving[0].path)
                await self.disk.sync_directory(self.directory)
                self._leaving.popleft()
                count += 1
        return count

    # The task that owns the file.

    async def _run(self) -> None:
        ended = False
        try:
            while self.failure is None:
                if not self._queue:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                head = self._queue[0]
                if isinstance(head, Batch):
                    await self._write(head)
                else:
                    await self._obey(head)
                    ended = head.closes
                    if ended:
                        return
        finally:
            if not ended:
                self._fail(WalFailed("the writer was stopped"))

    async def _write(self, batch: Batch) -> None:
        self._queue.popleft()
        if batch is self._filling:
            self._filling = None
        self._flying = batch
        whole = BLOCK_HEADER_BYTES + len(batch) * RECORD_OVERHEAD_BYTES + batch.size
        first = self._written + 1
        try:
            if self._file.size + whole > self.settings.segment_bytes and self._used():
                await self._roll(first, reset=False)
            segment = self.table.active
            block = encode_block(
                segment.seed,
                self._next_block,
                first,
                self._durable,
                batch.kinds,
                batch.bodies,
            )
            offset = self._file.size
            await self._put(block, syncs=batch.syncs)
        except OSError as error:
            await self._refuse(batch, error)
            return
        self._flying = None
        segment.mark(first, offset)
        self._next_block += 1
        self._written += len(batch)
        counters = self.counters
        counters.records += len(batch)
        counters.blocks += 1
        counters.bytes += len(block)
        if batch.syncs:
            self._publish()
        batch.release()
        self._room.give_back(batch.size, len(batch))

    async def _put(self, data: bytes, *, syncs: bool) -> None:
        """One hop to the disk."""
        if not syncs:
            await self._file.append(data)
            return
        with self._timer:
            await self._file.append_and_sync(data)

    async def _sync(self) -> None:
        with self._timer:
            await self._file.sync()
        self._publish()

    def _publish(self) -> None:
        self._durable = self._written
        self.table.active.readable = self._file.size
        if self._listener is not None:
            self._listener.on_durable(self._durable)
        if self._followers:
            due = [future for lsn, future in self._followers if lsn <= self._durable]
            self._followers = [f for f in self._followers if f[0] > self._durable]
            for future in due:
                if not future.done():
                    future.set_result(None)

    async def _obey(self, order: Order) -> None:
        """It stays in the queue until it is done, so that it is told of a failure."""
        try:
            if self._written > self._durable:
                await self._sync()
            if order.cut_to:
                await self._roll(order.cut_to, reset=order.reset)
                self._written = self._durable = order.cut_to - 1
                self.cuts += 1
            if order.closes:
                segment = self.table.active
                sequence, lsn = self._next_block, self._written + 1
                mark = encode_block(segment.seed, sequence, lsn, self._durable, (), (), CLEAN)
                await self._file.append_and_sync(mark)
        except OSError as error:
            self._fail(WalFailed(f"cannot write {self.table.active.path}: {error}"))
            return
        self._queue.popleft()
        if not order.future.done():
            order.future.set_result(None)

    async def _roll(self, first_lsn: int, *, reset: bool) -> None:
        """Goes on in a new segment, when the old one is durable."""
        if self._written > self._durable:
            await self._sync()
        before = self.table.active
        flags = RESET if reset else 0
        header = FileHeader(self._identity, before.number + 1, first_lsn, self._next_block, flags)
        with self._timer:
            segment, file = await begin(self.disk, self.directory, header, self.settings)
        old, self._file = self._file, file
        void = self.table.add(segment, reset=reset)
        self.counters.rolls += 1
        await release(old)
        await self._drop(void)

    async def _drop(self, void: list[Segment]) -> None:
        for segment in void:
            await self.disk.remove(segment.path)

    def _used(self) -> bool:
        return self._written >= self.table.active.first_lsn

    # What goes wrong.

    async def _refuse(self, batch: Batch, error: OSError) -> None:
        """A full disk that left the file as it was fails all that waits; all else ends
        the log."""
        self._flying = None
        self._queue.appendleft(batch)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or self._file.poisoned:
            self._fail(WalFailed(f"cannot write {self.table.active.path}: {error}"))
            return
        try:
            # What was taken back must not come again behind the next block.
            await self._sync()
        except OSError as worse:
            self._fail(WalFailed(f"cannot sync {self.table.active.path}: {worse}"))
            return
        self.counters.full += 1
        full = DiskFull(f"no space left for {self.table.active.path}")
        from_lsn = self._written + 1
        queue = self._emptied()
        self._accepted = self._written
        for item in queue:
            if isinstance(item, Order) and not item.cut_to:
                self._queue.append(item)
            else:
                item.fail(full)
        if self._listener is not None:
            self._listener.on_refused(from_lsn, full)
        self._room.clear()

    def _fail(self, error: WalFailed) -> None:
        if self.failure is not None:
            return
        self.failure = error
        if self._flying is not None:
            self._flying.fail(error)
        for item in self._emptied():
            item.fail(error)
        self._room.turn_away(error)
        self._room.clear()
        for _, waiter in self._followers:
            fail(waiter, error)
        self._wake.set()
        if self._listener is not None:
            self._listener.on_failed(error)

    def _emptied(self) -> deque[Batch | Order]:
        queue, self._queue = self._queue, deque[Batch | Order]()
        self._filling = None
        return queue

    def _broke(self, error: Exception) -> None:
        self._fail(WalFailed(f"the writer of {self.directory} stopped: {error}"))

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise WalClosed("the log was closed")

    # Waiting.

    async def _order(self, order: Order) -> None:
        self._filling = None
        self._queue.append(order)
        self._wake.set()
        await order.future

    async def _renumber(self, order: Order) -> None:
        self._accepted = order.cut_to - 1
        await self._order(order)

    def _future(self) -> asyncio.Future[None]:
        return self._loop.create_future()
