"""Which shares of a running job nobody hears of, and which were lost, in lines for people.

A share whose worker died is lost only when its lease is surely over, which takes more than a
minute with one manager. Until then its numbers are missing from every second, so whoever
watches is told so: how long it has been silent, not what that means. It shows; the log
decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from squall.nodes.datacenter.records import AttemptFacts, JobRecord
from squall.nodes.datacenter.tables import Tables
from squall.nodes.identity import AttemptKey
from squall.reporting.format import plural

SILENT_S = 3.0
"""A report each second, one that is late, one that was lost."""
LINES_MAX = 10


Live = Sequence[tuple[AttemptKey, AttemptFacts]]
"""The attempts of a job that are live."""


class Silent(NamedTuple):
    """One worker of a job."""

    node: str
    shares: int
    seconds: float


class Ear:
    """When each attempt of a job was last heard of, on the group's clock."""

    def __init__(self, opened_ms: int) -> None:
        self._opened_ms = opened_ms
        """Who begins to lead a job knows of no earlier report."""
        self._heard_ms: dict[AttemptKey, int] = {}

    def hear(self, key: AttemptKey, at_ms: int) -> None:
        self._heard_ms[key] = at_ms

    def silent(self, live: Live, job: JobRecord, now_ms: int, after_s: float) -> list[Silent]:
        """The workers whose shares run and were not heard for longer than that."""
        found: dict[str, Silent] = {}
        heard_ms, lately_ms = self._heard_ms, now_ms - round(after_s * 1000.0)
        for key, attempt in live:
            if heard_ms.get(key, 0) > lately_ms:
                continue
            workflow = job.workflow(key.workflow)
            if workflow is None or not workflow.running or not workflow.started_ms:
                continue
            begin_ms = max(workflow.started_ms, attempt.created_ms, self._opened_ms)
            since_ms = max(heard_ms.get(key, 0), begin_ms)
            seconds = (now_ms - since_ms) / 1000.0
            if seconds > after_s:
                known = found.get(attempt.node, Silent(attempt.node, 0, 0.0))
                longest_s = max(known.seconds, seconds)
                found[attempt.node] = Silent(attempt.node, known.shares + 1, longest_s)
        return [found[node] for node in sorted(found)]


def silence_note(silent: list[Silent]) -> str:
    """All of it in one line: `w2 silent for 5 s: 1 share is not heard`."""
    shares = sum(each.shares for each in silent)
    longest_s = max(each.seconds for each in silent)
    who = silent[0].node if len(silent) == 1 else plural(len(silent), "worker")
    are = "is" if shares == 1 else "are"
    return f"{who} silent for {longest_s:.0f} s: {plural(shares, 'share')} {are} not heard"


def loss_lines(
    tables: Tables, job: JobRecord, silent: list[Silent], *, is_lossy: bool
) -> tuple[str, ...]:
    """One for each worker that was lost, then one for each that is silent."""
    lines = [*_lost(tables, job)] if is_lossy else []
    lines += [
        f"{each.node} silent for {each.seconds:.0f} s, {plural(each.shares, 'share')}"
        for each in silent
    ]
    return tuple(lines[-LINES_MAX:])


def _lost(tables: Tables, job: JobRecord) -> Iterator[str]:
    """`w2 lost at 7.2 s, 2 shares, refilled by w1`."""
    shares: dict[tuple[str, str], int] = {}
    at_ms: dict[tuple[str, str], int] = {}
    refilled: dict[tuple[str, str], dict[str, None]] = {}
    for key, attempt in tables.attempts_of(job.job):
        if attempt.state != "lost":
            continue
        who = (attempt.node, attempt.boot)
        shares[who] = shares.get(who, 0) + 1
        at_ms[who] = max(at_ms.get(who, 0), attempt.ended_ms)
        attempts = tables.attempts[key.of]
        if key.attempt < len(attempts):
            refilled.setdefault(who, {})[attempts[key.attempt].node] = None
    for who in sorted(shares, key=lambda each: (at_ms[each], each)):
        text = f"{who[0]} lost at {(at_ms[who] - job.started_ms) / 1000.0:.1f} s"
        text += f", {plural(shares[who], 'share')}"
        yield text + (f", refilled by {', '.join(refilled[who])}" if who in refilled else "")
