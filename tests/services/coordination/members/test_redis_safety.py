"""Members on their own Redis server: the keys they leave, the commands they never send, and how
they survive the loss of all data.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from squall.cli.main import main
from squall.coordination import events
from squall.coordination.coordinator import Coordinator
from squall.coordination.errors import StateLostError
from squall.coordination.members.housekeeping import Housekeeping
from squall.coordination.queue.plugin import Queue
from squall.coordination.records import keys
from squall.coordination.records.schemas import LeaseRecord
from squall.coordination.stores.redis.store import RedisStore
from tests.lab.machine import factor
from tests.services.coordination.lab.groups import SECRET, slower
from tests.services.coordination.lab.redis_servers import Server

pytestmark = pytest.mark.asyncio
TIMING = slower(factor())


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "redis")
    try:
        yield made
    finally:
        made.stop()


def member(server: Server, name: str, *plugins: Queue) -> Coordinator:
    return Coordinator(
        server.url, *plugins, member_id=name, profile=TIMING, unsafe_timings=True, secret=SECRET
    )


def redis_of(coordinator: Coordinator) -> RedisStore:
    store = coordinator.parts.store
    assert isinstance(store, RedisStore)
    return store


async def until(condition: object, what: str) -> None:
    assert callable(condition)
    try:
        async with asyncio.timeout(60.0):
            while not condition():
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not in time: {what}") from None


async def renewals(leader: Coordinator) -> int:
    (record,) = await leader.store.get(keys.LEADER)
    assert record is not None
    lease = leader.parts.codec.read(LeaseRecord, record.value)
    assert lease is not None
    return lease.renewals


async def test_every_key_expires_and_the_database_is_never_scanned(server: Server) -> None:
    queue = Queue("mail")
    async with member(server, "a", queue) as a, member(server, "b") as b:
        b.on_signal("note", lambda delivery: None)
        await a.send_signal_with_retry("b", "note")
        await queue.enqueue({"x": 1})
        await until(lambda: a.is_coordinator or b.is_coordinator, "one leads")
        leader = a if a.is_coordinator else b
        housekeeping = leader._housekeeping  # pyright: ignore[reportPrivateUsage]
        assert isinstance(housekeeping, Housekeeping)
        await housekeeping._set_store_gauges()  # pyright: ignore[reportPrivateUsage]
        shown = leader.parts.metrics.families.registry.exposition()
        assert 'coordination_store_memory_bytes{namespace="default"}' in shown
        assert 'coordination_keys{kind="heartbeat",namespace="default"} 2' in shown
        words = ["coord", "status", "--store", server.url]
        assert await asyncio.to_thread(main, words) == 0
        assert await asyncio.to_thread(main, ["coord", "cleanup", *words[2:]]) == 0
        redis = redis_of(leader)
        stats = await redis.info("commandstats")
        asked = {name.removeprefix("cmdstat_").partition("|")[0] for name in stats}
        assert not asked & {"keys", "scan", "flushall", "flushdb"} and "evalsha" in asked
        lasting: list[str] = []
        cursor = 0
        while True:
            cursor, found = await redis.command("SCAN", cursor, "COUNT", 1000)
            lasting += [key.decode() for key in found if await redis.command("PTTL", key) == -1]
            cursor = int(cursor)
            if cursor == 0:
                break
        kinds = {key.partition("}")[2].strip(":#") for key in lasting}
        assert kinds <= {"leader", "meta", "index", "kinds"}, lasting


async def test_a_flushed_server_gets_a_higher_epoch_and_waits_end(server: Server) -> None:
    async with member(server, "a") as a, member(server, "b") as b:
        await until(lambda: a.is_coordinator or b.is_coordinator, "one leads")
        epoch = max(a.current_epoch, b.current_epoch)
        told: list[events.StateLost] = []
        for each in (a, b):
            each.on(events.StateLost, told.append)
        waiting = asyncio.ensure_future(a.block_until_signal(correlation_id="x", timeout_s=600.0))
        async with asyncio.timeout(60.0):
            while not await a.signals.open_waits():
                await asyncio.sleep(0.02)
        redis = redis_of(a)
        await redis.command("FLUSHALL")
        await redis.command("SCRIPT", "FLUSH")
        with pytest.raises(StateLostError):
            await asyncio.wait_for(waiting, 20.0)
        await until(
            lambda: any(each.is_coordinator and each.current_epoch > epoch for each in (a, b)),
            "one leads in a higher epoch",
        )
        assert told
        await until(lambda: len({a.current_coordinator, b.current_coordinator}) == 1, "they agree")


async def test_a_short_absence_of_the_server_changes_nothing(server: Server) -> None:
    async with member(server, "a") as a, member(server, "b") as b:
        await until(lambda: a.is_coordinator or b.is_coordinator, "one leads")
        leader = a if a.is_coordinator else b
        await until(lambda: a.current_coordinator == b.current_coordinator, "both know it")
        await asyncio.sleep(TIMING.heartbeat_interval)
        epoch, heard = leader.current_epoch, list[str]()
        for each in (a, b):
            each.on("*", lambda event: heard.append(event.name))
        server.signal(signal.SIGSTOP)
        await asyncio.sleep(TIMING.heartbeat_interval)
        server.signal(signal.SIGCONT)
        renewed = await renewals(leader)
        async with asyncio.timeout(60.0):
            while await renewals(leader) < renewed + 3:
                await asyncio.sleep(0.05)
        assert leader.is_coordinator and leader.current_epoch == epoch
        assert not {"heartbeat:warning", "coordinator:dead", "leader:changed"} & set(heard)


async def test_a_long_absence_of_the_server_kills_no_member(server: Server) -> None:
    async with member(server, "a") as a, member(server, "b") as b:
        await until(lambda: a.is_coordinator or b.is_coordinator, "one leads")
        heard = list[str]()
        for each in (a, b):
            each.on("*", lambda event: heard.append(event.name))
        server.signal(signal.SIGSTOP)
        await until(lambda: not a.is_coordinator and not b.is_coordinator, "it stood down")
        await asyncio.sleep(TIMING.dead_after)
        server.signal(signal.SIGCONT)
        await until(lambda: a.is_coordinator or b.is_coordinator, "one leads again")
        await until(lambda: not a.isolated and not b.isolated, "both beat again")
        await asyncio.sleep(TIMING.heartbeat_ttl)
        assert "coordinator:dead" not in heard
        b.on_signal("note", lambda delivery: None)
        await a.send_signal_with_retry("b", "note")
