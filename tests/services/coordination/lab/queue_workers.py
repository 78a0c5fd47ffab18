"""Worker processes of a queue, and the rules that their journals must satisfy."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from tests.services.coordination.lab.processes import Lab
from tests.services.coordination.programs.worker import EVERY_S

MEMBERS = ["a", "b", "c"]
KEYS = ("", "", "ada", "bob")
STRIKES = 4


class WorkLab(Lab):
    """The same, with workers."""

    only = ""
    """`queue`: without a schedule and without expiry, whose requests S3 has to answer too."""

    def start(self, member: str, *, offset: float = 0.0) -> None:
        self.launch("worker", member, only=self.only)


async def until(lab: WorkLab, what: str, count: int) -> None:
    """So many lines of a kind; without blocking this process, which serves S3."""
    begun = time.monotonic()
    while len(lab.lines(what)) < count:
        if time.monotonic() - begun > 40.0 * lab.scale:
            errors = "".join(path.read_text()[-1500:] for path in lab.folder.glob("*.err"))
            raise AssertionError(f"{count} times {what!r} not in time\n{errors}")
        await asyncio.sleep(0.05)


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
        # Taken, not done: a worker may write down late that the store accepted its end. One that
        # stood still writes down late that it took a ticket, which another one has taken since.
        order: list[int] = []
        attempts: dict[str, int] = {}
        for line in lab.lines("took"):
            ticket, attempt = line["ticket"], line["attempt"]
            if made.get(ticket) == key and attempt > attempts.get(ticket, 0):
                attempts[ticket] = attempt
                order.append(numbers[ticket])
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
