"""Blobs: named by content, read in pieces, deleted only after their hour."""

from __future__ import annotations

from hashlib import sha256

import pytest

from squall.cluster.ledger.blobs.on_disk import BlobStore, BlobTooLarge
from squall.cluster.ledger.interface import Digest
from tests.unit.cluster.ledger.lab.ledgers import Words, ledger_on
from tests.unit.cluster.ledger.lab.memory_disk import HandClock, MemoryDisk

pytestmark = pytest.mark.asyncio
HOUR = 3_600_000


class Time:
    now_ms = 0


async def store_on(disk: MemoryDisk, time: Time) -> BlobStore:
    store = BlobStore(disk, "blobs", lambda: time.now_ms, max_bytes=1000, keep_ms=HOUR)
    await store.open()
    return store


async def test_a_blob_is_named_by_its_content_and_found_after_a_restart() -> None:
    disk, time = MemoryDisk(), Time()
    store = await store_on(disk, time)
    digest = await store.put(b"content")
    assert digest == sha256(b"content").hexdigest()
    assert await store.put(b"content") == digest
    assert disk.calls.count(f"write blobs/{digest}") == 1
    again = await store_on(disk, time)
    assert await again.has(digest)
    assert await again.get(digest) == b"content"
    with pytest.raises(KeyError):
        await again.get(Digest("0" * 64))
    with pytest.raises(BlobTooLarge):
        await again.put(bytes(1001))


async def test_it_goes_only_an_hour_after_its_last_reference() -> None:
    disk, time = MemoryDisk(), Time()
    store = await store_on(disk, time)
    digest = await store.put(b"x")
    time.now_ms = HOUR - 1
    assert await store.collect([]) == 0
    time.now_ms = 5 * HOUR
    assert await store.collect([digest]) == 0
    time.now_ms = 6 * HOUR - 1
    assert await store.collect([]) == 0
    assert await store.has(digest)
    time.now_ms = 7 * HOUR - 2
    assert await store.collect([]) == 0
    time.now_ms = 8 * HOUR
    assert await store.collect([]) == 1
    assert not await store.has(digest)
    assert disk.files == {}


async def test_a_restart_gives_every_blob_its_full_hour() -> None:
    disk, time = MemoryDisk(), Time()
    await (await store_on(disk, time)).put(b"x")
    time.now_ms = 10 * HOUR
    store = await store_on(disk, time)
    assert await store.collect([]) == 0
    time.now_ms += HOUR
    assert await store.collect([]) == 1


async def test_a_damaged_blob_is_absent_and_can_be_stored_again() -> None:
    disk, time = MemoryDisk(), Time()
    store = await store_on(disk, time)
    digest = await store.put(b"content")
    disk.files[f"blobs/{digest}"][0] ^= 1
    assert await store.check(digest) == -1
    with pytest.raises(KeyError):
        await store.get(digest)
    assert not await store.has(digest)
    await store.store(digest, b"content")
    assert await store.get(digest) == b"content"


async def test_pieces_are_read_by_their_offset_and_keep_the_blob() -> None:
    disk, time = MemoryDisk(), Time()
    store = await store_on(disk, time)
    digest = await store.put(b"content")
    time.now_ms = HOUR - 1
    assert await store.size(digest) == 7
    assert await store.read(digest, 3, 2) == b"te"
    time.now_ms = 2 * HOUR - 2
    assert await store.collect([]) == 0, "a caller that received its size can fetch all of it"
    assert await store.size("0" * 64) is None
    del disk.files[f"blobs/{digest}"]
    assert await store.size(digest) is None and not await store.has(digest)


async def test_the_ledger_keeps_what_its_machine_refers_to() -> None:
    disk, machine, clock = MemoryDisk(), Words(), HandClock()
    async with ledger_on(disk, machine, clock=clock) as ledger:
        kept, dropped = await ledger.blobs.put(b"kept"), await ledger.blobs.put(b"dropped")
        machine.held = [kept]
        clock.time_s += 3601.0
        assert await ledger.blobs.collect() == 1
        assert await ledger.blobs.get(kept) == b"kept"
        assert not await ledger.blobs.has(dropped)


async def test_a_start_makes_durable_what_it_finds() -> None:
    disk = MemoryDisk()
    await store_on(disk, Time())
    assert "sync directory blobs" in disk.calls
