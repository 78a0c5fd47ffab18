"""What can still be read of a damaged log, and what of it may be believed."""

from __future__ import annotations

import pytest

from squall.cluster.ledger.wal.format import FILE_HEADER_BYTES
from squall.cluster.ledger.wal.salvage import DAMAGED_SUFFIX, salvage, write_whole
from tests.unit.cluster.ledger.lab.logs import IDENTITY, all_of, body, fill, opened, segments
from tests.unit.cluster.ledger.lab.memory_disk import MemoryDisk

pytestmark = pytest.mark.asyncio

RECORDS = 6


async def _log(*, clean: bool = False) -> MemoryDisk:
    disk = MemoryDisk()
    async with opened(disk, clean=clean) as wal:
        await fill(wal, range(1, RECORDS + 1))
    return disk


def _copy(disk: MemoryDisk) -> MemoryDisk:
    other = MemoryDisk()
    other.files = {path: bytearray(content) for path, content in disk.files.items()}
    return other


async def test_every_flipped_bit_costs_one_record_and_yields_no_wrong_one() -> None:
    whole = await _log()
    (path,) = segments(whole)
    size = len(whole.files[path])
    for place in range(size):
        disk = _copy(whole)
        disk.files[path][place] ^= 1 << place % 8
        found = await salvage(disk, "wal", IDENTITY, 1)
        got = {each.lsn: each.body for each in (*found.records, *found.behind)}
        assert all(got[lsn] == body(lsn) for lsn in got)
        assert [each.lsn for each in found.records] == list(range(1, len(found.records) + 1))
        lost = {*range(1, RECORDS + 1)} - {*got}
        if place < FILE_HEADER_BYTES:
            assert not lost and found.damaged == [path]
        elif lost == {RECORDS}:
            # Nothing vouches for the last one: it may have been torn.
            assert not found.has_hole
        else:
            assert len(lost) == 1 and found.has_hole and found.end_is_known
            assert found.damaged == [path]


async def test_when_the_last_records_are_lost_and_vouched_for_the_end_is_not_known() -> None:
    disk = await _log(clean=True)
    (path,) = segments(disk)
    disk.files[path][disk.files[path].index(body(RECORDS))] ^= 1
    assert not (await salvage(disk, "wal", IDENTITY, 1)).end_is_known
    disk.files[path][disk.files[path].index(body(2))] ^= 1
    found = await salvage(disk, "wal", IDENTITY, 1)
    assert found.has_hole and not found.end_is_known


async def test_a_broken_block_vouches_for_those_before_it() -> None:
    """Only the headers of the two last blocks are whole: the later one says that the earlier
    one was durable, so the log must not be taken to end before both."""
    disk = await _log()
    (path,) = segments(disk)
    for number in (RECORDS - 1, RECORDS):
        disk.files[path][disk.files[path].index(body(number))] ^= 1
    found = await salvage(disk, "wal", IDENTITY, 1)
    assert [each.lsn for each in found.records] == list(range(1, RECORDS - 1))
    assert not found.end_is_known


async def test_a_log_that_was_written_anew_holds_just_that() -> None:
    disk = await _log()
    (path,) = segments(disk)
    disk.files[path][disk.files[path].index(body(4))] ^= 1
    found = await salvage(disk, "wal", IDENTITY, 2)
    kept = [(each.kind, each.body) for each in found.records]
    assert kept == [(1, body(2)), (1, body(3))]
    await write_whole(disk, "wal", IDENTITY, found, 2, [*kept, (7, b"promise")])
    assert path + DAMAGED_SUFFIX in disk.files and path not in disk.files
    for turn in range(2):
        async with opened(disk, needed_from=2) as wal:
            records = await all_of(wal, 2)
            assert [(each.lsn, each.body) for each in records[:3]] == [
                (2, body(2)), (3, body(3)), (4, b"promise"),
            ]  # fmt: skip
            assert len(records) == 3 + turn
            await wal.append(1, b"more")


async def test_numbers_that_a_later_segment_took_back_are_not_found_again() -> None:
    disk = await _log(clean=False)
    async with opened(disk, clean=False) as wal:
        await wal.cut(4)
        assert await wal.append(1, b"another 4") == 4
        assert await wal.append(1, b"another 5") == 5
    found = await salvage(disk, "wal", IDENTITY, 1)
    assert [each.body for each in found.records] == [
        body(1), body(2), body(3), b"another 4", b"another 5",
    ]  # fmt: skip
    assert found.end_is_known and not found.has_hole and not found.damaged
