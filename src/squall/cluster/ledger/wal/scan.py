"""Reads segment files block by block and distinguishes a torn tail from damage.

Bytes that fail validation are either the torn remains of a commit that was never
acknowledged, or damage to records that were durable. A later valid block decides: its
`synced_lsn` proves that everything up to that LSN was durable. With such a proof, or in any
segment but the last, the bytes are damage; otherwise they are a torn tail.

The scan only reads. It never skips over damage, and it never allocates memory for a length
that no checksum covers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from squall.cluster.ledger.wal.errors import Damage, WalDamaged
from squall.cluster.ledger.wal.format import (
    BLOCK_HEADER_BYTES,
    BLOCK_MAGIC,
    FILE_HEADER_BYTES,
    MAX_BLOCK_BYTES,
    BlockHeader,
    FileHeader,
    Invalid,
    NewerFormat,
    check_payload,
    decode_block_header,
    decode_file_header,
)
from squall.cluster.ledger.wal.segments import Segment
from squall.runtime.interfaces import Disk

SCAN_BYTES = 256 * 1024
"""Bytes per read. Between two reads the event loop runs; parsing this many bytes of small
blocks takes a few milliseconds."""


@dataclass(frozen=True, slots=True)
class Block:
    """A valid block and its offset in the file."""

    offset: int
    header: BlockHeader
    payload: bytes

    @property
    def end(self) -> int:
        return self.offset + BLOCK_HEADER_BYTES + self.header.size


class BlockStream:
    """Reads the blocks of one segment file in order, from an offset on."""

    def __init__(self, disk: Disk, segment: Segment, offset: int, read_bytes: int) -> None:
        self._disk = disk
        self._segment = segment
        self._read_bytes = read_bytes
        self._data = b""
        self._base = offset
        self.offset = offset

    async def next(self, limit: int | None = None) -> Block | None:
        """The next block, or None at the end of the file or at `limit`. Raises `Invalid` if the
        bytes are not a complete, valid block."""
        await self._have(BLOCK_HEADER_BYTES, limit)
        place = self.offset - self._base
        if place == len(self._data):
            return None
        seed = self._segment.seed
        header = decode_block_header(self._data, place, seed)
        # The header's CRC is valid here, so `size` is what the writer wrote.
        if header.size > MAX_BLOCK_BYTES:
            raise Invalid(f"the block claims {header.size} bytes")
        whole = BLOCK_HEADER_BYTES + header.size
        await self._have(whole, limit)
        place = self.offset - self._base
        payload = self._data[place + BLOCK_HEADER_BYTES : place + whole]
        check_payload(header, payload, seed)
        block = Block(self.offset, header, payload)
        self.offset += whole
        return block

    async def _have(self, size: int, limit: int | None) -> None:
        """Reads until `size` bytes are buffered or the file ends."""
        left = len(self._data) - (self.offset - self._base)
        if left >= size:
            return
        ask = max(self._read_bytes, size - left)
        end = self._base + len(self._data)
        if limit is not None:
            ask = min(ask, limit - end)
        if ask <= 0:
            return
        more = await self._disk.read(self._segment.path, end, ask)
        self._data = self._data[self.offset - self._base :] + more
        self._base = self.offset


async def read_file_header(disk: Disk, path: str) -> FileHeader:
    """Raises `WalDamaged` for an invalid header: the log renames a segment to its final name
    only after the header is durable, so a crash cannot leave a bad one."""
    data = await disk.read(path, 0, FILE_HEADER_BYTES)
    try:
        return decode_file_header(data)
    except Invalid as error:
        raise WalDamaged(Damage.CORRUPTION, path, 0, str(error)) from None
    except NewerFormat as error:
        raise WalDamaged(Damage.FOREIGN, path, 0, str(error)) from None


@dataclass(slots=True)
class Scan:
    """The result of scanning one segment."""

    next_lsn: int
    next_block: int
    synced_lsn: int
    """The highest LSN that some block proves durable."""
    blocks: int = 0
    records: int = 0
    torn_bytes: int = 0
    torn: str = ""
    """Why the tail does not validate; empty if the segment ends cleanly."""
    clean: bool = False
    """The last block marks a clean close."""
    unsynced: list[Block] = field(default_factory=list[Block])
    """The blocks that no later block proves durable."""


async def scan_segment(
    disk: Disk, segment: Segment, end_lsn: int | None, *, read_bytes: int = SCAN_BYTES
) -> Scan:
    """Reads and checks all blocks of a segment, and fills its marks. Raises `WalDamaged`.

    `end_lsn` is the LSN at which a later segment takes over; every record before it must be
    here. It is None for the last segment, the only one that may have a torn tail.
    """
    scan = Scan(segment.first_lsn, segment.first_block, segment.first_lsn - 1)
    stream = BlockStream(disk, segment, FILE_HEADER_BYTES, read_bytes)
    while end_lsn is None or scan.next_lsn < end_lsn:
        try:
            block = await stream.next()
            if block is None:
                break
            _check_order(block.header, scan)
        except Invalid as error:
            await _judge(disk, segment, stream.offset, scan, end_lsn, str(error))
            break
        _count(segment, block, scan)
    if end_lsn is not None and scan.next_lsn < end_lsn:
        raise WalDamaged(
            Damage.GAP,
            segment.path,
            stream.offset,
            f"record {scan.next_lsn} is missing, the next segment begins at {end_lsn}",
        )
    return scan


def _check_order(header: BlockHeader, scan: Scan) -> None:
    if header.sequence != scan.next_block or header.first_lsn != scan.next_lsn:
        raise Invalid(
            f"found block {header.sequence} with record {header.first_lsn} instead of block "
            f"{scan.next_block} with record {scan.next_lsn}"
        )
    # A block is encoded before its own records are synced.
    if header.synced_lsn >= header.first_lsn:
        raise Invalid(f"the block claims that its own record {header.synced_lsn} was durable")


def _count(segment: Segment, block: Block, scan: Scan) -> None:
    header = block.header
    scan.blocks += 1
    scan.records += header.records
    scan.next_lsn = header.end_lsn
    scan.next_block = header.sequence + 1
    scan.clean = bool(header.flags)
    if header.synced_lsn > scan.synced_lsn:
        scan.synced_lsn = header.synced_lsn
        synced = scan.synced_lsn
        # This block proves the earlier ones durable, so recovery need not rewrite them.
        scan.unsynced = [late for late in scan.unsynced if late.header.end_lsn > synced + 1]
    if header.records:
        scan.unsynced.append(block)
        segment.mark(header.first_lsn, block.offset)
    segment.readable = block.end


async def _judge(
    disk: Disk, segment: Segment, offset: int, scan: Scan, end_lsn: int | None, text: str
) -> None:
    """Returns if the invalid bytes at `offset` are a torn tail; raises if they are damage."""
    where = f"{text}; record {scan.next_lsn} should be there"
    if end_lsn is not None:
        # The log syncs a segment before it begins the next one, so only the last can be torn.
        raise WalDamaged(Damage.CORRUPTION, segment.path, offset, where)
    size = await disk.size(segment.path)
    witness = await _witness(disk, segment, offset, size, scan)
    if witness is not None:
        proof = f"{where}, and the later block {witness.sequence} proves that it was durable"
        raise WalDamaged(Damage.CORRUPTION, segment.path, offset, proof)
    if await _only_zeros(disk, segment, offset, size):
        # The log preallocates zeros for records that were never written.
        return
    scan.torn = text
    scan.torn_bytes = size - offset
    scan.clean = False


async def _witness(
    disk: Disk, segment: Segment, offset: int, size: int, scan: Scan
) -> BlockHeader | None:
    """A later header that proves durable the record that cannot be read at `offset`."""

    def proves(header: BlockHeader) -> bool:
        return header.synced_lsn >= scan.next_lsn and header.sequence > scan.next_block

    found = await find_block(disk, segment, offset, size, proves)
    return None if found is None else found[1]


async def _only_zeros(disk: Disk, segment: Segment, offset: int, size: int) -> bool:
    while offset < size:
        data = await disk.read(segment.path, offset, SCAN_BYTES)
        if not data or data.count(0) != len(data):
            return False
        offset += len(data)
    return True


async def find_block(
    disk: Disk,
    segment: Segment,
    offset: int,
    size: int,
    wanted: Callable[[BlockHeader], bool],
) -> tuple[int, BlockHeader] | None:
    """The first valid header at or after `offset` for which `wanted` is true, with its offset."""
    data = b""
    base = offset
    while base + len(data) < size:
        more = await disk.read(segment.path, base + len(data), SCAN_BYTES)
        if not more:
            break
        data += more
        place = data.find(BLOCK_MAGIC)
        while 0 <= place <= len(data) - BLOCK_HEADER_BYTES:
            with suppress(Invalid):
                header = decode_block_header(data, place, segment.seed)
                if wanted(header):
                    return base + place, header
            place = data.find(BLOCK_MAGIC, place + 1)
        # A header may span two reads: keep one byte less than a header.
        keep = min(len(data), BLOCK_HEADER_BYTES - 1)
        base += len(data) - keep
        data = data[len(data) - keep :]
    return None
