"""Reads segment files block by block and judges what it meets.

What does not validate is either the torn remains of a commit that was never
acknowledged, or damage to something that was durable. Which of the two is decided by a
proof: a later block that says "up to here all was durable when I was written". Without
the proof it is a torn tail; with it, or in a segment that is not the last, it is damage.

It only reads. It must never skip over damage, nor wait or allocate by a length that no
checksum vouches for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from squall.ledger.wal.errors import Damage, WalDamaged
from squall.ledger.wal.format import (
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
from squall.ledger.wal.segments import Segment
from squall.runtime.interfaces import Disk

SCAN_BYTES = 256 * 1024
"""Between two turns of the loop: some milliseconds of small blocks."""


@dataclass(frozen=True, slots=True)
class Block:
    offset: int
    header: BlockHeader
    payload: bytes

    @property
    def end(self) -> int:
        return self.offset + BLOCK_HEADER_BYTES + self.header.size


class BlockStream:
    """The blocks of one file from an offset on. `limit` is where the file ends for it."""

    def __init__(self, disk: Disk, segment: Segment, offset: int, read_bytes: int) -> None:
        self._disk = disk
        self._segment = segment
        self._read_bytes = read_bytes
        self._data = b""
        self._base = offset
        self.offset = offset

    async def next(self, limit: int | None = None) -> Block | None:
        """None at the end. Raises `Invalid` for what is no whole, right block."""
        await self._have(BLOCK_HEADER_BYTES, limit)
        place = self.offset - self._base
        if place == len(self._data):
            return None
        seed = self._segment.seed
        header = decode_block_header(self._data, place, seed)
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
        """Reads on until `size` bytes are there or the file ends."""
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
    """A segment gets its name only when its header is durable: a bad one is damage."""
    data = await disk.read(path, 0, FILE_HEADER_BYTES)
    try:
        return decode_file_header(data)
    except Invalid as error:
        raise WalDamaged(Damage.CORRUPTION, path, 0, str(error)) from None
    except NewerFormat as error:
        raise WalDamaged(Damage.FOREIGN, path, 0, str(error)) from None


@dataclass(slots=True)
class Scan:
    """What one segment was found to hold."""

    next_lsn: int
    next_block: int
    synced_lsn: int
    """Up to here some block vouches that all was durable."""
    blocks: int = 0
    records: int = 0
    torn_bytes: int = 0
    torn: str = ""
    """Why the rest does not validate; empty at a clean end."""
    clean: bool = False
    """The last thing in it says that the log was closed in order."""
    unsynced: list[Block] = field(default_factory=list[Block])
    """The blocks for which nothing vouches."""


async def scan_segment(
    disk: Disk, segment: Segment, end_lsn: int | None, *, read_bytes: int = SCAN_BYTES
) -> Scan:
    """`end_lsn`: where later segments take over, so the records before it must be here;
    None for the last segment. Raises `WalDamaged`. Fills the marks of the segment."""
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
            f"block {header.sequence} with record {header.first_lsn} stands where block "
            f"{scan.next_block} with record {scan.next_lsn} should"
        )
    if header.synced_lsn >= header.first_lsn:
        raise Invalid(f"the block calls its own record {header.synced_lsn} durable")


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
        scan.unsynced = [late for late in scan.unsynced if late.header.end_lsn > synced + 1]
    if header.records:
        scan.unsynced.append(block)
        segment.mark(header.first_lsn, block.offset)
    segment.readable = block.end


async def _judge(
    disk: Disk, segment: Segment, offset: int, scan: Scan, end_lsn: int | None, text: str
) -> None:
    """Torn tail or damage? Returns for the former and raises for the latter."""
    where = f"{text}; record {scan.next_lsn} should be there"
    if end_lsn is not None:
        raise WalDamaged(Damage.CORRUPTION, segment.path, offset, where)
    size = await disk.size(segment.path)
    witness = await _witness(disk, segment, offset, size, scan)
    if witness is not None:
        proof = f"{where} and was durable, as block {witness.sequence} behind it says"
        raise WalDamaged(Damage.CORRUPTION, segment.path, offset, proof)
    if await _only_zeros(disk, segment, offset, size):
        # Written ahead for records that did not come any more.
        return
    scan.torn = text
    scan.torn_bytes = size - offset
    scan.clean = False


async def _witness(
    disk: Disk, segment: Segment, offset: int, size: int, scan: Scan
) -> BlockHeader | None:
    """A later header that calls durable what cannot be read at `offset`."""

    def vouches(header: BlockHeader) -> bool:
        return header.synced_lsn >= scan.next_lsn and header.sequence > scan.next_block

    found = await find_block(disk, segment, offset, size, vouches)
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
    """The first right header at or behind `offset` that is wanted, and where it is."""
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
        keep = min(len(data), BLOCK_HEADER_BYTES - 1)
        base += len(data) - keep
        data = data[len(data) - keep :]
    return None
