"""`squall coord` on a place of a test, and records for it to show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from squall.cli.main import main
from squall.coordination.coordinator import Coordinator
from squall.coordination.records import keys
from squall.coordination.records.schemas import (
    Codec,
    HeartbeatRecord,
    LeaseRecord,
)
from squall.coordination.scheduler.plugin import Scheduler
from squall.coordination.stores.interface import ABSENT, ANY, Fence, Put, Store
from tests.services.coordination.lab.places import Place

SECRET = "0123456789abcdef" * 4
CODEC = Codec(None)


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKING_COORDINATION_SECRET", SECRET)
    monkeypatch.delenv("SQUALL_COORD_STORE", raising=False)


@pytest.fixture
def shared(place: Place) -> Place:
    if place.kind == "memory":
        pytest.skip("a memory store has one process")
    return place


def coord(place: Place, *words: str) -> int:
    return main(["coord", *words, "--store", place.url, "--prefix", place.prefix])


def write(place: Place, work: Callable[[Store], Awaitable[None]]) -> None:
    async def run() -> None:
        other = Place(place.kind, place.url, place.prefix)
        await work(await other.open())
        await other.close()

    asyncio.run(run())


def beat(member_id: str, ttl_s: float = 600.0) -> Put:
    record = HeartbeatRecord(
        member_id=member_id, boot=2, sequence=7, timestamp=0.0, hostname="h", pid=4711
    )
    return Put(keys.heartbeat(member_id), CODEC.encode(record), expect=ANY, ttl_s=ttl_s)


async def populate(store: Store) -> None:
    lease = LeaseRecord(
        epoch=5,
        member_id="one",
        boot=2,
        token="t",
        elected_at=0.0,
        renewals=3,
        lease_ttl=90.0,
        term_ends_at=0.0,
    )
    put = Put(keys.LEADER, CODEC.encode(lease), expect=ABSENT, ttl_s=None)
    await store.write(put, fence=Fence(keys.LEADER, 5))
    await store.write(beat("one"), beat("two"))
    await store.write(Put(keys.heartbeat("odd"), b"{", expect=ANY, ttl_s=600.0))


def verdicts(text: str) -> dict[str, str]:
    return {each["about"]: each["verdict"] for each in json.loads(text)["findings"]}


FAST = ("--profile", "fast")


@asynccontextmanager
async def running(place: Place, *plugins: Scheduler):
    other = Place(place.kind, place.url, place.prefix)
    store = await other.open()
    options = {"profile": "fast", "unsafe_timings": True, "secret": SECRET}
    try:
        async with Coordinator(store, *plugins, member_id="worker", **options) as member:
            await member.ensure_coordinator(timeout_s=30.0)
            yield member
    finally:
        await other.close()


def play(place: Place, script: Callable[[], Awaitable[None]]) -> None:
    if place.kind == "s3":
        pytest.skip("the same code, and slower")
    asyncio.run(asyncio.wait_for(script(), 120.0))
