"""Reading by LSN, following the writer, and compaction and cuts during a read."""

from __future__ import annotations

import asyncio
import random

import pytest

from squall.cluster.ledger.settings import WalSettings
from squall.cluster.ledger.wal.errors import Compacted, WalClosed, WalCut, WalDamaged
from squall.cluster.ledger.wal.reader import WalReader, read_range
from squall.cluster.ledger.wal.segments import MARK_BYTES
from tests.unit.cluster.ledger.lab.logs import all_of, body, fill, opened, segments, turns
from tests.unit.cluster.ledger.lab.memory_disk import MemoryDisk

pytestmark = pytest.mark.asyncio


async def test_any_range_is_read_from_any_place() -> None:
    disk = MemoryDisk()
    async with opened(disk) as wal:
        for batch in range(10):
            await wal.append_many([(1, body(batch * 10 + n, 150)) for n in range(1, 11)])
        assert len(segments(disk)) > 3
        for first, last in ((1, 1), (1, 100), (37, 63), (100, 100), (95, 400)):
            found = await read_range(wal, first, last)
            expected = list(range(first, min(last, 100) + 1))
            assert [record.lsn for record in found] == expected
            assert [record.body for record in found] == [body(n, 150) for n in expected]
        assert await read_range(wal, 101, 200) == []


async def test_positions_are_remembered_so_that_a_lookup_reads_little() -> None:
    reads = 0

    class Counting(MemoryDisk):
        async def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
            nonlocal reads
            reads += 1
            return await super().read(path, offset, size)

    disk, draw = Counting(), random.Random(1)
    settings = WalSettings(segment_bytes=64 << 20)
    async with opened(disk, settings, clean=False) as wal:
        for start in range(0, 40_000, 100):
            await wal.append_many([(1, body(start + n, 200)) for n in range(1, 101)])
        active = wal.table.active
        assert 50 < len(active.marks) <= active.readable // MARK_BYTES
    # The positions are found again by the start, wherever the file ends.
    async with opened(disk, settings) as wal:
        for lsn in (1, 40_000, *(draw.randint(1, 40_000) for _ in range(200))):
            reads = 0
            assert (await read_range(wal, lsn, lsn))[0].body == body(lsn, 200)
            assert reads <= 2


async def test_a_block_may_be_larger_than_what_is_read_at_once() -> None:
    disk = MemoryDisk()
    settings = WalSettings(segment_bytes=8 << 20, read_bytes=4096)
    bodies = [body(n, 1000) for n in range(1, 1501)]
    async with opened(disk, settings, clean=False) as wal:
        await wal.append_many([(1, text) for text in bodies])
        await wal.append(1, b"behind")
        assert wal.counters.blocks == 2
        assert [record.body for record in await all_of(wal)] == [*bodies, b"behind"]
        assert (await read_range(wal, 1500, 1501))[-1].body == b"behind"
    async with opened(disk, settings) as wal:
        assert [record.body for record in await all_of(wal)] == [*bodies, b"behind"]


async def test_readers_do_not_see_each_other() -> None:
    async with opened(MemoryDisk()) as wal:
        await fill(wal, range(1, 31), size=500)

        async def numbers(first: int, pauses: int) -> list[int]:
            found: list[int] = []
            async with WalReader(wal, first) as reader:
                async for records in reader:
                    found.extend(record.lsn for record in records)
                    await turns(pauses)
            return found

        firsts = (1, 1, 7, 30)
        found = await asyncio.gather(*(numbers(first, n) for n, first in enumerate(firsts)))
        assert found == [list(range(first, 31)) for first in firsts]
        assert not wal.table.holds


async def test_a_follower_sees_every_durable_record_once_and_no_other() -> None:
    disk = MemoryDisk()
    seen: list[int] = []
    async with opened(disk) as wal:

        async def follow() -> None:
            async with WalReader(wal, 1, follow=True) as reader:
                async for records in reader:
                    assert records[-1].lsn <= wal.durable_lsn
                    seen.extend(record.lsn for record in records)

        following = asyncio.ensure_future(follow())
        for number in range(1, 60):
            await wal.append(1, body(number, 300))
            if number % 7 == 0:
                await turns(3)
        disk.gate = asyncio.Event()
        pending = asyncio.ensure_future(wal.append(1, b"not yet"))
        await turns(50)
        assert seen == list(range(1, 60))
        disk.gate.set()
        await pending
        await turns(50)
        assert seen == list(range(1, 61))
        await wal.close()
        with pytest.raises(WalClosed):
            await following


async def test_one_may_write_to_the_log_that_one_reads() -> None:
    async with opened(MemoryDisk()) as wal:
        await fill(wal, range(1, 6))
        async with WalReader(wal, 1, 10, follow=True) as reader:
            seen: list[int] = []
            async for records in reader:
                seen.extend(record.lsn for record in records)
                if wal.next_lsn <= 10:
                    await wal.append(1, body(wal.next_lsn))
        assert seen == list(range(1, 11))


async def test_compaction_deletes_whole_segments_under_the_limit_and_no_more() -> None:
    disk = MemoryDisk()
    async with opened(disk) as wal:
        await fill(wal, range(1, 31), size=1000)
        before = segments(disk)
        disk.calls.clear()
        assert await wal.compact(11) == 3
        assert segments(disk) == before[3:]
        assert [call for call in disk.calls if "remove" in call] == [
            f"remove {path}" for path in before[:3]
        ]
        assert disk.calls.count("sync directory wal") == 3
        assert wal.first_lsn == 10
        assert [record.lsn for record in await all_of(wal)] == list(range(10, 31))
        with pytest.raises(Compacted, match="begins at 10"):
            WalReader(wal, 9)
        assert await wal.compact(10**9) > 0
        assert len(segments(disk)) == 1
    async with opened(disk, needed_from=30) as wal:
        assert wal.next_lsn == 31
        numbers = {int(path[12:20]) for path in segments(disk)}
        assert numbers.isdisjoint({1, 2, 3})


async def test_a_lagging_reader_keeps_what_it_has_yet_to_read() -> None:
    async with opened(MemoryDisk()) as wal:
        await fill(wal, range(1, 31), size=1000)
        reader = WalReader(wal, 5)
        await wal.compact(30)
        seen = [record.lsn async for records in reader for record in records]
        assert seen == list(range(5, 31))
        reader.close()
        await wal.compact(30)
        assert wal.first_lsn > 20


async def test_a_cut_takes_numbers_back_and_survives_a_restart() -> None:
    disk = MemoryDisk()
    async with opened(disk, clean=False) as wal:
        await wal.append_many([(1, b"old%d" % n) for n in range(1, 21)])
        ahead = WalReader(wal, 18)
        await wal.cut(8)
        assert (wal.next_lsn, wal.durable_lsn) == (8, 7)
        for number in range(8, 12):
            assert await wal.append(1, b"new%d" % number) == number
        expected = [b"old%d" % n for n in range(1, 8)] + [b"new%d" % n for n in range(8, 12)]
        assert [record.body for record in await all_of(wal)] == expected
        with pytest.raises(WalCut):
            await anext(ahead)
        ahead.close()
    for _ in range(2):
        async with opened(disk, clean=False) as wal:
            assert [record.body for record in await all_of(wal)] == expected
    async with opened(disk) as wal:
        await wal.cut(1)
        assert await all_of(wal) == []
        assert len(segments(disk)) == 1


async def test_a_cut_takes_its_turn_among_the_records() -> None:
    async with opened(MemoryDisk()) as wal:
        for _ in range(5):
            wal.accept(1, b"old")
        cutting = asyncio.ensure_future(wal.cut(3))
        await asyncio.sleep(0)
        assert wal.accept(1, b"new") == 3
        await cutting
        await wal.flush()
        assert [record.body for record in await all_of(wal)] == [b"old", b"old", b"new"]


async def test_a_reset_forgets_everything_and_goes_on_elsewhere() -> None:
    disk = MemoryDisk()
    async with opened(disk, clean=False) as wal:
        await fill(wal, range(1, 11), size=1000)
        await wal.reset(500)
        await fill(wal, range(500, 503))
        assert wal.first_lsn == 500
    async with opened(disk) as wal:
        assert [record.lsn for record in await all_of(wal)] == [500, 501, 502]


async def test_damage_that_appears_while_the_log_is_open_is_never_handed_out() -> None:
    disk = MemoryDisk()
    async with opened(disk) as wal:
        await fill(wal, range(1, 11))
        (path,) = segments(disk)
        disk.files[path][disk.files[path].index(body(6))] ^= 4
        seen: list[int] = []
        async with WalReader(wal, 1) as reader:
            for _ in range(5):
                seen.extend(record.lsn for record in await anext(reader))
            with pytest.raises(WalDamaged):
                await anext(reader)
        assert seen == [1, 2, 3, 4, 5]
