"""The network over each store: two processes' worth of clients, streams, and the sealed wire."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from squall.cluster.ledger.blobs.in_memory import MemoryBlobs
from squall.cluster.wire.blob_transfer import BlobFetcher, serve_blobs
from squall.cluster.wire.links.endpoint import Endpoint
from squall.cluster.wire.links.peer import Peer
from squall.coordination.stores.interface import ANY, Delete, Put, Store
from squall.runtime.real.runtime import RealClock
from squall.runtime.tasks import TaskFailure, TaskRunner
from squall.store_mode.transport.network import LEADER, StoreNetwork
from squall.store_mode.transport.tuning import TransportTuning, tuning_of
from tests.fakes.store_network import Recorder, until
from tests.fakes.wire import Echo, FakeRuntime, board
from tests.services.coordination.lab.places import Place

CONTENT = random.Random(6).randbytes(3 * 1024 * 1024 + 9)


def quick(place: Place) -> TransportTuning:
    """The tuning for this kind of store, without the pauses that only save money."""
    tuning = tuning_of(place.url)
    if place.kind != "s3":
        return tuning
    return msgspec.structs.replace(
        tuning, flush_s=0.02, poll_s=0.1, quiet_poll_s=0.0, busy_poll_s=0.05, first_poll_s=0.0,
        remove_s=0.2, quiet_remove_s=0.0,
    )  # fmt: skip


@asynccontextmanager
async def networks(place: Place, *names: str) -> AsyncIterator[list[StoreNetwork]]:
    """Each with its own client of the store; the first is the leader."""
    clock, source = RealClock(), random.Random()
    failures: list[TaskFailure] = []
    tasks = TaskRunner(clock, source, on_failure=failures.append)

    async def resolve(name: str) -> str:
        return names[0]

    made = [
        StoreNetwork(
            await place.open(),
            own=name,
            clock=clock,
            random=source,
            tasks=tasks,
            tuning=quick(place),
            resolve=resolve,
        )
        for name in names
    ]
    yield made
    for network in made:
        await network.close()
    await tasks.shutdown(5.0)
    assert not failures


def echo(recorder: Recorder, data: bytes) -> None:
    recorder.end.send(data)


@pytest.mark.asyncio
async def test_streams_both_ways(place: Place) -> None:
    async with networks(place, "b", "a") as (b, a):
        accepted: list[Recorder] = []

        def accept() -> Recorder:
            accepted.append(Recorder(echo))
            return accepted[-1]

        await b.listen(("b", 0), accept)
        near = Recorder()
        await a.dial((LEADER, 0), near, timeout_s=30.0)
        for begin in range(0, len(CONTENT), 100_000):
            near.end.send(CONTENT[begin : begin + 100_000])
        await until(lambda: len(near.data) == len(CONTENT), 60.0)
        assert near.data == accepted[0].data == CONTENT
        near.end.close()
        await until(lambda: bool(near.closed and accepted[0].closed), 30.0)
        assert near.closed == accepted[0].closed == [None]


@pytest.mark.asyncio
async def test_many_small_questions(place: Place) -> None:
    async with networks(place, "b", "a") as (b, a):
        await b.listen(("b", 0), lambda: Recorder(echo))
        near = Recorder()
        await a.dial(("b", 0), near, timeout_s=30.0)
        for turn in range(1, 11):
            near.end.send(b"x" * 100)
            await until(lambda turn=turn: len(near.data) == 100 * turn, 30.0)
        with pytest.raises(ConnectionRefusedError):
            await b.dial(("a", 0), Recorder(), timeout_s=30.0)


@pytest.mark.asyncio
async def test_the_sealed_wire_with_a_blob(place: Place) -> None:
    async with networks(place, "manager", "worker") as (listening, dialling):
        held, wanted = MemoryBlobs(), MemoryBlobs()
        blob = held.put(CONTENT)
        there = _board(place, listening, "manager")
        there.handlers.on(Echo, lambda message, _: message)
        serve_blobs(there.handlers, held)
        endpoint = Endpoint(there)
        await endpoint.listen(("manager", 0))
        here = _board(place, dialling, "worker")
        peer = Peer(here, (LEADER, 0))
        peer.start()
        answers = await asyncio.gather(*(peer.request(Echo(str(n)), 60.0) for n in range(20)))
        assert [answer.text for answer in answers] == [str(n) for n in range(20)]
        await BlobFetcher(wanted, here.counters, here.tasks).fetch(blob, len(CONTENT), [peer])
        assert wanted.take(blob) == CONTENT
        assert here.counters.links_lost == 0
        await peer.close()
        await endpoint.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("place", ["s3"], indirect=True)
async def test_the_counted_requests_are_those_that_s3_got(place: Place) -> None:
    async with networks(place, "b", "a") as (b, a):
        asked: list[str] = []
        objects: Any = cast("Any", a)._store._objects
        inner = objects._call

        async def call(operation: str, **arguments: Any) -> Any:
            if not arguments.get("Key", "").endswith("/~time"):
                asked.append(operation)
            return await inner(operation, **arguments)

        objects._call = call
        await b.listen(("b", 0), lambda: Recorder(echo))
        near = Recorder()
        await a.dial(("b", 0), near, timeout_s=30.0)
        for turn in range(1, 6):
            near.end.send(b"x" * 100)
            await until(lambda turn=turn: len(near.data) == 100 * turn, 30.0)
        await asyncio.sleep(0.5)
        # Besides, the store reads its clock. Up to two requests are under way.
        assert abs(len(asked) - a.counters.requests) <= 2


@pytest.mark.asyncio
async def test_many_plain_deletes_at_once(store: Store) -> None:
    keys = [f"things/{number}" for number in range(30)]
    for key in keys:
        await store.write(Put(key, b"x", ANY, ttl_s=None))
    assert (
        await store.write(*(Delete(key, ANY) for key in [*keys[1:], "things/none"])) == ("",) * 30
    )
    found = await store.get(*keys)
    assert [record is not None for record in found] == [True] + [False] * 29


def _board(place: Place, network: StoreNetwork, name: str) -> Any:
    made = board(cast("Any", network), name, limits=tuning_of(place.url).wire)
    cast("FakeRuntime", made.runtime).clock = cast("Any", RealClock())
    return made
