"""Real processes on one store, one of them killed: every ticket done once, every epoch won
once."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from squall.coordination.stores.interface import Append
from tests.lab.programs import ROOT, program
from tests.services.coordination.lab.places import Place

RACER = "tests.services.coordination.programs.racer"
RACERS = 4


async def listed(place: Place, kind: str) -> set[str]:
    store, found, after = await place.open(), set[str](), ""
    while True:
        page = await store.list(kind, after=after, limit=1000)
        found |= {entry.key for entry in page.entries}
        after = page.after
        if not after:
            return found


@pytest.mark.asyncio
async def test_killed_processes_lose_and_double_nothing(place: Place) -> None:
    if place.kind == "memory":
        pytest.skip("one process only")
    tickets = 24 if place.kind == "s3" else 300
    store = await place.open()
    racers = [
        subprocess.Popen(
            program(RACER, place.url, place.prefix, f"w{number}"),
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        for number in range(RACERS)
    ]
    try:
        for number in range(tickets):
            await store.write(Append("tickets/q", f"t{number}", b"", ttl_s=600.0, limit=10_000))
            if number == tickets // 2:
                assert racers[0].stdout is not None and racers[0].stdout.readline()
                racers[0].kill()
        async with asyncio.timeout(90.0):
            while (await store.depth("tickets/q")).items:
                await asyncio.sleep(0.1)
        done = await listed(place, "done")
        assert done == {f"done/t{number}" for number in range(tickets)}
        log = await store.read("log/all", limit=10_000)
        finished = [item.id.partition(".")[0] for item in log]
        assert len(finished) == len(set(finished))
        won = await store.read("log/epochs", limit=10_000)
        epochs = [int(item.id.partition(".")[0]) for item in won]
        assert len(epochs) == len(set(epochs))
        if store.capabilities.transactions:
            # What follows a decision may be cut off without them.
            assert len(finished) == tickets and epochs == sorted(epochs)
        (lease,) = await store.get("leader")
        assert lease is not None and lease.epoch >= max(epochs)
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
            assert racer.stdout is not None
            racer.stdout.close()
