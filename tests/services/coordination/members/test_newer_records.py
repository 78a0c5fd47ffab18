"""Members of a newer version share the store: fields that this version does not know survive when
this version reads, changes and rewrites a record.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from squall.coordination import Coordinator, Queue, Scheduler
from squall.coordination.errors import CoordinationError
from squall.coordination.queue.records import QueueKeys, Ticket
from squall.coordination.records import keys
from squall.coordination.records.schemas import Codec, HeartbeatRecord, MemberRecord
from squall.coordination.scheduler.records import SCHEDULES, Schedules
from squall.coordination.secrets.signing import Keyring
from squall.coordination.stores.interface import ANY, Append, Put, Store
from tests.fakes.coordination_records import newer, tombstone
from tests.services.coordination.lab.places import Place
from tests.services.coordination.programs.member import scaled

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.parametrize("place", ["memory", "redis"], indirect=True),
]
SECRET = "8c1f5e3a97d204b6" * 4
CODEC = Codec(Keyring.of([SECRET], "staging", "default"))
WORK = QueueKeys("work")


async def fields_of(store: Store, key: str) -> dict[str, Any]:
    (record,) = await store.get(key)
    return {} if record is None else msgspec.json.decode(record.value)


async def until(store: Store, key: str, **wanted: Any) -> dict[str, Any]:
    async with asyncio.timeout(30.0):
        while True:
            found = await fields_of(store, key)
            if found | wanted == found:
                return found
            await asyncio.sleep(0.05)


def member(store: Store, *plugins: Any) -> Coordinator:
    options = {"profile": scaled(1.0), "unsafe_timings": True, "secret": SECRET}
    return Coordinator(store, *plugins, member_id="old", **options)


async def test_the_meta_record_and_the_schedule_keep_what_is_new(place: Place) -> None:
    store = await place.open()
    meta = msgspec.json.encode({"environment": "staging", "v": 1, "region": "eu"})
    job = {"every": 0.2, "max_runtime": 9.0, "colour": "blue"}
    schedules = newer(CODEC, Schedules(), jobs={"tick": job}, owner="x")
    await store.write(
        Put(keys.META, meta, expect=ANY, ttl_s=None),
        Put(SCHEDULES, schedules, expect=ANY, ttl_s=60.0),
    )
    ran = asyncio.Event()
    scheduler = Scheduler()

    @scheduler.every(0.2, name="tick", max_runtime=9.0)
    async def tick(run: object) -> None:
        ran.set()

    async with member(store, scheduler):
        await asyncio.wait_for(ran.wait(), 30.0)
        await scheduler.pause("tick")
        found = await fields_of(store, SCHEDULES)
    assert found["owner"] == "x"
    assert found["jobs"]["tick"]["colour"] == "blue" and not found["jobs"]["tick"]["enabled"]
    kept = await fields_of(store, keys.META)
    assert kept["region"] == "eu" and len(kept["keys_seen_ms"]) == 1


async def test_a_ticket_is_published_with_all_that_its_producer_wrote(place: Place) -> None:
    store = await place.open()
    ticket = Ticket(ticket_id="t1", queue="work", payload=7, created_at=1.0)
    value = newer(CODEC, ticket, trace="abc")
    await store.write(Append(WORK.queued, "t1", value, ttl_s=60.0))
    async with member(store, queue := Queue("work", visibility_timeout=1.0)):
        async with asyncio.timeout(30.0):
            async for claimed in queue.claim():
                (item,) = await store.read(WORK.ready)
                await claimed.complete()
                break
    published = msgspec.json.decode(item.value)
    assert published["trace"] == "abc" and published["epoch"] >= 1 and claimed.payload == 7


async def test_a_death_of_a_newer_member_keeps_its_unknown_fields(place: Place) -> None:
    store = await place.open()
    tomb = tombstone("gone", 2)
    beat = HeartbeatRecord(member_id="silent", boot=3, sequence=1, timestamp=0.0)
    registered = MemberRecord(member_id="silent", boot=3)
    await store.write(
        Put(keys.tombstone("gone"), newer(CODEC, tomb, grave="north"), expect=ANY, ttl_s=600.0),
        Put(keys.member("silent"), newer(CODEC, registered, zone="z1"), expect=ANY, ttl_s=600.0),
        Put(keys.heartbeat("silent"), newer(CODEC, beat, load=0.5), expect=ANY, ttl_s=600.0),
    )
    async with member(store):
        told = await until(store, keys.tombstone("gone"), announced=True, cleaned=True)
        dead = await until(store, keys.member("silent"), status="dead")
    assert told["grave"] == "north" and dead["zone"] == "z1"


async def test_a_store_of_a_newer_version_is_refused_with_both_named(place: Place) -> None:
    store = await place.open()
    meta = msgspec.json.encode({"environment": "staging", "v": 2})
    await store.write(Put(keys.META, meta, expect=ANY, ttl_s=None))
    with pytest.raises(CoordinationError, match=r"schema 2, .* knows up to 1"):
        await member(store).start()
