"""What an append promises, what it refuses, and what a failing disk does to it."""

from __future__ import annotations

import asyncio
import errno

import pytest

from squall.cluster.ledger.settings import Durability, WalSettings
from squall.cluster.ledger.wal.errors import (
    DiskFull,
    TooLarge,
    WalBusy,
    WalClosed,
    WalFailed,
)
from squall.cluster.ledger.wal.format import BLOCK_HEADER_BYTES, FILE_HEADER_BYTES
from tests.unit.cluster.ledger.lab.logs import SMALL, all_of, body, fill, opened, segments, turns
from tests.unit.cluster.ledger.lab.memory_disk import HandClock, MemoryDisk, MemoryFile

pytestmark = pytest.mark.asyncio


async def test_an_append_returns_after_its_sync_and_not_before() -> None:
    disk = MemoryDisk()
    async with opened(disk) as wal:
        disk.gate = asyncio.Event()
        waiting = asyncio.ensure_future(wal.append(1, b"x"))
        await turns()
        assert not waiting.done()
        assert wal.durable_lsn == 0
        assert await all_of(wal) == []
        disk.gate.set()
        assert await waiting == 1
        assert wal.durable_lsn == 1


async def test_what_arrives_during_a_sync_shares_the_next_one() -> None:
    disk = MemoryDisk()
    async with opened(disk) as wal:
        disk.gate = asyncio.Event()
        first = asyncio.ensure_future(wal.append(1, b"first"))
        await turns()
        rest = [asyncio.ensure_future(wal.append(1, b"%d" % n)) for n in range(50)]
        await turns()
        disk.gate.set()
        assert await first == 1
        assert await asyncio.gather(*rest) == list(range(2, 52))
        assert wal.counters.blocks == 2
        assert wal.counters.records == 51


async def test_an_fsync_record_shares_its_sync_with_nothing_later() -> None:
    disk = MemoryDisk()
    async with opened(disk) as wal:
        await asyncio.gather(
            *(wal.append(1, b"x", Durability.FSYNC) for _ in range(3)), wal.append(1, b"y")
        )
        assert wal.counters.blocks == 4


async def test_weaker_modes_return_early_and_move_no_durable_position() -> None:
    disk = MemoryDisk()
    async with opened(disk) as wal:
        disk.gate = asyncio.Event()
        assert await wal.append(1, b"a", Durability.NONE) == 1
        assert await wal.append(1, b"b", Durability.WRITE) == 2
        assert wal.durable_lsn == 0
        flushing = asyncio.ensure_future(wal.flush())
        await turns()
        assert not flushing.done()
        disk.gate.set()
        await flushing
        assert wal.durable_lsn == 2
        assert len(await all_of(wal)) == 2


async def test_a_durable_record_waits_for_one_sync_and_for_no_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many plain ones come before it, during it and behind it."""
    disk = MemoryDisk()
    async with opened(disk, WalSettings(segment_bytes=1 << 20)) as wal:

        def timer(*_: object, **__: object) -> None:
            raise AssertionError("a timer was set")

        with monkeypatch.context() as patched:
            patched.setattr(asyncio.get_running_loop(), "call_at", timer)
            for _ in range(10):
                for _ in range(25):
                    await wal.append(1, b"plain", Durability.WRITE)
                syncs = wal.counters.syncs
                durable = asyncio.ensure_future(wal.append(1, b"durable"))
                for _ in range(25):
                    wal.accept(1, b"plain", Durability.WRITE)
                lsn = await durable
                assert wal.durable_lsn >= lsn
                assert wal.counters.syncs == syncs + 1


async def test_a_block_has_bounds() -> None:
    disk = MemoryDisk()
    settings = WalSettings(segment_bytes=1 << 20, max_batch_records=8, max_batch_bytes=1000)
    async with opened(disk, settings) as wal:
        await asyncio.gather(*(wal.append(1, b"small") for _ in range(20)))
        assert wal.counters.blocks == 3
        await asyncio.gather(*(wal.append(1, bytes(400)) for _ in range(6)))
        assert wal.counters.blocks == 6
        await asyncio.gather(*(wal.append(1, bytes(1500)) for _ in range(2)))
        assert wal.counters.blocks == 8
        await wal.append_many([(1, b"small")] * 20)
        assert wal.counters.blocks == 11
        assert [record.lsn for record in await all_of(wal)] == list(range(1, 49))


async def test_what_is_refused_is_refused_at_once() -> None:
    """An append is taken, or turned down, by the call itself."""
    disk = MemoryDisk()
    async with opened(disk) as wal:
        first, second = wal.append(1, b"first"), wal.append(1, b"second")
        assert wal.waiting_records == 2
        with pytest.raises(TooLarge):
            wal.append(1, bytes(2001))
        assert (await second, await first) == (2, 1)
        await wal.close()
        with pytest.raises(WalClosed):
            wal.append(1, b"x")


async def test_cancelling_one_caller_leaves_the_others_of_its_batch_alone() -> None:
    disk = MemoryDisk()
    async with opened(disk) as wal:
        disk.gate = asyncio.Event()
        callers = [asyncio.ensure_future(wal.append(1, b"%d" % n)) for n in range(100)]
        await turns()
        callers[37].cancel()
        await turns()
        disk.gate.set()
        results = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(results.pop(37), asyncio.CancelledError)
        assert results == [lsn for lsn in range(1, 101) if lsn != 38]


async def test_records_in_a_row_get_numbers_in_a_row() -> None:
    async with opened(MemoryDisk()) as wal:
        many = [wal.append_many([(1, body(n)) for n in range(5)]) for _ in range(4)]
        ranges = await asyncio.gather(*many)
        assert sorted(n for numbers in ranges for n in numbers) == list(range(1, 21))
        assert list(await wal.append_many([])) == []
        with pytest.raises(TooLarge):
            await wal.append_many([(1, b"x"), (1, bytes(2001))])
        assert wal.next_lsn == 21


async def test_a_record_over_the_limit_uses_up_no_number() -> None:
    async with opened(MemoryDisk()) as wal:
        with pytest.raises(TooLarge, match="2001 bytes"):
            await wal.append(1, bytes(2001))
        assert await wal.append(1, bytes(2000)) == 1


async def test_memory_is_bounded_and_what_was_refused_never_appears() -> None:
    disk = MemoryDisk()
    settings = WalSettings(segment_bytes=1 << 20, max_waiting_records=10, max_waiting_bytes=500)
    async with opened(disk, settings) as wal:
        disk.gate = asyncio.Event()
        for _ in range(10):
            wal.accept(1, b"kept")
        with pytest.raises(WalBusy):
            wal.accept(1, b"refused")
        with pytest.raises(WalBusy):
            await wal.append(1, b"refused", room_s=0.001)
        patient = [asyncio.ensure_future(wal.append(1, b"patient%d" % n)) for n in range(30)]
        impatient = asyncio.ensure_future(wal.append(1, b"refused"))
        await turns()
        impatient.cancel()
        assert wal.waiting_records == 10
        disk.gate.set()
        assert await asyncio.gather(*patient) == list(range(11, 41))
        bodies = [record.body for record in await all_of(wal)]
        assert bodies == [b"kept"] * 10 + [b"patient%d" % n for n in range(30)]
        assert (wal.waiting_records, wal.waiting_bytes) == (0, 0)
        large = [asyncio.ensure_future(wal.append(1, bytes(300))) for _ in range(4)]
        await asyncio.sleep(0)
        assert wal.waiting_bytes <= 500
        await asyncio.gather(*large)


async def test_a_failed_sync_ends_the_log_and_nothing_is_tried_again() -> None:
    disk = MemoryDisk()
    async with opened(disk, clean=False) as wal:
        await fill(wal, range(1, 3))
        disk.sync_errors.append(OSError(errno.EIO, "input/output error"))
        callers = [asyncio.ensure_future(wal.append(1, b"x")) for _ in range(5)]
        follower = asyncio.ensure_future(wal.wait_durable(3))
        results = await asyncio.gather(*callers, follower, return_exceptions=True)
        assert all(isinstance(result, WalFailed) for result in results)
        calls = list(disk.calls)
        for _ in range(3):
            with pytest.raises(WalFailed, match="input/output error"):
                await wal.append(1, b"y")
            with pytest.raises(WalFailed):
                await wal.flush()
        assert wal.durable_lsn == 2
        await wal.close()
        assert [call for call in disk.calls[len(calls) :] if "close" not in call] == []


async def test_a_full_disk_refuses_what_waits_and_goes_on_when_there_is_room() -> None:
    disk = MemoryDisk()
    async with opened(disk) as wal:
        await fill(wal, range(1, 4))
        disk.capacity = disk.used + 150
        callers = [asyncio.ensure_future(wal.append(1, bytes(100))) for _ in range(5)]
        results = await asyncio.gather(*callers, return_exceptions=True)
        assert all(isinstance(result, DiskFull) for result in results)
        assert wal.durable_lsn == 3
        assert len(await all_of(wal)) == 3
        disk.capacity = None
        await fill(wal, range(4, 6))
    async with opened(disk) as wal:
        assert [record.lsn for record in await all_of(wal)] == [1, 2, 3, 4, 5]


async def test_no_room_for_a_new_segment_is_a_full_disk_too() -> None:
    disk = MemoryDisk()
    async with opened(disk) as wal:
        await fill(wal, range(1, 4), size=1000)
        disk.capacity = disk.used + 10
        with pytest.raises(DiskFull):
            await wal.append(1, bytes(1500))
        disk.capacity = None
        assert await wal.append(1, body(4, 1500)) == 4
    async with opened(disk) as wal:
        assert [record.lsn for record in await all_of(wal)] == [1, 2, 3, 4]


async def test_a_close_writes_all_that_was_accepted_and_turns_away_who_waits() -> None:
    disk = MemoryDisk()
    settings = WalSettings(segment_bytes=1 << 20, max_waiting_records=100)
    async with opened(disk, settings) as wal:
        disk.gate = asyncio.Event()
        for number in range(100):
            wal.accept(1, body(number))
        waiting = asyncio.ensure_future(wal.append(1, b"late"))
        await turns()
        closing = asyncio.ensure_future(wal.close())
        await turns()
        with pytest.raises(WalClosed):
            await waiting
        disk.gate.set()
        await closing
        await wal.close()
        with pytest.raises(WalClosed):
            await wal.append(1, b"too late")
    async with opened(disk, settings) as wal:
        assert len(await all_of(wal)) == 100
        assert wal.recovered.clean


async def test_a_new_segment_is_durable_by_name_before_anything_in_it_counts() -> None:
    disk = MemoryDisk()
    async with opened(disk) as wal:
        await fill(wal, range(1, 4), size=1000)
        disk.calls.clear()
        await fill(wal, range(4, 5), size=1500)
        second = segments(disk)[1]
        assert disk.calls[:5] == [
            f"open {second}.new",
            f"append {FILE_HEADER_BYTES}",
            "sync",
            f"rename {second}",
            "sync directory wal",
        ]
        assert disk.calls[-2:] == [f"append {BLOCK_HEADER_BYTES + 5 + 1500}", "sync"]


async def test_the_age_of_a_sync_is_seen_while_it_lasts() -> None:
    disk, clock = MemoryDisk(), HandClock()
    async with opened(disk, clock=clock) as wal:
        disk.gate = asyncio.Event()
        waiting = asyncio.ensure_future(wal.append(1, b"x"))
        await turns()
        clock.time_s += 3.0
        assert wal.sync_age_s() == pytest.approx(3.0)
        disk.gate.set()
        await waiting
        assert wal.sync_age_s() == 0.0
        assert wal.counters.slow_syncs == 1


async def test_a_writer_that_is_stopped_leaves_nobody_waiting() -> None:
    disk = MemoryDisk()
    async with opened(disk, clean=False) as wal:
        disk.gate = asyncio.Event()
        callers = [asyncio.ensure_future(wal.append(1, b"x")) for _ in range(3)]
        await turns()
    results = await asyncio.gather(*callers, return_exceptions=True)
    assert all(isinstance(result, WalFailed) for result in results)


async def test_a_writer_that_breaks_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unexpected error of the disk fails the log, and no caller is left waiting."""

    async def broken(self: MemoryFile, data: bytes) -> None:
        raise ValueError("a bug")

    async with opened(MemoryDisk(), clean=False) as wal:
        await fill(wal, range(1, 3))
        monkeypatch.setattr(MemoryFile, "append_and_sync", broken)
        callers = [asyncio.ensure_future(wal.append(1, b"x")) for _ in range(3)]
        follower = asyncio.ensure_future(wal.wait_durable(3))
        for waiting in (*callers, follower):
            with pytest.raises(WalFailed):
                await waiting
        with pytest.raises(WalFailed):
            wal.append(1, b"y")
        assert wal.durable_lsn == 2
        await wal.close()


async def test_counters_say_what_was_written() -> None:
    disk = MemoryDisk()
    async with opened(disk, SMALL) as wal:
        await fill(wal, range(1, 11))
        assert wal.counters.records == 10
        assert wal.counters.syncs == 10
        assert wal.bytes_on_disk == len(disk.files[segments(disk)[0]])
