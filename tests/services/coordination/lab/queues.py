"""Members with a queue, and tickets that are taken from it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from squall.coordination import (
    Coordinator,
    CoordinatorPlugin,
    Queue,
)
from squall.coordination.queue.claims import ClaimedTicket
from squall.coordination.timing import PROFILES
from tests.lab.machine import factor
from tests.services.coordination.lab.places import Place

# A process that stands still for two seconds keeps its lease and its life.
TIMING = msgspec.structs.replace(PROFILES["fast"], lease_ttl=2.8, heartbeat_ttl=3.0, dead_after=4.5)
SECRET = "d02746e8fe001fc518d7ee0ec726c0a4fc469d42ee7aa55dddb1676f7baedc1f"


def slowness(place: Place) -> float:
    """Multiplies spans that a member must keep. S3 knows times to the second only, and its model
    answers late on a busy machine."""
    return max(3.0 if place.kind == "s3" else 1.0, factor())


@asynccontextmanager
async def member(
    place: Place, *plugins: CoordinatorPlugin, **options: object
) -> AsyncIterator[Coordinator]:
    store = await place.open()
    chosen = {"profile": TIMING, "unsafe_timings": True, "secret": SECRET} | options
    async with Coordinator(store, *plugins, **chosen) as coordinator:
        yield coordinator


async def take(queue: Queue, count: int) -> list[ClaimedTicket]:
    """So many tickets, open."""
    got: list[ClaimedTicket] = []
    async with asyncio.timeout(60.0):
        claims = queue.claim()
        async for ticket in claims:
            got.append(ticket)
            if len(got) == count:
                break
        await claims.aclose()
    return got
