"""The log of store mode keeps its guarantees on each store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import pytest_asyncio

from lab.stores.faulty import FaultyStore, StoreFaults
from squall.cluster.ledger.interface import Entry, NotPrimary, OutcomeUnknown
from squall.coordination.stores.interface import ANY, Delete, Store
from squall.coordination.stores.s3.objects import S3Objects
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner
from squall.store_mode.ledger.layout import StoreLogSettings, head_key
from squall.store_mode.ledger.open_store_ledger import open_store_ledger
from squall.store_mode.ledger.store_ledger import StoreLedger
from squall.store_mode.ledger.tail import LogLost, Superseded
from tests.services.coordination.lab.places import Place

pytestmark = pytest.mark.asyncio

SETTINGS = StoreLogSettings(
    pace_s=0.0, checkpoint_slots=10**9, checkpoint_interval_s=1e9, part_bytes=200, read_at_once=8
)


@dataclass
class Leave:
    epoch: int
    valid: bool = True


@dataclass
class Words:
    version: int = 1
    words: list[str] = field(default_factory=list[str])

    def apply(self, entry: Entry) -> bytes:
        self.words.append(entry.body.decode())
        return b"%d" % len(self.words)

    def capture(self) -> Words:
        return Words(1, list(self.words))

    def slices(self) -> Iterator[bytes]:
        yield from (word.encode() for word in self.words)

    def load(self, slices: Iterable[bytes]) -> None:
        self.words = [piece.decode() for piece in slices]


class Leaders:
    """Several leaders of one log, each with its own connection."""

    def __init__(self, place: Place, stack: AsyncExitStack) -> None:
        self.place = place
        self.faults: list[StoreFaults] = []
        self._stack = stack
        self._epoch = 0

    async def open(
        self, words: Words, settings: StoreLogSettings = SETTINGS, store: Store | None = None
    ) -> StoreLedger:
        self._epoch += 1
        runtime = RealRuntime(f"leader{self._epoch}", seed=self._epoch)
        self._stack.push_async_callback(runtime.close)
        tasks = TaskRunner(runtime.clock, runtime.random)
        self._stack.push_async_callback(tasks.shutdown, 5.0)
        self.faults.append(StoreFaults())
        inner = store or await self.place.open()
        faulty = FaultyStore(inner, runtime.clock, runtime.random, self.faults[-1])
        ledger = await open_store_ledger(
            runtime, tasks, words, faulty, term=Leave(self._epoch), settings=settings
        )
        self._stack.push_async_callback(ledger.close)
        return ledger


@pytest_asyncio.fixture
async def leaders(place: Place) -> AsyncIterator[Leaders]:
    async with AsyncExitStack() as stack:
        yield Leaders(place, stack)


async def say(ledger: StoreLedger, *words: str) -> None:
    await asyncio.gather(*(ledger.submit(word.encode()) for word in words))


async def test_each_leader_goes_on_where_the_last_one_was(leaders: Leaders) -> None:
    fences: list[Any] = []
    for turn in range(3):
        words = Words()
        ledger = await leaders.open(words)
        assert words.words == [f"{each}-{n}" for each in range(turn) for n in range(5)]
        fences.append(ledger.fence)
        for number in range(5):
            await say(ledger, f"{turn}-{number}")
        assert await ledger.confirm() == ledger.fence
    assert fences == sorted(set(fences))


async def test_a_former_leader_conflicts_and_is_over(leaders: Leaders) -> None:
    first = await leaders.open(Words())
    await say(first, "one")
    second = await leaders.open(Words())
    with pytest.raises(NotPrimary):
        await first.confirm()
    third = await leaders.open(Words())
    with pytest.raises(OutcomeUnknown):
        await second.submit(b"two")
    assert isinstance(first.failure, Superseded)
    assert isinstance(second.failure, Superseded)
    await say(third, "three")


async def test_of_leaders_that_open_at_once_all_see_one_history(leaders: Leaders) -> None:
    machines = [Words() for _ in range(4)]
    opened = await asyncio.gather(*(leaders.open(machine) for machine in machines))
    outcomes = await asyncio.gather(
        *(each.submit(f"from {number}".encode()) for number, each in enumerate(opened)),
        return_exceptions=True,
    )
    committed = [not isinstance(outcome, BaseException) for outcome in outcomes]
    assert sum(committed) <= 1
    final = Words()
    await leaders.open(final)
    said = [f"from {number}" for number, done in enumerate(committed) if done]
    assert [word for word in final.words if word in said] == said
    assert len({each.fence for each in opened}) == 4


async def test_lost_replies_lose_and_repeat_nothing(leaders: Leaders) -> None:
    words = Words()
    ledger = await leaders.open(words)
    leaders.faults[0].lost_replies = 0.4
    for number in range(12):
        await say(ledger, str(number))
    leaders.faults[0].lost_replies = 0.0
    again = Words()
    await leaders.open(again)
    assert again.words == words.words == [str(number) for number in range(12)]


async def test_checkpoints_replace_slots_in_time(leaders: Leaders) -> None:
    settings = msgspec.structs.replace(
        SETTINGS, checkpoint_slots=5, trust_s=0.5, retain_s=1.0, checkpoints_kept=2
    )
    words = Words()
    ledger = await leaders.open(words, settings)
    for number in range(30):
        await say(ledger, f"word-{number}")
        if number % 5 == 4:
            await ledger.checkpoint()
    store = await leaders.place.open()
    for _ in range(600):
        left = (await store.list("log", limit=1000)).entries
        if len(left) <= 12:
            break
        await asyncio.sleep(0.1)
    assert len(left) <= 12
    await say(ledger, "more")
    again = Words()
    await leaders.open(again)
    assert again.words == words.words


async def test_blobs_are_there_for_the_next_leader(leaders: Leaders) -> None:
    settings = msgspec.structs.replace(SETTINGS, part_bytes=200_000)
    first = await leaders.open(Words(), settings)
    contents = [b"", b"small", bytes(range(256)) * 2000]
    digests = [await first.blobs.put(content) for content in contents]
    second = await leaders.open(Words(), settings)
    assert [await second.blobs.get(digest) for digest in digests] == contents
    assert all([await second.blobs.has(digest) for digest in digests])
    assert [await second.blobs.put(content) for content in contents] == digests


async def test_a_log_that_is_gone_ends_and_another_begins(leaders: Leaders) -> None:
    settings = msgspec.structs.replace(SETTINGS, head_check_interval_s=0.2)
    first = await leaders.open(Words(), settings)
    await say(first, "one")
    store = await leaders.place.open()
    for kind in ("log", "checkpoint"):
        for entry in (await store.list(kind)).entries:
            await store.write(Delete(entry.key, ANY))
    await store.write(Delete(head_key("main"), ANY))
    for _ in range(600):
        with suppress(NotPrimary):
            await first.confirm()
        if first.failure is not None:
            break
        await asyncio.sleep(0.1)
    assert isinstance(first.failure, LogLost)
    words = Words()
    second = await leaders.open(words)
    assert second.group != first.group
    await say(second, "two")
    assert words.words == ["two"]


@pytest.mark.parametrize("place", ["s3"], indirect=True)
async def test_s3_takes_one_request_per_slot_and_per_round(leaders: Leaders) -> None:
    ledger = await leaders.open(Words())
    calls: list[str] = []
    right = S3Objects._call

    async def counted(self: S3Objects, operation: str, **arguments: Any) -> Any:
        calls.append(operation)
        return await right(self, operation, **arguments)

    with patch.object(S3Objects, "_call", counted):
        for number in range(5):
            await say(ledger, *(f"{number}-{each}" for each in range(20)))
        assert calls == ["put_object"] * 5
        calls.clear()
        await asyncio.gather(*(ledger.confirm() for _ in range(20)))
        assert calls == ["get_object"]
