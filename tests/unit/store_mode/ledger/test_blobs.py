"""Blobs in a store: whole, durable before they are named, kept while they are wanted."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from squall.cluster.ledger.blobs.on_disk import BlobTooLarge
from squall.cluster.ledger.interface import Digest
from squall.coordination.stores.interface import ANY, Delete, Put
from squall.store_mode.ledger.blobs import INLINE_BYTES, StoreBlobs
from tests.unit.store_mode.lab.ledgers import SMALL, Lab, play

KEEP_S = 100.0
SETTINGS = msgspec.structs.replace(
    SMALL, blob_keep_s=KEEP_S, part_bytes=100_000, blob_max_bytes=10**6
)
SMALL_DATA = b"small"
LARGE_DATA = bytes(range(256)) * 1200


def blobs_of(lab: Lab, name: str = "a") -> StoreBlobs:
    runtime = lab.runtime(name)
    return StoreBlobs(
        lab.store,
        "main",
        SETTINGS,
        group_ms=lambda: int(runtime.clock.now() * 1000.0),
        entropy=runtime.entropy,
    )


@pytest.mark.parametrize("data", [b"", SMALL_DATA, LARGE_DATA])
def test_what_was_put_is_read_by_anybody(data: bytes) -> None:
    async def script(lab: Lab) -> None:
        digest = await blobs_of(lab).put(data)
        other = blobs_of(lab, "b")
        assert await other.has(digest)
        assert await other.get(digest) == data
        assert len(await lab.keys("blobpart")) == (4 if len(data) > INLINE_BYTES else 0)

    play(script)


def test_a_small_blob_is_one_request() -> None:
    async def script(lab: Lab) -> None:
        blobs = blobs_of(lab)
        await blobs.put(SMALL_DATA)
        assert lab.store.requests == ["put"]

    play(script)


def test_what_is_not_there_is_a_key_error() -> None:
    async def script(lab: Lab) -> None:
        blobs = blobs_of(lab)
        assert not await blobs.has(Digest("0" * 64))
        with pytest.raises(KeyError):
            await blobs.get(Digest("0" * 64))
        with pytest.raises(BlobTooLarge):
            await blobs.put(b"x" * (10**6 + 1))

    play(script)


@pytest.mark.parametrize("data", [SMALL_DATA, LARGE_DATA])
def test_a_damaged_blob_counts_as_absent_and_is_put_again(data: bytes) -> None:
    async def script(lab: Lab) -> None:
        blobs = blobs_of(lab)
        digest = await blobs.put(data)
        key = (await lab.keys("blobpart") or await lab.keys("blob"))[0]
        await lab.store.write(Put(key, b"\x91\x05", expect=ANY, ttl_s=None))
        with pytest.raises(KeyError):
            await blobs.get(digest)
        assert not await blobs.has(digest)
        assert await blobs.put(data) == digest
        assert await blobs.get(digest) == data

    play(script)


def test_a_store_that_does_not_answer_is_an_error_of_a_disk() -> None:
    async def script(lab: Lab) -> None:
        ledger = await lab.open("a")
        lab.faults["a"].down = True
        with pytest.raises(OSError, match="lost"):
            await ledger.blobs.put(SMALL_DATA)

    play(script)


def test_a_blob_goes_when_it_was_not_referred_to_for_long_enough() -> None:
    async def script(lab: Lab) -> None:
        blobs = blobs_of(lab)
        kept, gone = await blobs.put(SMALL_DATA), await blobs.put(LARGE_DATA)
        for _ in range(11):
            await asyncio.sleep(KEEP_S / 10.0)
            assert await blobs.collect([kept, gone]) == 0
        # The last reference is gone: its time starts now, however old it is.
        for _ in range(10):
            assert await blobs.collect([kept]) == 0
            await asyncio.sleep(KEEP_S / 10.0)
        assert await blobs.collect([kept]) == 1
        assert await blobs.has(kept)
        assert not await blobs.has(gone)
        assert await lab.keys("blobpart") == []

    play(script)


def test_who_was_told_that_it_is_here_can_rely_on_it() -> None:
    async def script(lab: Lab) -> None:
        blobs = blobs_of(lab)
        digest = await blobs.put(SMALL_DATA)
        await asyncio.sleep(KEEP_S * 1.1)
        assert await blobs.collect([]) == 0
        await asyncio.sleep(KEEP_S * 0.9)
        assert await blobs.has(digest)
        await asyncio.sleep(KEEP_S * 0.4)
        assert await blobs.collect([]) == 0
        assert await blobs.has(digest)

    play(script)


def test_a_former_leader_cannot_delete_what_was_wanted_meanwhile() -> None:
    async def script(lab: Lab) -> None:
        former, present = blobs_of(lab), blobs_of(lab, "b")
        digest = await former.put(SMALL_DATA)
        await asyncio.sleep(KEEP_S)
        assert await former.collect([]) == 0
        await asyncio.sleep(KEEP_S)
        assert await present.has(digest)
        assert await former.collect([]) == 0
        assert await present.get(digest) == SMALL_DATA

    play(script)


def test_parts_without_a_record_are_swept() -> None:
    async def script(lab: Lab) -> None:
        blobs = blobs_of(lab)
        digest = await blobs.put(LARGE_DATA)
        orphan = f"blobpart/main/{digest}.dead.0"
        await lab.store.write(Put(orphan, b"x", expect=ANY, ttl_s=None))
        await asyncio.sleep(KEEP_S * 1.1)
        await blobs.collect([digest])
        assert orphan not in await lab.keys("blobpart")
        assert await blobs.get(digest) == LARGE_DATA
        await lab.store.write(Delete(f"blob/main/{digest}", ANY))
        await blobs.collect([digest])
        assert await lab.keys("blobpart") == []

    play(script)
