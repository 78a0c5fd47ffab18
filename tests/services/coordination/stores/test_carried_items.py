"""Redis pushes carried items to listeners; a listener that cannot get them pushed is woken to
read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
import pytest_asyncio

from squall.coordination.store_errors import InvalidIdentifierError
from squall.coordination.stores.interface import ANY, Append, Appended, Item, Put, Remove
from squall.coordination.stores.redis.store import RedisStore
from tests.services.coordination.lab.places import Place

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.parametrize("place", ["redis"], indirect=True),
]
INBOX = "signal/a"
WAIT_S = 20.0


@pytest_asyncio.fixture
async def stores(place: Place) -> AsyncIterator[tuple[RedisStore, RedisStore]]:
    """The stores of a reader and of a writer."""
    made = (await place.open(), await place.open())
    assert isinstance(made[0], RedisStore)
    assert isinstance(made[1], RedisStore)
    yield made[0], made[1]


def add(name: str, value: bytes = b"\x00|v", *, carried: bool = True) -> Append:
    return Append(INBOX, name, value, ttl_s=3600.0, carried=carried)


def names(items: Sequence[Item]) -> list[str]:
    return [item.id for item in items]


async def listening(reader: RedisStore, cursor: str) -> asyncio.Task[Sequence[Item]]:
    """Returns when the reader listens: an item that is added before is not brought."""
    task = asyncio.ensure_future(reader.listen(INBOX, after=cursor, timeout_s=WAIT_S))
    async with asyncio.timeout(WAIT_S / 2):
        while not reader._waits._is_blocked:  # pyright: ignore[reportPrivateUsage]
            await asyncio.sleep(0.01)
    assert not task.done()
    return task


async def test_a_carried_item_is_brought_as_a_read_would_show_it(
    stores: tuple[RedisStore, RedisStore],
) -> None:
    reader, writer = stores
    (first,) = await writer.write(add("s0"))
    task = await listening(reader, first)
    (second,) = await writer.write(add("s1", b'{"a":"|"}'))
    (item,) = await task
    (read,) = await reader.read(INBOX, after=first)
    assert (item.cursor, item.id, item.value, item.appended_ms) == (
        second,
        read.id,
        read.value,
        read.appended_ms,
    )


async def test_items_come_in_order_and_each_once(stores: tuple[RedisStore, RedisStore]) -> None:
    reader, writer = stores
    (cursor,) = await writer.write(add("s0"))
    task = await listening(reader, cursor)
    got: list[str] = []
    sending = asyncio.ensure_future(_send(writer, 100))
    while len(got) < 100:
        items = await task or await reader.read(INBOX, after=cursor)
        got += names(items)
        cursor = items[-1].cursor if items else cursor
        task = asyncio.ensure_future(reader.listen(INBOX, after=cursor, timeout_s=WAIT_S))
    await sending
    task.cancel()
    assert got == [f"n{number}" for number in range(100)]


async def _send(writer: RedisStore, count: int) -> None:
    for number in range(count):
        await writer.write(add(f"n{number}"))
        if number % 7 == 0:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["large", "not carried"])
async def test_a_listener_without_a_pushed_item_is_woken_to_read(
    stores: tuple[RedisStore, RedisStore], kind: str
) -> None:
    reader, writer = stores
    (cursor,) = await writer.write(add("s0"))
    task = await listening(reader, cursor)
    if kind == "large":
        await writer.write(add("s1", b"x" * 10_000))
    else:
        await writer.write(add("s1", carried=False))
    assert list(await asyncio.wait_for(task, WAIT_S / 2)) == []
    assert names(await reader.read(INBOX, after=cursor)) == ["s1"]
    # What is behind it is not brought as if nothing were between.
    await writer.write(add("s2"))
    found = await reader.listen(INBOX, after=cursor, timeout_s=WAIT_S)
    assert "s2" not in names(found)


async def test_more_items_than_a_bell_holds_are_read_and_none_is_left_out(
    stores: tuple[RedisStore, RedisStore],
) -> None:
    reader, writer = stores
    (cursor,) = await writer.write(add("s0"))
    task = await listening(reader, cursor)
    await writer.write(*(add(f"n{number}") for number in range(40)))
    assert list(await task) == []
    assert len(await reader.read(INBOX, after=cursor)) == 40


async def test_items_that_came_without_a_listener_are_not_missed(
    stores: tuple[RedisStore, RedisStore],
) -> None:
    reader, writer = stores
    (cursor,) = await writer.write(add("s0"))
    task = await listening(reader, cursor)
    await writer.write(add("s1"))
    (item,) = await task
    await writer.write(add("s2"))
    await asyncio.sleep(0.2)
    async with asyncio.timeout(WAIT_S / 2):
        held = await reader.wait(Appended(INBOX, item.cursor), timeout_s=WAIT_S)
    assert held
    assert names(await reader.listen(INBOX, after=item.cursor, timeout_s=WAIT_S)) == ["s2"]


async def test_a_stream_that_begins_again_is_read_from_its_beginning(
    stores: tuple[RedisStore, RedisStore],
) -> None:
    reader, writer = stores
    (cursor,) = await writer.write(add("s0"))
    task = await listening(reader, cursor)
    for part in ("", "#r", "#h", "#d"):
        await writer.command("DEL", f"{writer._tag}:signal:a{part}")
    (fresh,) = await writer.write(add("s1"))
    assert list(await asyncio.wait_for(task, WAIT_S / 2)) == []
    assert names(await reader.read(INBOX, after=cursor)) == ["s1"]
    await writer.write(Remove(INBOX, fresh))


async def test_versions_pushed_with_an_item_are_those_before_it_was_added(
    stores: tuple[RedisStore, RedisStore],
) -> None:
    reader, writer = stores
    (cursor,) = await writer.write(add("s0"))
    (version,) = await writer.write(Put("state/there", b"1", expect=ANY, ttl_s=60.0))
    task = await listening(reader, cursor)
    told = msgspec.structs.replace(add("s1"), versions_of=("state/there", "state/missing"))
    await writer.write(told)
    (item,) = await task
    assert item.versions == {"state/there": version, "state/missing": ""}
    (read,) = await reader.read(INBOX, after=cursor)
    assert read.versions == {}


async def test_versions_pushed_with_an_item_need_valid_keys(
    stores: tuple[RedisStore, RedisStore],
) -> None:
    _, writer = stores
    with pytest.raises(InvalidIdentifierError):
        await writer.write(msgspec.structs.replace(add("s1"), versions_of=("state/a|b",)))
