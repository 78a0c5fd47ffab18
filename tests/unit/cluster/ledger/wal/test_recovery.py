"""What a start finds after an end that was not in order, and what it refuses."""

from __future__ import annotations

import asyncio
import tracemalloc
import zlib

import pytest

from squall.cluster.ledger.settings import Durability, WalSettings
from squall.cluster.ledger.wal.errors import Damage, WalDamaged
from squall.cluster.ledger.wal.format import BLOCK_HEADER_BYTES, FILE_HEADER_BYTES, seed_of
from squall.cluster.ledger.wal.log import Wal
from squall.cluster.ledger.wal.recovery import find_segments
from squall.cluster.ledger.wal.scan import SCAN_BYTES, BlockStream
from tests.unit.cluster.ledger.lab.logs import IDENTITY, SMALL, all_of, body, fill, opened, segments
from tests.unit.cluster.ledger.lab.memory_disk import MemoryDisk

pytestmark = pytest.mark.asyncio


async def killed_with(count: int, *, clean: bool = False) -> MemoryDisk:
    disk = MemoryDisk()
    async with opened(disk, clean=clean) as wal:
        await fill(wal, range(1, count + 1))
    return disk


def copy_of(disk: MemoryDisk) -> MemoryDisk:
    copy = MemoryDisk()
    copy.files = {path: bytearray(content) for path, content in disk.files.items()}
    return copy


async def numbers(wal: Wal) -> list[int]:
    return [record.lsn for record in await all_of(wal)]


async def block_numbers(disk: MemoryDisk) -> list[int]:
    """Everything in all segments, in the order of the files."""
    found: list[int] = []
    for segment, _ in await find_segments(disk, "wal"):
        stream = BlockStream(disk, segment, FILE_HEADER_BYTES, 4096)
        while (block := await stream.next()) is not None:
            found.append(block.header.sequence)
    return found


async def test_ten_starts_give_one_row_of_numbers() -> None:
    disk = MemoryDisk()
    for start in range(10):
        async with opened(disk, clean=start % 2 == 0) as wal:
            await fill(wal, range(start * 10 + 1, start * 10 + 11))
    async with opened(disk) as wal:
        records = await all_of(wal)
    assert [record.lsn for record in records] == list(range(1, 101))
    assert [record.body for record in records] == [body(number) for number in range(1, 101)]
    assert await block_numbers(disk) == list(range(1, len(await block_numbers(disk)) + 1))


async def test_a_tail_torn_at_any_byte_costs_nothing_that_was_acknowledged_before() -> None:
    whole = await killed_with(5)
    (path,) = segments(whole)
    content = bytes(whole.files[path])
    async with opened(copy_of(whole), clean=False) as wal:
        assert await numbers(wal) == [1, 2, 3, 4, 5]
    block = (len(content) - FILE_HEADER_BYTES) // 5
    for cut in range(len(content) - block, len(content)):
        for rest in (b"", bytes(len(content) - cut)):
            disk = copy_of(whole)
            disk.files[path] = bytearray(content[:cut] + rest)
            async with opened(disk) as wal:
                assert await numbers(wal) == [1, 2, 3, 4]
                assert wal.recovered.torn_bytes == len(disk.files[path]) - (len(content) - block)
                await fill(wal, range(5, 7))
            async with opened(disk) as wal:
                assert await numbers(wal) == [1, 2, 3, 4, 5, 6]


async def test_a_flipped_bit_is_a_torn_tail_in_the_last_block_and_damage_before() -> None:
    whole = await killed_with(6)
    (path,) = segments(whole)
    size = len(whole.files[path])
    block = (size - FILE_HEADER_BYTES) // 6
    for place in range(size):
        disk = copy_of(whole)
        disk.files[path][place] ^= 1 << place % 8
        before = copy_of(disk)
        if place >= size - block:
            async with opened(disk, clean=False) as wal:
                assert await numbers(wal) == [1, 2, 3, 4, 5]
            continue
        with pytest.raises(WalDamaged) as caught:
            async with opened(disk):
                pass
        assert caught.value.damage is Damage.CORRUPTION
        assert caught.value.path == path
        offset = 0 if place < FILE_HEADER_BYTES else place - (place - FILE_HEADER_BYTES) % block
        assert caught.value.offset == offset
        assert disk.files == before.files


async def test_after_a_clean_close_damage_in_the_last_records_is_no_torn_tail() -> None:
    disk = await killed_with(3, clean=True)
    (path,) = segments(disk)
    async with opened(copy_of(disk)) as wal:
        assert wal.recovered.clean
    block = disk.files[path].index(body(3))
    disk.files[path][block] ^= 1
    with pytest.raises(WalDamaged, match="was durable"):
        async with opened(disk):
            pass


async def test_damage_in_an_older_segment_is_found_unless_a_checkpoint_covers_it() -> None:
    disk = MemoryDisk()
    async with opened(disk, clean=False) as wal:
        await fill(wal, range(1, 41), size=1000)
    first = segments(disk)[0]
    disk.files[first][-1] ^= 1
    with pytest.raises(WalDamaged, match=first):
        async with opened(copy_of(disk)):
            pass
    async with opened(disk, needed_from=20) as wal:
        assert [record.lsn for record in await all_of(wal, 20)] == list(range(20, 41))


async def test_a_missing_segment_is_a_gap() -> None:
    disk = MemoryDisk()
    async with opened(disk, clean=False) as wal:
        await fill(wal, range(1, 21), size=1000)
    del disk.files[segments(disk)[2]]
    with pytest.raises(WalDamaged) as caught:
        async with opened(disk):
            pass
    assert caught.value.damage is Damage.GAP
    disk.files.clear()
    with pytest.raises(WalDamaged, match="all segments are gone"):
        async with opened(disk, must_exist=True):
            pass


@pytest.mark.parametrize("length", [2_000_000, 0xFFFFFFFF])
@pytest.mark.parametrize("vouched_for", [False, True])
async def test_a_huge_length_is_damage_and_nothing_is_allocated_for_it(
    length: int, vouched_for: bool
) -> None:
    """Also one that was written wrongly, with a header whose checksum is right."""
    disk = await killed_with(3)
    (path,) = segments(disk)
    header = memoryview(disk.files[path])[FILE_HEADER_BYTES:][:BLOCK_HEADER_BYTES]
    header[36:40] = length.to_bytes(4, "little")
    if vouched_for:
        checksum = zlib.crc32(header[:-4], seed_of(IDENTITY, 1))
        header[-4:] = checksum.to_bytes(4, "little")
    header.release()
    tracemalloc.start()
    try:
        with pytest.raises(WalDamaged):
            async with opened(disk):
                pass
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


async def test_zeros_behind_the_last_record_are_no_torn_tail() -> None:
    """They were written ahead; a process that was killed could not cut them off."""
    disk = await killed_with(3)
    (path,) = segments(disk)
    size = len(disk.files[path])
    disk.files[path] += bytes(300_000)
    torn = copy_of(disk)
    torn.files[path][-1] = 1
    async with opened(disk) as wal:
        assert (wal.recovered.torn, wal.recovered.torn_bytes) == ("", 0)
        assert await numbers(wal) == [1, 2, 3]
        assert len(disk.files[path]) == size
        await fill(wal, range(4, 6))
    async with opened(disk) as wal:
        assert await numbers(wal) == [1, 2, 3, 4, 5]
    async with opened(torn) as wal:
        assert wal.recovered.torn_bytes == 300_000
        assert await numbers(wal) == [1, 2, 3]
        assert len(torn.files[path]) == size + 300_000


async def test_zeros_in_place_of_a_record_that_was_durable_are_damage() -> None:
    disk = await killed_with(3)
    (path,) = segments(disk)
    block = (len(disk.files[path]) - FILE_HEADER_BYTES) // 3
    middle = FILE_HEADER_BYTES + block
    disk.files[path][middle : middle + block] = bytes(block)
    with pytest.raises(WalDamaged) as caught:
        async with opened(disk):
            pass
    assert (caught.value.damage, caught.value.offset) == (Damage.CORRUPTION, middle)


async def test_a_start_gives_the_others_their_turns() -> None:
    """Whatever it finds, it reads and judges a bounded piece at a time."""
    read: list[int] = []
    turn = 0

    class SlowDisk(MemoryDisk):
        async def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
            await asyncio.sleep(0)
            content = await super().read(path, offset, size)
            read.append(len(content))
            return content

    async def others() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    disk = SlowDisk()
    settings = WalSettings(segment_bytes=64 << 20)
    async with opened(disk, settings, clean=False) as wal:
        for _ in range(50):
            await wal.append_many([(1, bytes(1000))] * 100)
    (path,) = segments(disk)
    whole = bytes(disk.files[path])
    half = whole[: len(whole) // 2]
    for content in (whole, half + b"x" * len(half), half + bytes(len(half))):
        disk.files = {path: bytearray(content)}
        read.clear()
        turn = 0
        probe = asyncio.ensure_future(others())
        async with opened(disk, settings):
            probe.cancel()
        assert max(read) <= SCAN_BYTES
        assert turn >= len(read) >= len(content) // SCAN_BYTES


async def test_a_segment_of_another_log_is_refused() -> None:
    disk, other = await killed_with(2), MemoryDisk()
    async with opened(other) as wal:
        await fill(wal, range(1, 3))
    (path,) = segments(disk)
    disk.files[path][8:24] = b"another identity"
    with pytest.raises(WalDamaged):
        async with opened(disk):
            pass
    disk = await killed_with(2)
    disk.files["wal/segment_00000009.wal"] = disk.files[segments(disk)[0]]
    with pytest.raises(WalDamaged, match="names segment"):
        async with opened(disk):
            pass


async def test_a_start_writes_anew_what_nothing_vouches_for() -> None:
    """The last sync may have failed: its bytes can be read and are not on the medium."""
    disk = await killed_with(3)
    old = segments(disk)
    disk.calls.clear()
    async with opened(disk, clean=False) as wal:
        assert wal.recovered.rewritten == 1
        assert disk.calls.index("sync") < disk.calls.index(f"rename {segments(disk)[-1]}")
        assert await numbers(wal) == [1, 2, 3]
    assert body(3) in disk.files[segments(disk)[-1]]
    assert segments(disk)[:-1] == old


async def test_starts_without_writes_leave_no_files_behind() -> None:
    disk = MemoryDisk()
    for _ in range(5):
        async with opened(disk):
            pass
    assert len(segments(disk)) == 1
    disk.files["wal/segment_00000099.wal.new"] = bytearray(b"half")
    async with opened(disk):
        pass
    assert not [path for path in disk.files if path.endswith(".new")]


async def test_unsynced_blocks_behind_a_hole_are_a_torn_tail_when_nothing_was_promised() -> None:
    disk = MemoryDisk()
    settings = WalSettings(durability=Durability.WRITE, segment_bytes=4096)
    async with opened(disk, settings, clean=False) as wal:
        await fill(wal, range(1, 5))
    (path,) = segments(disk)
    disk.files[path][disk.files[path].index(body(2))] ^= 1
    async with opened(disk, SMALL) as wal:
        assert await numbers(wal) == [1]
