"""Worker processes while their store restarts or returns only errors, and while the coordinator
among them is stopped past its lease: every ticket ends once.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from squall.coordination import Queue
from tests.services.coordination.lab.faulty_s3 import FaultyS3
from tests.services.coordination.lab.places import BUCKET, Place
from tests.services.coordination.lab.queue_workers import (
    KEYS,
    MEMBERS,
    WorkLab,
    check_tickets,
    until,
)
from tests.services.coordination.lab.queues import member
from tests.services.coordination.lab.redis_servers import Server
from tests.services.coordination.programs.worker import QUEUE, SECRET, VISIBILITY_S

AWAY_S = 20.0
MANY = 1_000_000
Trouble = Callable[[WorkLab], Awaitable[None]]


@asynccontextmanager
async def working(url: str, place: Place, folder: Path, scale: float) -> AsyncIterator[WorkLab]:
    """Workers that reach the store by `url`; the guarantees are checked at the end."""
    folder.mkdir()
    lab = WorkLab(url, place.prefix, folder, MEMBERS, scale)
    try:
        for name in MEMBERS:
            lab.start(name)
        yield lab
    finally:
        await asyncio.to_thread(lab.close)
        await place.close()
    lab.check()


async def survive(lab: WorkLab, place: Place, tickets: int, trouble: Trouble) -> None:
    """Trouble in the middle of the work; then all of it ends, once each."""
    queue = Queue(QUEUE, visibility_timeout=VISIBILITY_S * lab.scale)
    made: dict[str, str] = {}
    numbers: dict[str, int] = {}
    async with member(place, queue, eligible=False, secret=SECRET, profile=lab.timing):
        await until(lab, "acts", 1)
        for number in range(tickets):
            key = KEYS[number % len(KEYS)]
            ticket_id = await queue.enqueue(number, order_key=key)
            made[ticket_id], numbers[ticket_id] = key, number
        await until(lab, "done", tickets // 4)
        await trouble(lab)
        finals = {each: await queue.result(each, timeout_s=120.0) for each in made}
    check_tickets(lab, made, numbers, {each: final.state for each, final in finals.items()}, 0)


@pytest.mark.asyncio
async def test_tickets_live_through_a_restart_of_redis(tmp_path: Path) -> None:
    server = Server(tmp_path / "redis")
    place = Place("redis", server.url, "test")

    async def restart(lab: WorkLab) -> None:
        for _ in range(2):
            server.stop()
            await asyncio.sleep(0.5)
            server.start()
            await asyncio.sleep(1.0)

    try:
        async with working(server.url, place, tmp_path / "journals", 1.0) as lab:
            await survive(lab, place, 300, restart)
    finally:
        server.stop()


@pytest.mark.asyncio
async def test_a_redis_that_forgot_its_tickets_lets_none_be_done_twice(tmp_path: Path) -> None:
    server = Server(tmp_path / "redis")
    place = Place("redis", server.url, "test")
    queue = Queue(QUEUE, visibility_timeout=VISIBILITY_S)
    try:
        async with working(server.url, place, tmp_path / "journals", 1.0) as lab:
            async with member(place, queue, eligible=False, secret=SECRET, profile=lab.timing):
                await until(lab, "acts", 1)
                lost = [await queue.enqueue(number) for number in range(200)]
                await until(lab, "done", 20)
                # One that never heard of an epoch would begin with the first again.
                await until(lab, "knows", len(MEMBERS))
                epoch = lab.lines("acts")[-1]["epoch"]
                server.stop(lose_data=True)
                await asyncio.sleep(0.5)
                server.start()
                later = [await queue.enqueue(number) for number in range(50)]
                finals = [await queue.result(each, timeout_s=60.0) for each in later]
            assert {final.state for final in finals} == {"done"}
            # Workers write down what they did after the store has it.
            await asyncio.to_thread(
                lab.until,
                lambda: set(later) <= {line["ticket"] for line in lab.lines("done")},
                60.0 * lab.scale,
                "all later ones are noted",
            )
            await asyncio.to_thread(
                lab.until,
                lambda: lab.lines("acts")[-1]["epoch"] > epoch,
                60.0 * lab.scale,
                f"one acts in an epoch above {epoch}",
            )
            done = [line["ticket"] for line in lab.lines("done")]
            assert len(done) == len(set(done)) and set(done) <= {*lost, *later}
    finally:
        server.stop()


@pytest.mark.nightly
@pytest.mark.asyncio
@pytest.mark.parametrize("fault", ["500", "503", "nothing"])
async def test_tickets_live_through_an_s3_without_good_answers(
    s3_endpoint: str, tmp_path: Path, fault: str
) -> None:
    proxy = FaultyS3(s3_endpoint)
    prefix = f"test.{uuid.uuid4().hex[:12]}"
    path = f"s3://{BUCKET}/{prefix}?region=us-east-1&endpoint="
    place = Place("s3", f"{path}{s3_endpoint}", prefix)

    async def be_away(lab: WorkLab) -> None:
        if fault == "nothing":
            proxy.hang()
        else:
            proxy.fail_next(MANY, int(fault))
        await asyncio.sleep(AWAY_S)
        proxy.fail_next(0, 500)
        proxy.answer_again()

    try:
        url = f"{path}{proxy.endpoint}"
        async with working(url, place, tmp_path / "journals", 3.0) as lab:
            await survive(lab, place, 12, be_away)
    finally:
        proxy.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("place", ["sqlite", "redis", "s3"], indirect=True)
async def test_a_stopped_coordinator_ends_no_ticket_that_another_one_ended(
    place: Place, tmp_path: Path
) -> None:
    """It is a worker too: its claims run out while it sleeps."""

    async def stop_twice(lab: WorkLab) -> None:
        for _ in range(2):
            leader = lab.leader()
            lab.pause(leader)
            await until(lab, "acts", len(lab.lines("acts")) + 1)
            await asyncio.sleep(lab.timing.lease_ttl + VISIBILITY_S * lab.scale)
            lab.resume(leader)
            await asyncio.sleep(lab.timing.heartbeat_interval)

    scale, tickets = (3.0, 16) if place.kind == "s3" else (1.0, 600)
    async with working(place.url, place, tmp_path / "journals", scale) as lab:
        await survive(lab, place, tickets, stop_twice)
