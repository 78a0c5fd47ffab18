"""Blobs: pulled in chunks, resumed, checked, and bounded."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from squall.cluster.wire import blob_transfer
from squall.cluster.wire.blob_transfer import (
    CHUNK_BYTES,
    IN_FLIGHT_MAX,
    BlobFetcher,
    blob_hash,
    serve_blobs,
)
from squall.cluster.wire.counters import WireCounters
from squall.cluster.wire.errors import BlobError, BlobRefused, OutcomeUnknown, RemoteError
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.peer import Peer
from squall.cluster.wire.messages import BlobChunk, BlobFetch
from squall.runtime.tasks import TaskRunner
from tests.fakes.wire import FakeClock, FakeNetwork, board, run

CONTENT = random.Random(7).randbytes(5 * CHUNK_BYTES + 123)
BLOB = blob_hash(CONTENT)


class MemoryStore:
    def __init__(self, *contents: bytes) -> None:
        self.whole = {blob_hash(content): content for content in contents}

    async def has(self, blob: str) -> bool:
        return blob in self.whole

    async def size(self, blob: str) -> int | None:
        return len(self.whole[blob]) if blob in self.whole else None

    async def read(self, blob: str, offset: int, length: int) -> bytes:
        await asyncio.sleep(0.001)
        return self.whole[blob][offset : offset + length]

    async def store(self, blob: str, content: bytes) -> None:
        self.whole[blob] = content


class Holder:
    """Answers from memory, through a change; knows how many were asked at once."""

    def __init__(
        self, content: bytes = CONTENT, change: Callable[[BlobChunk], Any] = lambda chunk: chunk
    ) -> None:
        self.content = content
        self.change = change
        self.asked: list[int] = []
        self.now = self.most = 0

    async def request(self, message: BlobFetch, timeout_s: float) -> Any:
        self.asked.append(message.offset)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        self.now -= 1
        data = self.content[message.offset : message.offset + message.length]
        return self.change(BlobChunk(message.blob, message.offset, len(self.content), data))


def fetcher(store: MemoryStore, **limits: Any) -> tuple[BlobFetcher, WireCounters]:
    counters = WireCounters()
    tasks = TaskRunner(FakeClock(), random.Random(1))
    return BlobFetcher(store, counters, tasks, **limits), counters


def test_a_blob_travels_over_the_bulk_link_and_is_whole() -> None:
    async def main() -> None:
        network = FakeNetwork()
        server = board(network, "server")
        serve_blobs(server.handlers, MemoryStore(CONTENT, b""))
        endpoint = Endpoint(server)
        await endpoint.listen(("server", 0))
        peer = Peer(board(network, "client"), endpoint.address)
        peer.start()
        store = MemoryStore()
        fetch, _ = fetcher(store)
        await fetch.fetch(BLOB, len(CONTENT), [peer])
        assert store.whole[BLOB] == CONTENT
        await fetch.fetch(blob_hash(b""), 0, [peer])
        assert store.whole[blob_hash(b"")] == b""
        with pytest.raises(BlobError, match="not held here"):
            await fetch.fetch(blob_hash(b"unknown"), 7, [peer])
        await peer.close()
        await endpoint.close()

    run(main())


@pytest.mark.parametrize(
    "ask",
    [
        BlobFetch(BLOB, -1, 10),
        BlobFetch(BLOB, 10**9, 10),
        BlobFetch(BLOB, 0, 0),
        BlobFetch(BLOB, 0, 10**9),
        BlobFetch("../../etc/passwd", 0, 10),
    ],
)
def test_a_fetch_of_what_cannot_be_is_refused(ask: BlobFetch) -> None:
    async def main() -> None:
        network = FakeNetwork()
        server = board(network, "server")
        serve_blobs(server.handlers, MemoryStore(CONTENT))
        endpoint = Endpoint(server)
        await endpoint.listen(("server", 0))
        peer = Peer(board(network, "client"), endpoint.address)
        peer.start()
        with pytest.raises(RemoteError):
            await peer.request(ask, 5.0)
        await peer.close()
        await endpoint.close()

    run(main())


def breaks(chunk: BlobChunk) -> BlobChunk:
    if chunk.offset >= 3 * CHUNK_BYTES:
        raise OutcomeUnknown("link lost")
    return chunk


def test_a_broken_transfer_goes_on_where_it_ended() -> None:
    async def main() -> None:
        store = MemoryStore()
        fetch, _ = fetcher(store)
        with pytest.raises(BlobError, match="link lost"):
            await fetch.fetch(BLOB, len(CONTENT), [Holder(change=breaks)])
        assert fetch.arrived == 3 * CHUNK_BYTES
        second = Holder()
        await fetch.fetch(BLOB, len(CONTENT), [second])
        assert min(second.asked) == 3 * CHUNK_BYTES
        assert store.whole[BLOB] == CONTENT

    run(main())


def test_another_holder_is_asked_when_one_fails() -> None:
    def breaks(chunk: BlobChunk) -> BlobChunk:
        raise RemoteError("not_found")

    async def main() -> None:
        store = MemoryStore()
        fetch, _ = fetcher(store)
        await fetch.fetch(BLOB, len(CONTENT), [Holder(change=breaks), Holder()])
        assert store.whole[BLOB] == CONTENT

    run(main())


def test_wrong_content_is_refused_counted_and_not_kept() -> None:
    async def main() -> None:
        store = MemoryStore()
        fetch, counters = fetcher(store)
        wrong = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
        with pytest.raises(BlobRefused, match="another hash"):
            await fetch.fetch(BLOB, len(CONTENT), [Holder(wrong)])
        assert counters.blob_refused == 1
        assert (store.whole, fetch._parts) == ({}, {})

    run(main())


def test_a_part_that_another_holder_got_wrong_is_fetched_from_the_start() -> None:
    async def main() -> None:
        store = MemoryStore()
        fetch, counters = fetcher(store)
        wrong = bytes([CONTENT[0] ^ 1]) + CONTENT[1:]
        with pytest.raises(BlobError, match="link lost"):
            await fetch.fetch(BLOB, len(CONTENT), [Holder(wrong, change=breaks)])
        await fetch.fetch(BLOB, len(CONTENT), [Holder()])
        assert store.whole[BLOB] == CONTENT
        assert counters.blob_refused == 1

    run(main())


def test_what_broken_transfers_left_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_transfer, "PARTS_MAX_BYTES", len(CONTENT) + CHUNK_BYTES)
    other = bytes(reversed(CONTENT))

    async def main() -> None:
        store = MemoryStore()
        fetch, _ = fetcher(store)
        with pytest.raises(BlobError, match="link lost"):
            await fetch.fetch(BLOB, len(CONTENT), [Holder(change=breaks)])
        await fetch.fetch(blob_hash(other), len(other), [Holder(other)])
        assert store.whole == {blob_hash(other): other}
        second = Holder()
        await fetch.fetch(BLOB, len(CONTENT), [second])
        assert min(second.asked) == 0, "its part had to go"
        large = random.Random(1).randbytes(8 * CHUNK_BYTES)
        with pytest.raises(OSError, match="too much is being fetched"):
            await fetch.fetch(blob_hash(large), len(large), [Holder(large)])

    run(main())


@pytest.mark.parametrize(
    "change",
    [
        lambda chunk: BlobChunk(chunk.blob, chunk.offset, chunk.size, chunk.data + b"x"),
        lambda chunk: BlobChunk(chunk.blob, chunk.offset, chunk.size, chunk.data[:-1]),
        lambda chunk: BlobChunk(chunk.blob, chunk.offset, chunk.size + 1, chunk.data),
        lambda chunk: BlobChunk(chunk.blob, chunk.offset + 1, chunk.size, chunk.data),
        lambda chunk: BlobChunk("0" * 64, chunk.offset, chunk.size, chunk.data),
        lambda chunk: BlobFetch(chunk.blob, 0, 0),
    ],
)
def test_a_chunk_that_was_not_asked_for_is_refused(change: Callable[[BlobChunk], Any]) -> None:
    async def main() -> None:
        store = MemoryStore()
        fetch, counters = fetcher(store)
        with pytest.raises(BlobRefused):
            await fetch.fetch(BLOB, len(CONTENT), [Holder(change=change)])
        assert counters.blob_refused == 1
        assert (store.whole, fetch._parts) == ({}, {})

    run(main())


def test_at_most_eight_requests_are_in_flight_over_all_blobs() -> None:
    async def main() -> None:
        contents = [random.Random(n).randbytes(12 * CHUNK_BYTES) for n in range(3)]
        store = MemoryStore()
        fetch, _ = fetcher(store)
        holders = [Holder(content) for content in contents]
        most = 0

        async def watch() -> None:
            nonlocal most
            while len(store.whole) < 3:
                most = max(most, sum(holder.now for holder in holders))
                await asyncio.sleep(0.001)

        await asyncio.gather(
            watch(),
            *(
                fetch.fetch(blob_hash(content), len(content), [holder])
                for content, holder in zip(contents, holders, strict=True)
            ),
        )
        assert most == IN_FLIGHT_MAX

    run(main())


def test_a_blob_that_two_want_is_fetched_once() -> None:
    async def main() -> None:
        store = MemoryStore()
        fetch, _ = fetcher(store)
        holder = Holder()
        await asyncio.gather(*(fetch.fetch(BLOB, len(CONTENT), [holder]) for _ in range(3)))
        assert len(holder.asked) == 6
        assert fetch._parts == {}

    run(main())


@pytest.mark.parametrize("size", [-1, 1_001])
def test_a_blob_beyond_the_cap_is_refused_before_it_is_asked_for(size: int) -> None:
    async def main() -> None:
        holder = Holder()
        fetch, counters = fetcher(MemoryStore(), blob_max_bytes=1_000)
        with pytest.raises(BlobRefused, match="at most 1000 are taken"):
            await fetch.fetch(BLOB, size, [holder])
        assert holder.asked == []
        assert counters.blob_refused == 1

    run(main())


@pytest.mark.parametrize("blob", ["", "../x", "A" * 64, BLOB.upper(), BLOB + "0"])
def test_a_name_that_is_no_hash_is_refused(blob: str) -> None:
    async def main() -> None:
        fetch, _ = fetcher(MemoryStore())
        with pytest.raises(BlobRefused, match="named by its SHA-256"):
            await fetch.fetch(blob, 1, [Holder()])

    run(main())


def test_a_stopping_node_ends_its_fetches() -> None:
    async def main() -> None:
        fetch, _ = fetcher(MemoryStore())
        running = asyncio.ensure_future(fetch.fetch(BLOB, len(CONTENT), [Holder()]))
        await asyncio.sleep(0.005)
        await fetch._tasks.shutdown(1.0)
        with pytest.raises(BlobError, match="this node stops"):
            await running

    run(main())


def test_a_cancelled_fetch_leaves_no_task() -> None:
    async def main() -> None:
        fetch, _ = fetcher(MemoryStore())
        running = asyncio.ensure_future(fetch.fetch(BLOB, len(CONTENT), [Holder()]))
        await asyncio.sleep(0.005)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert fetch._parts == {}

    run(main())
