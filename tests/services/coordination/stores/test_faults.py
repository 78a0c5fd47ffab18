"""Stores that fail: lost replies, outages, a Redis without its data, an S3 that says 500."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from lab.stores.faulty import FaultyStore, StoreFaults
from squall.api.errors import SquallError
from squall.coordination.store_errors import (
    StaleEpochError,
    StoreError,
    StoreUnavailableError,
    UnsafeStoreError,
    VersionConflict,
)
from squall.coordination.stores.guarded_store import GuardedStore, RetrySettings
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Append,
    Appended,
    Changed,
    Extend,
    Fence,
    Put,
    Remove,
)
from squall.coordination.stores.open import make_store, open_store
from squall.coordination.stores.redis.store import RedisStore
from squall.coordination.stores.s3.store import S3Store
from squall.coordination.stores.s3.streams import DROP_AT_ONCE, KEPT_MARKERS
from squall.runtime.real.runtime import RealClock
from tests.lab.ports import free_ports
from tests.services.coordination.lab.faulty_s3 import FaultyS3
from tests.services.coordination.lab.places import Place, url_of
from tests.services.coordination.lab.redis_servers import own_redis

__all__ = ["own_redis"]

pytestmark = pytest.mark.asyncio
CLOCK = RealClock()
T = TypeVar("T")
QUICK = RetrySettings(attempts=30, first_delay_s=1e-6)


def put(key: str, value: bytes, expect: object = ANY) -> Put:
    return Put(key, value, expect=expect, ttl_s=60.0)  # type: ignore[arg-type]


async def test_lost_replies_double_nothing_and_lose_nothing(place: Place) -> None:
    """Every second answer is lost. Each of the writers' steps still happens exactly once."""
    rounds = 6 if place.kind == "s3" else 20

    async def writer(number: int) -> int:
        inner = await place.open()
        source = random.Random(number)
        faulty = FaultyStore(inner, CLOCK, source, StoreFaults(lost_requests=0.2, lost_replies=0.4))
        guarded = GuardedStore(faulty, CLOCK, source, retry=QUICK)
        added = 0
        while added < rounds:
            (record,) = await guarded.get("state/counter")
            before = 0 if record is None else int(record.value)
            expect = ABSENT if record is None else record.version
            with contextlib.suppress(VersionConflict):
                await guarded.write(put("state/counter", str(before + 1).encode(), expect))
                added += 1
                await guarded.write(Append("signal/a", f"w{number}.{added}", b"", ttl_s=60.0))
        return faulty.failed

    failed = await asyncio.gather(*(writer(number) for number in range(2)))
    assert min(failed) > 0
    store = await place.open()
    (record,) = await store.get("state/counter")
    # A write whose reply was lost and that was replaced meanwhile is told as a conflict, so
    # the counter may run ahead of what writers know; it never stays behind.
    assert record is not None and int(record.value) >= 2 * rounds
    items = await store.read("signal/a", limit=1000)
    wanted = {f"w{number}.{n}" for number in range(2) for n in range(1, rounds + 1)}
    assert {item.id for item in items} == wanted and len(items) == len(wanted)


async def test_claims_survive_lost_replies(place: Place) -> None:
    rounds = 6 if place.kind == "s3" else 20
    store = await place.open()
    for number in range(rounds):
        await store.write(Append("tickets/q", f"t{number}", b"", ttl_s=60.0))
    source = random.Random(5)
    faulty = FaultyStore(store, CLOCK, source, StoreFaults(lost_requests=0.2, lost_replies=0.4))
    guarded = GuardedStore(faulty, CLOCK, source, retry=QUICK)
    done: list[str] = []
    while claims := await guarded.take("tickets/q", "w", lease_s=60.0, limit=2):
        for claim in claims:
            assert claim.attempt == 1
            await guarded.write(Remove("tickets/q", claim.item.cursor, claim.claim))
            done.append(claim.item.id)
    assert done == [f"t{number}" for number in range(rounds)]
    assert faulty.failed > 0


async def test_redis_restarted_without_its_data_fences_the_old_epoch(own_redis) -> None:
    server = own_redis()
    store = make_store(server.url, CLOCK, random.Random(1))
    try:
        await store.write(Put("leader", b"", expect=ABSENT, ttl_s=None), fence=Fence("leader", 7))
        await store.write(put("plan/a", b"1"), fence=Fence("leader", 7))
        (cursor,) = await store.write(Append("signal/a", "s1", b"", ttl_s=60.0))
        watch = Appended("signal/a", cursor)
        waiting = asyncio.ensure_future(store.wait(watch, timeout_s=30.0))
        await asyncio.sleep(0.1)
        server.stop()
        with pytest.raises(StoreUnavailableError):
            await waiting
        with pytest.raises(StoreUnavailableError):
            await store.get("leader")
        server.start()
        with pytest.raises(StaleEpochError) as lost:
            await store.write(put("plan/a", b"late"), fence=Fence("leader", 7))
        assert lost.value.current is None
        # Scripts are gone too and are sent again; an old cursor reads from the beginning.
        await store.write(Append("signal/a", "s2", b"", ttl_s=60.0))
        assert await store.wait(watch, timeout_s=5.0) == {watch}
        assert [item.id for item in await store.read("signal/a", after=cursor)] == ["s2"]
    finally:
        await store.close()


async def test_redis_that_evicts_is_refused_unless_in_development(own_redis) -> None:
    server = own_redis("--maxmemory", "64mb", "--maxmemory-policy", "volatile-lru")
    for environment in ("", "staging", "production"):
        with pytest.raises(UnsafeStoreError, match="noeviction"):
            await open_store(server.url, CLOCK, random.Random(1), environment=environment)
    store = await open_store(server.url, CLOCK, random.Random(1), environment="development")
    await store.close()


async def test_redis_older_than_6_2_is_refused(redis_url: str) -> None:
    class Old(RedisStore):
        async def info(self, section: str) -> dict[str, str]:
            return {"redis_version": "6.0.20"}

    store = Old(redis_url, CLOCK, random.Random(1))
    try:
        with pytest.raises(UnsafeStoreError, match=r"6\.0\.20.*6\.2 or newer"):
            await store.probe()
    finally:
        await store.close()


async def test_redis_cluster_keeps_a_prefix_in_one_slot(own_redis) -> None:
    import redis

    server = own_redis("--cluster-enabled", "yes", "--cluster-port", str(free_ports(1)[0]))
    client = redis.Redis.from_url(server.url)
    client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    store = make_store(server.url, CLOCK, random.Random(1))
    try:
        async with asyncio.timeout(60.0):
            while client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                await asyncio.sleep(0.05)
        await store.probe()
        await store.write(put("state/a", b""), Append("signal/a", "s", b"", ttl_s=60.0))
        await store.wait(Changed("state/never"), timeout_s=0.1)
        slots = {client.execute_command("CLUSTER KEYSLOT", key) for key in client.keys("*")}
        assert len(slots) == 1
    finally:
        await store.close()
        client.close()


async def test_every_redis_key_expires_except_what_was_put_for_ever(own_redis) -> None:
    import redis

    server = own_redis()
    store = make_store(server.url, CLOCK, random.Random(1))
    client = redis.Redis.from_url(server.url)
    try:
        await store.probe()
        forever = Put("leader", b"", expect=ANY, ttl_s=None)
        await store.write(forever, fence=Fence("leader", 1))
        await store.write(put("state/a", b""), Append("signal/a", "s", b"", ttl_s=86400.0))
        (claim,) = await store.take("signal/a", "w", lease_s=60.0, request="r")
        await store.wait(Changed("state/a", "x"), Changed("state/b"), timeout_s=1.0)
        await store.wait(Changed("state/b"), timeout_s=0.2)
        await store.write(Remove("signal/a", claim.item.cursor, claim.claim))
        endless = [key for key in client.keys("*") if client.ttl(key) == -1]
        assert endless == [b"{blocking}:leader"]
        assert 86_000 < client.ttl("{blocking}:signal:a") <= 86_400
    finally:
        await store.close()
        client.close()


async def test_many_waits_use_one_redis_connection(own_redis) -> None:
    import redis

    server = own_redis()
    store = make_store(server.url, CLOCK, random.Random(1))
    client = redis.Redis.from_url(server.url)
    try:
        watches = [Changed(f"state/w{number}") for number in range(1000)]
        waits = [asyncio.ensure_future(store.wait(watch, timeout_s=60.0)) for watch in watches]
        blocked: list[object] = []
        async with asyncio.timeout(30.0):
            while not blocked:
                await asyncio.sleep(1.0)
                blocked = [one for one in client.client_list() if "b" in one["flags"]]
        assert len(blocked) == 1
        for watch in watches:
            await store.write(put(watch.key, b""))
        async with asyncio.timeout(30.0):
            assert all(await asyncio.gather(*waits))
    finally:
        await store.close()
        client.close()


@pytest.fixture
def s3_proxy(s3_endpoint: str) -> Iterator[FaultyS3]:
    proxy = FaultyS3(s3_endpoint)
    yield proxy
    proxy.close()


def s3_url(request: pytest.FixtureRequest, proxy: FaultyS3, folder: Path, prefix: str) -> str:
    url = url_of("s3", request, folder, prefix)
    return f"{url.partition('?')[0]}?endpoint={proxy.endpoint}&region=us-east-1"


async def test_s3_that_fails_for_a_while_is_waited_for(
    request: pytest.FixtureRequest, s3_proxy: FaultyS3, tmp_path: Path
) -> None:
    url = s3_url(request, s3_proxy, tmp_path, "faults")
    store = await open_store(url, CLOCK, random.Random(1), prefix="outage")
    quick = GuardedStore(
        store.inner, CLOCK, random.Random(2), retry=RetrySettings(attempts=4, first_delay_s=0.01)
    )
    try:
        for status in (500, 503):
            s3_proxy.fail_next(3, status)
            await quick.write(put("state/a", str(status).encode()))
            (record,) = await quick.get("state/a")
            assert record is not None and record.value == str(status).encode()
        s3_proxy.fail_next(1000, 503)
        with pytest.raises(StoreUnavailableError) as caught:
            await quick.get("state/a")
        assert caught.value.attempts == 4
        s3_proxy.fail_next(0, 503)
        assert (await quick.get("state/a"))[0] is not None
    finally:
        await store.close()


async def test_s3_reply_lost_after_the_write_is_recognised_by_its_token(
    request: pytest.FixtureRequest, s3_proxy: FaultyS3, tmp_path: Path
) -> None:
    store = make_store(s3_url(request, s3_proxy, tmp_path, "lost"), CLOCK, random.Random(1))
    try:
        create = Put("state/a", b"1", expect=ABSENT, ttl_s=60.0, token="mine")
        s3_proxy.lose_replies("PUT", 2)
        with pytest.raises(StoreUnavailableError):
            await store.write(create)
        (version,) = await store.write(create)
        s3_proxy.lose_replies("PUT", 2)
        replace = Put("state/a", b"2", expect=version, ttl_s=60.0, token="mine too")
        with pytest.raises(StoreUnavailableError):
            await store.write(replace)
        await store.write(replace)
        (record,) = await store.get("state/a")
        assert record is not None and record.value == b"2"
    finally:
        await store.close()


async def test_an_s3_reply_that_is_lost_once_changes_nothing_for_its_caller(
    request: pytest.FixtureRequest, s3_proxy: FaultyS3, tmp_path: Path
) -> None:
    """The client under the store then sends once more, and what it sends is refused: the first
    one took effect."""
    store = make_store(s3_url(request, s3_proxy, tmp_path, "once"), CLOCK, random.Random(1))

    async def losing(call: Awaitable[T]) -> T:
        s3_proxy.lose_replies("PUT", 1)
        done = await call
        assert s3_proxy.replies_to_lose == 0, "it has to happen"
        return done

    try:
        (version,) = await losing(store.write(put("state/a", b"1", ABSENT)))
        await losing(store.write(put("state/a", b"2", version)))
        for number in range(3):
            item = Append("queue/q", f"i{number}", b"x", ttl_s=60.0, limit=10)
            await losing(store.write(item))
        (claim,) = await losing(store.take("queue/q", "me", lease_s=60.0, request="r1"))
        assert (claim.item.id, claim.attempt) == ("i0", 1)
        await losing(store.write(Extend("queue/q", claim.item.cursor, claim.claim, 90.0)))
        await losing(store.write(Remove("queue/q", claim.item.cursor, claim.claim)))
        assert [item.id for item in await store.read("queue/q")] == ["i1", "i2"]
        depth = await store.depth("queue/q")
        assert (depth.items, depth.held) == (2, 0)
    finally:
        await store.close()


async def test_s3_what_lies_before_the_front_goes_also_when_an_answer_is_lost(
    request: pytest.FixtureRequest, s3_proxy: FaultyS3, tmp_path: Path
) -> None:
    store = make_store(s3_url(request, s3_proxy, tmp_path, "front"), CLOCK, random.Random(1))
    assert isinstance(store, S3Store)
    stream = "queue/q"
    try:
        items = [
            Append(stream, f"i{number}", b"x", ttl_s=60.0, limit=100)
            for number in range(KEPT_MARKERS + DROP_AT_ONCE)
        ]
        cursors = await store.write(*items)
        s3_proxy.lose_replies("PUT", 1, f"{stream}/meta")
        await store.write(*(Remove(stream, cursor) for cursor in cursors))
        assert s3_proxy.replies_to_lose == 0, "it has to happen"
        objects = store._objects  # pyright: ignore[reportPrivateUsage]
        left = [found.name async for found in objects.listing("front/") if "/slot/" in found.name]
        assert len(left) == KEPT_MARKERS
        assert await store.read(stream) == ()
    finally:
        await store.close()


async def test_s3_conflict_409_is_sent_again_and_is_not_a_loss(
    request: pytest.FixtureRequest, s3_proxy: FaultyS3, tmp_path: Path
) -> None:
    store = make_store(s3_url(request, s3_proxy, tmp_path, "conflict"), CLOCK, random.Random(1))
    try:
        await store.now_ms()
        s3_proxy.fail_next(2, 409)
        await store.write(put("state/a", b"1", ABSENT))
        assert (await store.get("state/a"))[0] is not None
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("ignored", "said"),
    [("if-none-match", "it ignores create-if-absent"), ("if-match", "it ignores if-match")],
)
async def test_s3_that_ignores_a_condition_is_refused_with_the_reason(
    request: pytest.FixtureRequest, s3_proxy: FaultyS3, tmp_path: Path, ignored: str, said: str
) -> None:
    s3_proxy.ignored_header = ignored
    with pytest.raises(UnsafeStoreError, match=said):
        await open_store(s3_url(request, s3_proxy, tmp_path, "x"), CLOCK, random.Random(1))


async def test_s3_without_conditional_delete_leaves_a_marker_instead(
    request: pytest.FixtureRequest, s3_proxy: FaultyS3, tmp_path: Path
) -> None:
    s3_proxy.ignored_header = "if-match"
    s3_proxy.ignored_on = "DELETE"
    url = s3_url(request, s3_proxy, tmp_path, "nodelete")
    store = await open_store(url, CLOCK, random.Random(1))
    try:
        assert not store.capabilities.conditional_delete
        from squall.coordination.stores.interface import Delete

        (version,) = await store.write(put("state/a", b"1"))
        (newer,) = await store.write(put("state/a", b"2", version))
        with pytest.raises(VersionConflict):
            await store.write(Delete("state/a", version))
        await store.write(Delete("state/a", newer))
        assert await store.get("state/a") == (None,)
        await store.write(put("state/a", b"3", ABSENT))
    finally:
        await store.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:////no/such/folder/x.db", "no directory /no/such/folder"),
        ("postgres://x", "is not a store"),
        ("sqlite://x", "is not a store"),
        ("s3://bucket/p?color=red", "color is not an option"),
        ("redis://127.0.0.1:1/0", "redis://127.0.0.1:1/0"),
    ],
)
async def test_a_store_that_cannot_be_used_says_why_in_one_line(url: str, said: str) -> None:
    with pytest.raises(SquallError) as caught:
        await open_store(url, CLOCK, random.Random(1))
    assert said in str(caught.value) and "\n" not in str(caught.value)


async def test_a_url_shows_no_password() -> None:
    store = make_store("redis://user:geheim@127.0.0.1:1/0", CLOCK, random.Random(1))
    try:
        with pytest.raises(StoreError) as caught:
            await store.now_ms()
        assert "geheim" not in store.url + str(caught.value) + repr(store)
    finally:
        await store.close()
