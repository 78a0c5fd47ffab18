"""Checkpoints: whole or absent, several kept, and the log kept for the oldest."""

from __future__ import annotations

import asyncio

import pytest

from squall.cluster.ledger.interface import Entry, LedgerDamaged
from squall.cluster.ledger.settings import LedgerSettings
from tests.unit.cluster.ledger.lab.ledgers import SMALL, Words, ledger_on, say
from tests.unit.cluster.ledger.lab.logs import segments, turns
from tests.unit.cluster.ledger.lab.memory_disk import HandClock, MemoryDisk

pytestmark = pytest.mark.asyncio


def checkpoints(disk: MemoryDisk) -> list[str]:
    return sorted(path for path in disk.files if path.endswith(".ckpt"))


async def with_checkpoints(count: int) -> tuple[MemoryDisk, list[str]]:
    disk, machine = MemoryDisk(), Words()
    async with ledger_on(disk, machine) as ledger:
        for part in range(count):
            await say(ledger, *(f"{part} {n}".ljust(100, ".") for n in range(40)))
            await ledger.snapshots.checkpoint()
        await say(ledger, "behind", "the last")
    return disk, machine.words


async def test_a_start_from_a_checkpoint_equals_a_full_replay() -> None:
    disk, words = await with_checkpoints(2)
    assert len(checkpoints(disk)) == 2
    machine = Words()
    async with ledger_on(disk, machine):
        assert machine.words == words


async def test_the_newest_three_are_kept_and_the_log_back_to_the_oldest() -> None:
    disk, words = await with_checkpoints(7)
    kept = checkpoints(disk)
    assert len(kept) == 3
    for damaged in range(3):
        copy = MemoryDisk()
        copy.files = {path: bytearray(content) for path, content in disk.files.items()}
        for path in kept[len(kept) - damaged :]:
            copy.files[path][len(copy.files[path]) // 2] ^= 8
        machine = Words()
        async with ledger_on(copy, machine) as ledger:
            assert machine.words == words
            assert len(ledger.durable_state.checkpoints.skipped) == damaged
    for path in kept:
        disk.files[path][-1] ^= 1
    with pytest.raises(LedgerDamaged, match="newest valid checkpoint"):
        async with ledger_on(disk):
            pass


async def test_every_flipped_bit_and_every_cut_of_a_checkpoint_is_noticed() -> None:
    disk, machine = MemoryDisk(), Words()
    async with ledger_on(disk, machine) as ledger:
        await say(ledger, "one", "two")
        await ledger.snapshots.checkpoint()
        await say(ledger, "three")
        (path,) = checkpoints(disk)
        whole = bytes(disk.files[path])
        store = ledger.durable_state.checkpoints
        for place in range(len(whole)):
            disk.files[path][:] = whole
            disk.files[path][place] ^= 1 << place % 8
            assert await store.newest() is None
            disk.files[path][:] = whole[:place]
            assert await store.newest() is None
        disk.files[path][:] = whole + b"more"
        assert await store.newest() is None
        disk.files[path][:] = whole
        assert await store.newest() is not None


async def test_the_log_does_not_grow_without_end() -> None:
    disk = MemoryDisk()
    async with ledger_on(disk) as ledger:
        sizes: list[int] = []
        for part in range(12):
            await say(ledger, *(f"{part} {n}".ljust(200, ".") for n in range(40)))
            await ledger.snapshots.checkpoint()
            sizes.append(len(segments(disk)))
        assert max(sizes[4:]) <= sizes[3] + 1


async def test_commands_commit_while_a_checkpoint_is_written() -> None:
    disk, machine = MemoryDisk(), Words()
    async with ledger_on(disk, machine) as ledger:
        await say(ledger, *(str(n) for n in range(200)))
        writing = asyncio.ensure_future(ledger.snapshots.checkpoint())
        await say(ledger, *(str(n) for n in range(200, 260)))
        assert not writing.done()
        op = await writing
        assert op < ledger.applied
    again = Words()
    async with ledger_on(disk, again):
        assert again.words == machine.words


async def test_they_come_by_number_of_entries_by_size_and_by_time() -> None:
    clock = HandClock()
    for settings in (
        LedgerSettings(wal=SMALL.wal, checkpoint_entries=20),
        LedgerSettings(wal=SMALL.wal, checkpoint_bytes=1000),
        LedgerSettings(wal=SMALL.wal, checkpoint_interval_s=30.0),
    ):
        disk = MemoryDisk()
        async with ledger_on(disk, settings=settings, clock=clock) as ledger:
            await turns(50)
            assert checkpoints(disk) == []
            await say(ledger, *(str(n) for n in range(30)))
            clock.time_s += 31.0
            await turns(100)
            assert len(checkpoints(disk)) == 1


async def test_the_log_stays_within_twice_the_state() -> None:
    """Whatever is committed: checkpoints come by size, and take the log with them."""

    class Latest(Words):
        """Keeps the last hundred."""

        def apply(self, entry: Entry) -> bytes:
            result = super().apply(entry)
            del self.words[:-100]
            return result

    disk, clock, machine = MemoryDisk(), HandClock(), Latest()
    settings = LedgerSettings(wal=SMALL.wal, checkpoint_bytes=2000)
    largest = 0
    async with ledger_on(disk, machine, settings, clock=clock) as ledger:
        for part in range(200):
            await say(ledger, *(f"{part} {n}".ljust(400, ".") for n in range(5)))
            await turns(30)
            state = sum(map(len, machine.words))
            if part > 40:
                largest = max(largest, sum(len(disk.files[path]) for path in segments(disk)))
        assert state == 100 * 400
        assert largest <= 2 * state + 2 * SMALL.wal.segment_bytes
        assert len(checkpoints(disk)) == 3
    again = Latest()
    async with ledger_on(disk, again, settings):
        assert again.words == machine.words


async def test_a_checkpoint_that_does_not_read_back_is_not_used() -> None:
    class Rotten(MemoryDisk):
        rots = False

        async def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
            content = bytearray(await super().read(path, offset, size))
            if self.rots and path.endswith(".ckpt.new") and content:
                content[-1] ^= 1
            return bytes(content)

    disk, machine = Rotten(), Words()
    async with ledger_on(disk, machine) as ledger:
        for part in range(3):
            await say(ledger, *(f"{part} {n}".ljust(200, ".") for n in range(40)))
            await ledger.snapshots.checkpoint()
        await say(ledger, "one more")
        before = checkpoints(disk), segments(disk)
        disk.rots = True
        with pytest.raises(OSError, match="is damaged after it was written"):
            await ledger.snapshots.checkpoint()
        assert (checkpoints(disk), segments(disk)) == before
        disk.rots = False
        await say(ledger, "goes on")
        await ledger.snapshots.checkpoint()
        assert not [path for path in disk.files if path.endswith(".new")]
    again = Words()
    async with ledger_on(disk, again):
        assert again.words == machine.words


async def test_a_checkpoint_that_cannot_be_written_costs_nothing() -> None:
    disk, machine = MemoryDisk(), Words()
    settings = LedgerSettings(wal=SMALL.wal, checkpoint_entries=5)
    async with ledger_on(disk, machine, settings) as ledger:
        disk.capacity = disk.used + 1500
        await say(ledger, "a" * 300)
        disk.sync_errors = []
        await say(ledger, *"bcdef")
        await turns(60)
        disk.capacity = None
        await say(ledger, "g")
    again = Words()
    async with ledger_on(disk, again):
        assert again.words == machine.words
