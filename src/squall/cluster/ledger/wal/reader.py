"""Reads records by LSN while the writer appends, and can follow the writer.

A reader sees only durable records and takes no lock. Its hold keeps compaction from deleting
what it has yet to read. It uses its own file descriptor and reads one chunk per disk call.

    async with WalReader(wal, first=17) as reader:
        async for records in reader:      # the records of one block
            ...

It ends after record `last`, or at the durable end if it does not follow. It raises
`WalDamaged` for damage, `Compacted` for records that were deleted, and `WalCut` if a cut
removed the records that it was about to read.
"""

from __future__ import annotations

from types import TracebackType

from squall.cluster.ledger.wal.errors import Compacted, Damage, WalCut, WalDamaged
from squall.cluster.ledger.wal.format import Invalid, WalRecord, decode_records
from squall.cluster.ledger.wal.log import Wal
from squall.cluster.ledger.wal.scan import Block, BlockStream
from squall.cluster.ledger.wal.segments import Segment


class WalReader:
    """Iterates over durable records in LSN order; a log may have any number of readers."""

    def __init__(
        self, wal: Wal, first: int, last: int | None = None, *, follow: bool = False
    ) -> None:
        if first < wal.first_lsn:
            raise Compacted(first, wal.first_lsn)
        self._wal = wal
        self._last = last
        self._follow = follow
        self._position = first
        self._hold = wal.hold(first)
        self._segment: Segment | None = None
        self._stream: BlockStream | None = None
        self._end: int | None = None
        self._cuts = wal.cuts

    async def __aenter__(self) -> WalReader:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Releases the hold, so that compaction can delete the records."""
        self._hold.release()

    @property
    def position(self) -> int:
        """The LSN of the next record."""
        return self._position

    def __aiter__(self) -> WalReader:
        return self

    async def __anext__(self) -> list[WalRecord]:
        while True:
            wal = self._wal
            if self._last is not None and self._position > self._last:
                raise StopAsyncIteration
            if self._cuts != wal.cuts:
                self._after_cut()
            if self._position > wal.durable_lsn:
                if not self._follow:
                    raise StopAsyncIteration
                await wal.wait_durable(self._position)
                continue
            records = self._chosen(await self._block())
            if records:
                self._position = records[-1].lsn + 1
                # Compaction may now delete what this reader has returned.
                self._hold.lsn = self._position
                return records

    async def _block(self) -> Block:
        """The next block of the segment that holds the position."""
        if self._stream is None or (self._end is not None and self._position >= self._end):
            self._enter()
        segment, stream = self._segment, self._stream
        assert segment is not None
        assert stream is not None
        try:
            # `readable` bounds the read: the bytes after it may be half of a running write.
            block = await stream.next(segment.readable)
        except Invalid as error:
            raise WalDamaged(Damage.CORRUPTION, segment.path, stream.offset, str(error)) from None
        except FileNotFoundError:
            # The hold prevents compaction, so a cut or reset removed the segment.
            raise WalCut(f"{segment.path} is gone") from None
        if block is None:
            # The writer may have rolled over since this reader entered the segment.
            again, self._end = self._wal.table.locate(self._position)
            if again is segment:
                text = f"record {self._position} is missing"
                raise WalDamaged(Damage.GAP, segment.path, stream.offset, text)
            self._enter()
            return await self._block()
        return block

    def _enter(self) -> None:
        wal = self._wal
        self._segment, self._end = wal.table.locate(self._position)
        offset = self._segment.before(self._position)
        self._stream = BlockStream(wal.disk, self._segment, offset, wal.settings.read_bytes)

    def _chosen(self, block: Block) -> list[WalRecord]:
        header = block.header
        if header.end_lsn <= self._position:
            return []
        if header.first_lsn > self._position:
            segment = self._segment
            path = "" if segment is None else segment.path
            text = f"found record {header.first_lsn} instead of {self._position}"
            raise WalDamaged(Damage.GAP, path, block.offset, text)
        end = header.end_lsn
        # Return nothing that a later segment replaced or that is not durable yet (R11).
        for bound in (self._end, self._wal.durable_lsn + 1):
            end = end if bound is None else min(end, bound)
        if self._last is not None:
            end = min(end, self._last + 1)
        try:
            records = decode_records(header, block.payload)
        except Invalid as error:
            path = "" if self._segment is None else self._segment.path
            raise WalDamaged(Damage.CORRUPTION, path, block.offset, str(error)) from None
        return records[self._position - header.first_lsn : end - header.first_lsn]

    def _after_cut(self) -> None:
        self._cuts = self._wal.cuts
        # The buffered bytes may be records that the cut removed.
        self._stream = None
        if self._position > self._wal.next_lsn:
            raise WalCut(f"the log was cut before record {self._position}")


async def read_range(wal: Wal, first: int, last: int) -> list[WalRecord]:
    """The records from `first` to `last`, both included, as far as the log reaches. It keeps
    them all in memory, so the range must be short."""
    found: list[WalRecord] = []
    async with WalReader(wal, first, last) as reader:
        async for records in reader:
            found.extend(records)
    return found
