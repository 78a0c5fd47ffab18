"""Streams on S3 against a model of its objects: slow, with lost replies, and many at a time.

Writers append one item after another; one reader follows the stream as an inbox is followed and
removes what it read. Nothing may be lost, come twice, or come in another order than its writer's.
Where all markers stay, replies are lost too, and some items are appended by all writers under one
name. Where hardly any stay, a slot that was free a moment ago is often one of the past, and a slow
writer cannot tell an item that was read and dropped from one that nobody will read: it appends it
again, so that it may come twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import pytest

from lab.sim.run import Scenario, run_seed
from lab.sim.world import World
from squall.coordination.store_errors import StoreUnavailableError
from squall.coordination.stores.interface import Append, Remove
from squall.coordination.stores.s3 import streams as s3_streams
from squall.coordination.stores.s3.objects import S3Objects, StoredObject
from squall.coordination.stores.s3.streams import S3Streams

T = TypeVar("T")
STREAM = "signal/a"
WRITERS = 4
ITEMS = 30
SHARED_EVERY = 10
"""So many items of a writer on, one has a name that all writers give to theirs."""
FEW, USUAL, ALL = 1, s3_streams.KEPT_MARKERS, 10_000
LOST = 0.03
"""Of the replies."""


class Bucket:
    """All objects. What a request does is done in one moment, between two delays."""

    def __init__(self) -> None:
        self.objects: dict[str, StoredObject] = {}
        self._writes = 0

    def put(self, name: str, body: bytes) -> str:
        self._writes += 1
        etag = f"e{self._writes}"
        self.objects[name] = StoredObject(body=body, etag=etag, modified_ms=0)
        return etag


class Client:
    """Stands for `S3Objects` of one process."""

    def __init__(self, bucket: Bucket, source: random.Random, lost: float) -> None:
        self._bucket = bucket
        self._random = source
        self._lost = lost
        self._slow_s = source.choice((0.01, 0.2, 3.0))

    async def fetch(self, name: str) -> StoredObject | None:
        return await self._request(lambda: self._bucket.objects.get(name))

    async def create(self, name: str, body: bytes) -> str | None:
        def do() -> str | None:
            return None if name in self._bucket.objects else self._bucket.put(name, body)

        return await self._request(do)

    async def replace(self, name: str, body: bytes, etag: str) -> str | None:
        def do() -> str | None:
            found = self._bucket.objects.get(name)
            fits = found is not None and found.etag == etag
            return self._bucket.put(name, body) if fits else None

        return await self._request(do)

    async def delete(self, name: str, etag: str = "") -> bool:
        def do() -> bool:
            found = self._bucket.objects.get(name)
            if found is not None and etag in ("", found.etag):
                del self._bucket.objects[name]
            return name not in self._bucket.objects

        return await self._request(do)

    async def _request(self, do: Callable[[], T]) -> T:
        await asyncio.sleep(self._random.uniform(0.0, self._slow_s))
        result = do()
        await asyncio.sleep(self._random.uniform(0.0, self._slow_s))
        if self._random.random() < self._lost:
            raise StoreUnavailableError("the reply was lost")
        return result


class Play:
    def __init__(self, source: random.Random, markers: int) -> None:
        self.bucket = Bucket()
        self.markers = markers
        self.source = source
        self.read: list[str] = []
        self.is_over = False

    def streams(self) -> S3Streams:
        async def now_ms() -> int:
            return round(asyncio.get_running_loop().time() * 1000.0)

        client: Any = Client(self.bucket, self.source, LOST if self.markers == ALL else 0.0)
        return S3Streams(cast("S3Objects", client), "root", now_ms)

    def name(self, writer: int, item: int) -> str:
        if self.markers == ALL and item % SHARED_EVERY == 0:
            return f"all.{item}"
        return f"w{writer}.{item}"

    async def write(self, number: int) -> None:
        streams = self.streams()
        for item in range(ITEMS):
            name = self.name(number, item)
            append = Append(STREAM, name, name.encode(), ttl_s=86_400.0)
            await _again(lambda append=append: streams.append(append))
            await asyncio.sleep(self.source.choice((0.0, 0.0, 0.5, 5.0)))

    async def follow(self) -> None:
        streams, cursor = self.streams(), ""
        while True:
            was_over = self.is_over
            items = await _again(lambda after=cursor: streams.read(STREAM, after, 8))
            for item in items:
                self.read.append(item.id)
                cursor = item.cursor
                remove = Remove(STREAM, item.cursor)
                await _again(lambda remove=remove: streams.remove(remove))
            if not items:
                if was_over:
                    return
                await asyncio.sleep(self.source.uniform(0.0, 2.0))

    async def run(self) -> None:
        following = asyncio.ensure_future(self.follow())
        await asyncio.gather(*map(self.write, range(WRITERS)))
        self.is_over = True
        await following

    def check(self) -> None:
        wanted = {self.name(writer, item) for writer in range(WRITERS) for item in range(ITEMS)}
        first = list(dict.fromkeys(self.read))
        assert sorted(first) == sorted(wanted)
        assert first == self.read or self.markers == FEW
        for number in range(WRITERS):
            own = [_item(each) for each in first if each.startswith(f"w{number}.")]
            assert own == sorted(own)


def _item(name: str) -> int:
    return int(name.partition(".")[2])


async def _again(call: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await call()
        except StoreUnavailableError:
            await asyncio.sleep(1.0)


@pytest.mark.parametrize("markers", [FEW, USUAL, ALL])
@pytest.mark.parametrize("seed", range(1, 31))
def test_every_item_is_read_once_in_the_order_of_its_writer(
    seed: int, markers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = random.Random(seed)
    monkeypatch.setattr(s3_streams, "KEPT_MARKERS", markers)
    monkeypatch.setattr(s3_streams, "DROP_AT_ONCE", source.choice((1, 2, 8)))

    async def scenario(world: World) -> None:
        play = Play(source, markers)
        await play.run()
        play.check()

    outcome = run_seed(Scenario("streams", "", scenario, limit_s=36_000.0), seed)
    assert outcome.clean, outcome.failure + "\n" + outcome.details
