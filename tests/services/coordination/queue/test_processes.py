"""Workers in processes of their own, killed while they hold tickets and while they lead:
every ticket is done once, none is lost, no due time runs twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from squall.coordination import Queue
from tests.services.coordination.lab.places import Place
from tests.services.coordination.lab.queue_workers import (
    KEYS,
    MEMBERS,
    STRIKES,
    WorkLab,
    check_runs,
    check_tickets,
    until,
)
from tests.services.coordination.lab.queues import member
from tests.services.coordination.programs.worker import QUEUE, SECRET, VISIBILITY_S


@pytest.fixture
def lab(place: Place, tmp_path: Path) -> Iterator[WorkLab]:
    if place.kind == "memory":
        pytest.skip("a memory store has one process")
    folder = tmp_path / "journals"
    folder.mkdir()
    made = WorkLab(place.url, place.prefix, folder, MEMBERS, 3.0 if place.kind == "s3" else 1.0)
    try:
        yield made
    finally:
        made.close()
    made.check()


async def strike(lab: WorkLab, number: int) -> None:
    """Kills the coordinator and another one in turn, and starts it again."""
    leader = lab.leader()
    other = random.choice([each for each in MEMBERS if each != leader])
    victim = leader if number % 2 == 0 else other
    lab.kill(victim)
    await asyncio.sleep(0.5)
    lab.start(victim)


@pytest.mark.asyncio
async def test_tickets_and_due_times_survive_kills(place: Place, lab: WorkLab) -> None:
    tickets = 16 if place.kind == "s3" else 400
    producer = Queue(QUEUE, visibility_timeout=VISIBILITY_S * lab.scale)
    for name in MEMBERS:
        lab.start(name)
    async with member(place, producer, eligible=False, secret=SECRET, profile=lab.timing):
        await until(lab, "acts", 1)
        made: dict[str, str] = {}
        numbers: dict[str, int] = {}

        async def produce() -> None:
            for number in range(tickets):
                key = KEYS[number % len(KEYS)]
                ticket_id = await producer.enqueue(number, order_key=key)
                made[ticket_id], numbers[ticket_id] = key, number

        producing = asyncio.ensure_future(produce())
        for number in range(STRIKES):
            await until(lab, "done", (number + 1) * tickets // (STRIKES + 2))
            await strike(lab, number)
        await producing
        finals = {each: await producer.result(each, timeout_s=90.0) for each in made}
    check_tickets(lab, made, numbers, {each: final.state for each, final in finals.items()})
    check_runs(lab)
