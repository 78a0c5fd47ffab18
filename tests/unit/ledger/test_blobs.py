"""Blobs: named by content, fetched when absent, deleted only after their hour."""

from __future__ import annotations

import asyncio
from hashlib import sha256

import pytest

from squall.ledger.blobs import BlobStore, BlobTooLarge, Fetch
from squall.ledger.interface import Digest
from unit.ledger.ledger_lab import Words, ledger_on
from unit.ledger.memory_disk import HandClock, MemoryDisk

pytestmark = pytest.mark.asyncio
HOUR = 3_600_000


class Time:
    now_ms = 0


async def store_on(disk: MemoryDisk, time: Time, fetch: Fetch | None = None) -> BlobStore:
    store = BlobStore(
        disk, "blobs", lambda: time.now_ms, max_bytes=1000, keep_ms=HOUR, fetches=2, fetch=fetch
    )
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


async def test_what_is_absent_or_damaged_is_fetched_a_few_at_a_time() -> None:
    disk, time = MemoryDisk(), Time()
    blobs = {sha256(b"%d" % n).hexdigest(): b"%d" % n for n in range(10)}
    running = most = asked = 0

    async def fetch(digest: Digest) -> bytes:
        nonlocal running, most, asked
        running += 1
        asked += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return blobs[digest]

    store = await store_on(disk, time, fetch)
    both = [*blobs, *blobs]
    found = await asyncio.gather(*(store.get(Digest(digest)) for digest in both))
    assert found == [blobs[digest] for digest in both]
    assert (most, asked) == (2, 10)
    first = Digest(next(iter(blobs)))
    disk.files[f"blobs/{first}"][0] ^= 1
    assert await store.get(first) == blobs[first]
    assert asked == 11
    assert disk.files[f"blobs/{first}"] == blobs[first]


async def test_a_peer_that_sends_something_else_is_not_believed() -> None:
    async def fetch(digest: Digest) -> bytes:
        return b"something else"

    store = await store_on(MemoryDisk(), Time(), fetch)
    with pytest.raises(KeyError):
        await store.get(Digest(sha256(b"right").hexdigest()))
    assert store.count == 0


async def test_the_ledger_keeps_what_its_machine_refers_to() -> None:
    disk, machine, clock = MemoryDisk(), Words(), HandClock()
    async with ledger_on(disk, machine, clock=clock) as ledger:
        kept, dropped = await ledger.blobs.put(b"kept"), await ledger.blobs.put(b"dropped")
        machine.held = [kept]
        clock.time_s += 3601.0
        assert await ledger.collect_blobs() in (0, 1)
        assert await ledger.blobs.get(kept) == b"kept"
        assert not await ledger.blobs.has(dropped)
