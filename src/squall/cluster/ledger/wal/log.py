"""The write-ahead log: numbers records, writes them to disk in order, and reports durability.

States: open -> closing -> closed, and from any state -> failed. `accept` assigns the LSN at
once. One task, the writer, owns the file: it takes the waiting records (up to a limit) as one
block, appends and syncs the block in one call, then reports it. No timer waits for more
records: the records that arrive during a sync form the next block. At most one block is in
flight, so a block's `synced_lsn` proves that everything up to there was durable.

After a failed sync, or an append that could not be undone, the log stops for good: it fails
everything that waits, retries nothing, and keeps its durable position. On a full disk the log
fails what waits and continues with its content unchanged.

Invariants: accepted = written + waiting; durable <= written <= accepted; LSNs are dense from
1; every record up to `durable_lsn` survives a loss of power (R11).
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Protocol

from squall.cluster.ledger.settings import Durability, WalSettings
from squall.cluster.ledger.wal.backlog_limit import Room
from squall.cluster.ledger.wal.batch import Batch, Order, fail
from squall.cluster.ledger.wal.counters import SyncTimer, WalCounters
from squall.cluster.ledger.wal.errors import DiskFull, TooLarge, WalBusy, WalClosed, WalFailed
from squall.cluster.ledger.wal.format import (
    BLOCK_HEADER_BYTES,
    CLEAN,
    MAX_BLOCK_BYTES,
    RECORD_OVERHEAD_BYTES,
    RESET,
    FileHeader,
    encode_block,
)
from squall.cluster.ledger.wal.recovery import RecoveredLog, begin, release
from squall.cluster.ledger.wal.segments import Hold, Segment, SegmentTable
from squall.runtime.interfaces import Clock, Disk, File
from squall.runtime.invariants import invariant
from squall.runtime.tasks import TaskRunner

NONE, FSYNC, FSYNC_BATCH = Durability.NONE, Durability.FSYNC, Durability.FSYNC_BATCH


class WalListener(Protocol):
    """Receives the outcome of accepted records, on the event loop. Must not raise."""

    def on_durable(self, lsn: int) -> None:
        """Every record up to `lsn` survives a loss of power."""
        ...

    def on_refused(self, from_lsn: int, error: DiskFull) -> None:
        """The log dropped the accepted records from `from_lsn` on; their LSNs are reused."""
        ...

    def on_failed(self, error: WalFailed) -> None:
        """The log stopped; every record that is not durable has an unknown outcome."""
        ...


class Wal:
    """Appends records to one member's write-ahead log; `open_wal.open_wal` creates it."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        directory: str,
        identity: bytes,
        settings: WalSettings,
        recovered: RecoveredLog,
        file: File,
    ) -> None:
        self.directory = directory
        self.settings = settings
        self.recovered = recovered
        self.counters = WalCounters()
        self.failure: WalFailed | None = None
        self.disk = disk
        self.table: SegmentTable = recovered.table
        # Number of cuts so far. A reader compares it to notice that LSNs were reused.
        self.cuts = 0
        self._timer = SyncTimer(clock, self.counters, settings.slow_sync_s)
        self._identity = identity
        self._file = file
        self._accepted = self._written = self._durable = recovered.next_lsn - 1
        self._next_block = recovered.next_block
        self._queue: deque[Batch | Order] = deque()
        # The last batch in the queue, while it accepts more records.
        self._filling: Batch | None = None
        # The batch that is being written now.
        self._flying: Batch | None = None
        self._batch_bytes = min(settings.max_batch_bytes, MAX_BLOCK_BYTES // 2)
        self._room = Room(settings.max_waiting_records, settings.max_waiting_bytes)
        self._followers: list[tuple[int, asyncio.Future[None]]] = []
        # The writer waits for this while the queue is empty.
        self._idle: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._listener: WalListener | None = None
        # Segments that left the table but may still be on disk, oldest first.
        self._leaving: deque[Segment] = deque()
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
        """The LSN of the oldest record that the log still holds, if it holds any."""
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
        """Number of calls that had to wait for room."""
        return self._room.waits

    @property
    def bytes_on_disk(self) -> int:
        return sum(segment.readable for segment in self.table.segments)

    def sync_age_s(self) -> float:
        """Seconds since the running disk call began; 0 if none is running."""
        return self._timer.age_s()

    # Writing.

    def room_bytes(self) -> int:
        """The largest record, in bytes, that the log would accept now."""
        return self._room.bytes_left()

    def accept(self, kind: int, body: bytes, durability: Durability | None = None) -> int:
        """Queues the record and returns its LSN; it is not durable yet. If it raises (WalBusy,
        WalClosed, WalFailed, TooLarge), the record is not in the log and never will be."""
        if self.failure is not None or self._closed:
            self._check()
        size = len(body)
        if size > self.settings.max_record_bytes:
            self._fitting(body)
        if not self._room.enter(size):
            raise WalBusy(f"{self._room.records} records wait for the disk")
        self._add(kind, body, size, durability)
        return self._accepted

    def wake(self) -> None:
        """Runs the writer in the next turn of the event loop. For a caller that accepts a record
        in a callback which it has scheduled for that turn: the writer then finds the record."""
        # A future instead of an asyncio.Event: every commit wakes the writer once.
        idle, self._idle = self._idle, None
        if idle is not None and not idle.done():
            idle.set_result(None)

    def append(
        self,
        kind: int,
        body: bytes,
        durability: Durability | None = None,
        *,
        room_s: float | None = None,
    ) -> Awaitable[int]:
        """Queues the record at once, or when there is room for it (WalBusy after `room_s`).
        The awaitable returns the LSN once the record is as durable as `durability` asks. If
        the caller cancels it after the record was queued, the outcome is unknown."""
        # No coroutine: a block holds dozens of records, and a coroutine for each is measurable.
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
        # The log may have failed or closed while this call waited.
        self._check()
        self._room.take(len(body), 1)
        return await self._append(kind, body, len(body), durability)

    async def append_many(self, records: Sequence[tuple[int, bytes]]) -> range:
        """Appends several records with consecutive LSNs and waits once for all of them."""
        if not records:
            return range(self.next_lsn, self.next_lsn)
        size = sum(self._fitting(body) for _, body in records)
        self._check()
        await self._room.wait(size, len(records), None)
        self._check()
        self._room.take(size, len(records))
        first = self.next_lsn
        *rest, (kind, last) = records
        # Blocks become durable in order, so the last record's future covers them all.
        for other, body in rest:
            self._add(other, body, len(body), None)
        await self._append(kind, last, len(last), None)
        return range(first, first + len(records))

    def _fitting(self, body: bytes) -> int:
        """The record's size. Raises TooLarge."""
        size = len(body)
        limit = self.settings.max_record_bytes
        if size > limit:
            raise TooLarge(f"a record of {size} bytes is over the limit of {limit}")
        return size

    def _add(self, kind: int, body: bytes, size: int, durability: Durability | None) -> Batch:
        """Adds the record to the open batch, or to a new one if that batch is full."""
        batch = self._filling
        if (
            batch is None
            or batch.size + size > self._batch_bytes
            or len(batch.bodies) >= self.settings.max_batch_records
        ):
            batch = self._filling = Batch()
            self._queue.append(batch)
            self.wake()
        batch.kinds.append(kind)
        batch.bodies.append(body)
        batch.size += size
        self._accepted += 1
        if durability is None:
            durability = self.settings.durability
        if durability is FSYNC_BATCH:
            batch.syncs = True
        elif durability is FSYNC:
            batch.syncs = True
            # Close the batch: FSYNC shares its sync with no later record.
            self._filling = None
        return batch

    async def flush(self) -> None:
        """Returns when everything that was accepted before the call is durable."""
        self._check()
        await self._order(Order(self._future()))

    async def cut(self, lsn: int) -> None:
        """Removes the records from `lsn` on; the next record gets that LSN."""
        self._check()
        invariant(self.first_lsn <= lsn <= self.next_lsn, f"a cut to {lsn} is outside the log")
        await self._renumber(Order(self._future(), cut_to=lsn))

    async def reset(self, lsn: int) -> None:
        """Removes all records; the next one gets `lsn`. Used when the member installs a
        complete state from another member."""
        self._check()
        await self._renumber(Order(self._future(), cut_to=lsn, reset=True))

    async def close(self) -> None:
        """Writes everything accepted, then a block that marks a clean end. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        self._room.turn_away(WalClosed("the log was closed"))
        if self.failure is None:
            await self._order(Order(self._future(), closes=True))
        for _, waiter in self._followers:
            fail(waiter, WalClosed("the log was closed"))
        await release(self._file)

    # Readers and compaction.

    def hold(self, lsn: int) -> Hold:
        """Protects the records from `lsn` on against compaction until the hold is released."""
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
        """Deletes the segments that lie entirely below `below_lsn` and below every hold, and
        returns how many. It deletes one at a time, oldest first, and syncs the directory after
        each: a crash then leaves a log without a gap."""
        self._leaving.extend(self.table.obsolete(below_lsn))
        count = 0
        async with self._compacting:
            while self._leaving:
                # A segment whose deletion failed earlier is first again, whether or not its
                # file still exists. A younger segment must not go before this one is durably
                # gone.
                with suppress(FileNotFoundError):
                    await self.disk.remove(self._leaving[0].path)
                await self.disk.sync_directory(self.directory)
                self._leaving.popleft()
                count += 1
        return count

    # The writer, the task that owns the file.

    async def _run(self) -> None:
        ended = False
        try:
            while self.failure is None:
                if not self._queue:
                    self._idle = self._loop.create_future()
                    await self._idle
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
        count = len(batch.bodies)
        whole = BLOCK_HEADER_BYTES + count * RECORD_OVERHEAD_BYTES + batch.size
        first = self._written + 1
        try:
            offset = self._file.size
            if offset + whole > self.settings.segment_bytes and self._used():
                await self._roll(first, reset=False)
                offset = self._file.size
            segment = self.table.active
            block = encode_block(
                segment.seed,
                self._next_block,
                first,
                self._durable,
                batch.kinds,
                batch.bodies,
            )
            # Append and sync in the same disk call: one thread hop per block.
            if batch.syncs:
                self._timer.begin()
                try:
                    await self._file.append_and_sync(block)
                finally:
                    self._timer.end()
            else:
                await self._file.append(block)
        except OSError as error:
            await self._refuse(batch, error)
            return
        self._flying = None
        segment.mark(first, offset)
        self._next_block += 1
        self._written += count
        counters = self.counters
        counters.records += count
        counters.blocks += 1
        counters.bytes += len(block)
        if batch.syncs:
            self._publish()
        # After `_publish`: a caller that resumes sees its record as durable.
        if batch.callers:
            batch.release()
        self._room.give_back(batch.size, count)

    async def _sync(self) -> None:
        self._timer.begin()
        try:
            await self._file.sync()
        finally:
            self._timer.end()
        self._publish()

    def _publish(self) -> None:
        # Positions first: a listener or a woken reader reads them at once.
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
        """Runs an order. The order stays in the queue until it is done, so that `_fail`
        reaches its future."""
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
        """Makes the active segment durable, then switches to a new segment."""
        if self._written > self._durable:
            await self._sync()
        before = self.table.active
        flags = RESET if reset else 0
        header = FileHeader(self._identity, before.number + 1, first_lsn, self._next_block, flags)
        self._timer.begin()
        try:
            segment, file = await begin(self.disk, self.directory, header, self.settings)
        finally:
            self._timer.end()
        # From here on the new segment is durable under its final name, so recovery counts it.
        # The segments that it voids are deleted last; after a crash, recovery deletes them.
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

    # Failures.

    async def _refuse(self, batch: Batch, error: OSError) -> None:
        """Handles a failed write. If the disk is full and the file is unchanged, everything
        that waits fails and the log continues; any other error stops the log."""
        self._flying = None
        self._queue.appendleft(batch)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or self._file.poisoned:
            self._fail(WalFailed(f"cannot write {self.table.active.path}: {error}"))
            return
        try:
            # Make the truncation durable: after a crash the removed bytes must not reappear
            # behind the next block.
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
            # A sync or close still makes sense. A cut refers to LSNs that were just dropped.
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
        self.wake()
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

    # Orders.

    async def _order(self, order: Order) -> None:
        # Later records must not join a batch that is queued before the order.
        self._filling = None
        self._queue.append(order)
        self.wake()
        await order.future

    async def _renumber(self, order: Order) -> None:
        # Set before the writer runs the order: records accepted meanwhile are queued behind
        # it and must get the LSNs after the cut.
        self._accepted = order.cut_to - 1
        await self._order(order)

    def _future(self) -> asyncio.Future[None]:
        return self._loop.create_future()
