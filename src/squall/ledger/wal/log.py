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
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from squall.ledger.settings import Durability, WalSettings
from squall.ledger.wal.errors import DiskFull, TooLarge, WalBusy, WalClosed, WalError, WalFailed
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


@dataclass(slots=True)
class WalCounters:
    records: int = 0
    blocks: int = 0
    bytes: int = 0
    syncs: int = 0
    slow_syncs: int = 0
    sync_s: float = 0.0
    longest_sync_s: float = 0.0
    rolls: int = 0
    full: int = 0


@dataclass(slots=True)
class _Item:
    kind: int
    body: bytes
    durability: Durability
    future: asyncio.Future[None] | None


@dataclass(slots=True)
class _Order:
    """Something that is done between two blocks, in its turn."""

    future: asyncio.Future[None]
    cut_to: int = 0
    """0: only make all durable."""
    reset: bool = False
    closes: bool = False


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
        self._clock = clock
        self._identity = identity
        self._file = file
        self._accepted = self._written = self._durable = recovered.next_lsn - 1
        self._next_block = recovered.next_block
        self._queue: deque[_Item | _Order] = deque()
        self._flying: list[_Item] = []
        """The records at the disk."""
        self._room = Room(settings.max_waiting_records, settings.max_waiting_bytes)
        self._followers: list[tuple[int, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._listener: WalListener | None = None
        self._leaving: deque[Segment] = deque()
        """Out of the table, and perhaps still on disk."""
        self._compacting = asyncio.Lock()
        self._sync_since: float | None = None
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
        return 0.0 if self._sync_since is None else self._clock.now() - self._sync_since

    # Writing.

    def has_room(self, size: int, records: int = 1) -> bool:
        return self._room.fits(size, records)

    def accept(
        self,
        kind: int,
        body: bytes,
        durability: Durability | None = None,
        future: asyncio.Future[None] | None = None,
    ) -> int:
        """The number of the record, which is not durable yet. Raises WalBusy, WalClosed,
        WalFailed, TooLarge, and then it is not and will not be in the log."""
        self._check()
        size = len(body)
        if size > self.settings.max_record_bytes:
            limit = self.settings.max_record_bytes
            raise TooLarge(f"a record of {size} bytes is over the limit of {limit}")
        if not self._room.fits(size, 1):
            raise WalBusy(f"{self._room.records} records wait for the disk")
        if durability is None:
            durability = self.settings.durability
        self._queue.append(_Item(kind, body, durability, future))
        self._room.take(size, 1)
        self._accepted += 1
        self._wake.set()
        return self._accepted

    async def append(
        self,
        kind: int,
        body: bytes,
        durability: Durability | None = None,
        *,
        room_s: float | None = None,
    ) -> int:
        """Waits for room (at most `room_s`, then WalBusy), then until the record is as
        durable as asked for. Cancelled in the second wait, its outcome is unknown."""
        self._check()
        if not self._room.is_free(len(body), 1):
            await self._room.wait(len(body), 1, room_s)
        mode = self.settings.durability if durability is None else durability
        if mode is Durability.NONE:
            return self.accept(kind, body, mode)
        future = self._future()
        lsn = self.accept(kind, body, mode, future)
        await future
        return lsn

    async def append_many(self, records: Sequence[tuple[int, bytes]]) -> range:
        """Several records with numbers in a row, and one wait."""
        if not records:
            return range(self.next_lsn, self.next_lsn)
        size = sum(len(body) for _, body in records)
        largest = max(len(body) for _, body in records)
        if largest > self.settings.max_record_bytes:
            raise TooLarge(f"a record of {largest} bytes is over the limit")
        self._check()
        await self._room.wait(size, len(records), None)
        self._check()
        future = self._future()
        first = self.next_lsn
        last = len(records) - 1
        for index, (kind, body) in enumerate(records):
            mode = self.settings.durability
            self._queue.append(_Item(kind, body, mode, future if index == last else None))
        self._room.take(size, len(records))
        self._accepted += len(records)
        self._wake.set()
        await future
        return range(first, first + len(records))

    async def flush(self) -> None:
        """All that was accepted before is durable when it returns."""
        self._check()
        await self._order(_Order(self._future()))

    async def cut(self, lsn: int) -> None:
        """Takes back the records from `lsn` on; the next one gets that number."""
        self._check()
        invariant(self.first_lsn <= lsn <= self.next_lsn, f"a cut to {lsn} is outside the log")
        await self._renumber(_Order(self._future(), cut_to=lsn))

    async def reset(self, lsn: int) -> None:
        """Forgets all records; the next one gets that number. For a state that came
        whole from elsewhere."""
        self._check()
        await self._renumber(_Order(self._future(), cut_to=lsn, reset=True))

    async def close(self) -> None:
        """Writes what was accepted, then a mark that says so. Safe to call again."""
        if self._closed:
            return
        self._closed = True
        self._room.turn_away(WalClosed("the log was closed"))
        if self.failure is None:
            order = _Order(self._future(), closes=True)
            self._queue.append(order)
            self._wake.set()
            await order.future
        for _, waiter in self._followers:
            _fail(waiter, WalClosed("the log was closed"))
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
                if isinstance(head, _Item):
                    await self._write()
                else:
                    await self._obey(head)
                    ended = head.closes
                    if ended:
                        return
        finally:
            if not ended:
                self._fail(WalFailed("the writer was stopped"))

    def _take(self) -> list[_Item]:
        """The next block: all that waits, up to the bounds and the next order."""
        settings, queue = self.settings, self._queue
        batch: list[_Item] = []
        size = 0
        limit = min(settings.max_batch_bytes, MAX_BLOCK_BYTES // 2)
        while queue and len(batch) < settings.max_batch_records:
            head = queue[0]
            if isinstance(head, _Order) or (batch and size + len(head.body) > limit):
                break
            queue.popleft()
            batch.append(head)
            size += len(head.body)
            if head.durability is Durability.FSYNC:
                break
        return batch

    async def _write(self) -> None:
        batch = self._flying = self._take()
        bodies = [item.body for item in batch]
        size = sum(map(len, bodies))
        whole = BLOCK_HEADER_BYTES + len(batch) * RECORD_OVERHEAD_BYTES + size
        syncs = any(item.durability >= Durability.FSYNC for item in batch)
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
                [item.kind for item in batch],
                bodies,
            )
            offset = self._file.size
            await self._put(block, syncs=syncs)
        except OSError as error:
            await self._refuse(batch, error)
            return
        self._flying = []
        segment.mark(first, offset)
        self._next_block += 1
        self._written += len(batch)
        counters = self.counters
        counters.records += len(batch)
        counters.blocks += 1
        counters.bytes += len(block)
        if syncs:
            self._publish()
        for item in batch:
            if item.future is not None and not item.future.done():
                item.future.set_result(None)
        self._room.give_back(size, len(batch))

    async def _put(self, data: bytes, *, syncs: bool) -> None:
        """One hop to the disk."""
        if not syncs:
            await self._file.append(data)
            return
        with self._at_disk():
            await self._file.append_and_sync(data)

    async def _sync(self) -> None:
        with self._at_disk():
            await self._file.sync()
        self._publish()

    @contextmanager
    def _at_disk(self) -> Generator[None]:
        """Times a call that ends in a sync; `sync_age_s` sees it while it lasts."""
        self._sync_since = began = self._clock.now()
        try:
            yield
        finally:
            took = self._clock.now() - began
            self._sync_since = None
            counters = self.counters
            counters.syncs += 1
            counters.sync_s += took
            counters.longest_sync_s = max(counters.longest_sync_s, took)
            counters.slow_syncs += took > self.settings.slow_sync_s

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

    async def _obey(self, order: _Order) -> None:
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
        reserve = self.settings.segment_bytes
        with self._at_disk():
            segment, file = await begin(self.disk, self.directory, header, reserve)
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

    async def _refuse(self, batch: list[_Item], error: OSError) -> None:
        """A full disk that left the file as it was fails all that waits; all else ends
        the log."""
        self._flying = []
        self._queue.extendleft(reversed(batch))
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
        queue, self._queue = self._queue, deque[_Item | _Order]()
        self._accepted = self._written
        for item in queue:
            if isinstance(item, _Order) and not item.cut_to:
                self._queue.append(item)
            else:
                _fail(item.future, full)
        if self._listener is not None:
            self._listener.on_refused(from_lsn, full)
        self._room.clear()

    def _fail(self, error: WalFailed) -> None:
        if self.failure is not None:
            return
        self.failure = error
        queue, self._queue = self._queue, deque[_Item | _Order]()
        for item in (*self._flying, *queue):
            _fail(item.future, error)
        self._room.turn_away(error)
        self._room.clear()
        for _, waiter in self._followers:
            _fail(waiter, error)
        self._wake.set()
        if self._listener is not None:
            self._listener.on_failed(error)

    def _broke(self, error: Exception) -> None:
        self._fail(WalFailed(f"the writer of {self.directory} stopped: {error}"))

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise WalClosed("the log was closed")

    # Waiting.

    async def _order(self, order: _Order) -> None:
        self._queue.append(order)
        self._wake.set()
        await order.future

    async def _renumber(self, order: _Order) -> None:
        self._accepted = order.cut_to - 1
        await self._order(order)

    def _future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()


def _fail(future: asyncio.Future[None] | None, error: WalError) -> None:
    if future is not None and not future.done():
        future.set_exception(error)
        # Somebody may have stopped waiting; that is no news for the loop.
        future.exception()
