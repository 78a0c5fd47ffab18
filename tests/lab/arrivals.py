"""Starts the independent target of the chaos matrices and reads what it saw."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.lab.programs import ROOT, program
from tests.lab.target import TargetHandle, url_of

ENDED_WITHIN_S = 5.0


class Arrival(NamedTuple):
    """One request: when the kernel had it, when it was answered, and who sent it."""

    at_s: float
    until_s: float
    sender: str


class ArrivalsTarget(TargetHandle):
    """Has the counts that tests wait for; `seen` has what the judge needs."""

    def counts(self) -> dict[str, Any]:
        return {"total": json.loads(self.get("/total"))}

    def arrivals(self) -> list[Arrival]:
        """All requests, in the order of their arrival. Waits for the last answers."""
        until = time.monotonic() + ENDED_WITHIN_S
        while True:
            raw = json.loads(self.get("/arrivals"))
            open_yet = sum(until_s is None for _, until_s, _ in raw)
            if not open_yet or time.monotonic() > until:
                break
            time.sleep(0.05)
        now_s = time.time()
        return sorted(Arrival(at, now_s if end is None else end, who) for at, end, who in raw)

    def seen(self) -> dict[str, Any]:
        return seen_of(self.arrivals())


def seen_of(arrivals: Sequence[Arrival]) -> dict[str, Any]:
    """The arrivals as the judge reads them: like the counts of `squall target`, with every time
    of arrival."""
    senders: dict[str, dict[str, float]] = {}
    for each in arrivals:
        times = senders.setdefault(each.sender, {"first_s": each.at_s, "last_s": each.at_s})
        times["last_s"] = each.at_s
    return {
        "total": len(arrivals),
        "attempt_times": senders,
        "max_concurrent_requests": _most_at_once(arrivals),
        "arrivals_s": [each.at_s for each in arrivals],
    }


def _most_at_once(arrivals: Sequence[Arrival]) -> int:
    # At the same stamp an answer comes before the request that it made possible.
    changes = sorted([(a.at_s, 1) for a in arrivals] + [(a.until_s, -1) for a in arrivals])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


@contextmanager
def running_arrivals_target() -> Generator[ArrivalsTarget]:
    process = subprocess.Popen(
        program("tests.lab.arrivals_server"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    handle = ArrivalsTarget(url_of(process), process)
    try:
        yield handle
    finally:
        handle.stop()
