"""Workers in processes of their own, killed while they hold tickets and while they lead:
every ticket is done once, none is lost, no due time runs twice."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from coordination_places import Place
from process_lab import Lab
from process_worker import EVERY_S, QUEUE, SECRET, VISIBILITY_S
from test_queue import member

from squall.coordination import Queue

MEMBERS = ["a", "b", "c"]
KEYS = ("", "", "ada", "bob")
STRIKES = 4


class WorkLab(Lab):
    """The same, with workers."""

    only = ""
    """`queue`: without a schedule and without expiry, whose requests S3 has to answer too."""

    def start(self, member: str, *, offset: float = 0.0) -> None:
        self.launch("process_worker.py", member, only=self.only)


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


async def until(lab: WorkLab, what: str, count: int) -> None:
    """So many lines of a kind; without blocking this process, which serves S3."""
    begun = time.monotonic()
    while len(lab.lines(what)) < count:
        if time.monotonic() - begun > 40.0 * lab.scale:
            errors = "".join(path.read_text()[-1500:] for path in lab.folder.glob("*.err"))
            raise AssertionError(f"{count} times {what!r} not in time\n{errors}")
        await asyncio.sleep(0.05)


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
        finals = {each: await producer.result(each, within=90.0) for each in made}
    check_tickets(lab, made, numbers, {each: final.state for each, final in finals.items()})
    check_runs(lab)


def check_tickets(
    lab: WorkLab,
    made: dict[str, str],
    numbers: dict[str, int],
    finals: dict[str, str],
    strikes: int = STRIKES,
) -> None:
    assert len(finals) == len(made)
    assert set(finals.values()) <= {"done", "dead_letter"}
    assert list(finals.values()).count("dead_letter") <= strikes
    done = Counter(line["ticket"] for line in lab.lines("done"))
    assert set(done) <= set(made)
    assert all(count == 1 for count in done.values()), done.most_common(3)
    claims = Counter((line["ticket"], line["attempt"]) for line in lab.lines("took"))
    assert all(count == 1 for count in claims.values()), claims.most_common(3)
    for key in set(KEYS) - {""}:
        # Taken, not done: a worker may write down late that the store accepted its end.
        order = [
            numbers[line["ticket"]] for line in lab.lines("took") if made.get(line["ticket"]) == key
        ]
        assert order == sorted(order), f"{key}: {order}"


def check_runs(lab: WorkLab) -> None:
    runs = Counter(line["slot"] for line in lab.lines("ran"))
    assert runs
    assert all(count == 1 for count in runs.values()), runs.most_common(3)
    every = EVERY_S * lab.scale
    assert all(
        abs(line["due"] / every - round(line["due"] / every)) < 1e-6 for line in lab.lines("ran")
    )
    assert len({line["epoch"] for line in lab.lines("ran")}) > 1
