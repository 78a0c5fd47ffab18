"""Lines about the shares of a running job that are silent or were lost.

A share whose worker died is lost only when its lease is certainly over (R5). Until then its
numbers are missing from every second that is shown, so the lines say how long its worker has
been silent. Nothing here decides; the log does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from squall.cluster.datacenter.records import AttemptFacts, JobRecord
from squall.cluster.datacenter.tables import Tables
from squall.cluster.protocol.job_keys import AttemptKey
from squall.reporting.loss_lines import what_was_lost, when_lost
from squall.reporting.number_format import plural

SILENT_S = 3.0
"""A report comes each second; one may be late and one lost."""
UNLINKED_S = 0.5
"""The same for a worker whose link is gone: most likely its process died, and the next shown second
must not look complete."""
LINES_MAX = 10


LiveAttempts = Sequence[tuple[AttemptKey, AttemptFacts]]
"""The attempts of a job that are live."""
HasLink = Callable[[str, str], bool]
"""(node, boot) -> whether that boot of a worker has a link to this member."""


class SilentWorker(NamedTuple):
    """A worker of a job that reported nothing for a while."""

    node: str
    shares: int
    seconds: float
    left_s: float = 0.0
    """About how long its load is still waited for, before another worker takes it over."""


class ReportTimes:
    """When each attempt of a job last reported, on the group's clock."""

    def __init__(self, opened_ms: int) -> None:
        # A member that begins to lead a job knows of no earlier report.
        self._opened_ms = opened_ms
        self._heard_ms: dict[AttemptKey, int] = {}

    def observe(self, key: AttemptKey, at_ms: int) -> None:
        self._heard_ms[key] = at_ms

    def silent(
        self,
        live: LiveAttempts,
        job: JobRecord,
        now_ms: int,
        after_s: float,
        has_link: HasLink = lambda node, boot: True,
        lost_after_s: float = 0.0,
    ) -> list[SilentWorker]:
        """The workers with shares that run and reported nothing for longer than `after_s`, or than
        `UNLINKED_S` if their link to this member is gone. The primary gives a share up
        `lost_after_s` after it last heard of it."""
        found: dict[str, SilentWorker] = {}
        heard_ms = self._heard_ms
        # The usual case is a report of the last second: nothing else is looked at then.
        recent_ms = now_ms - round(min(after_s, UNLINKED_S) * 1000.0)
        for key, attempt in live:
            if heard_ms.get(key, 0) > recent_ms:
                continue
            longest_s = after_s
            if after_s > UNLINKED_S and not has_link(attempt.node, attempt.boot):
                longest_s = UNLINKED_S
            workflow = job.workflow(key.workflow)
            if workflow is None or not workflow.running or not workflow.started_ms:
                continue
            begin_ms = max(workflow.started_ms, attempt.created_ms, self._opened_ms)
            since_ms = max(heard_ms.get(key, 0), begin_ms)
            seconds = (now_ms - since_ms) / 1000.0
            if seconds > longest_s:
                known = found.get(attempt.node, SilentWorker(attempt.node, 0, 0.0))
                silent_s = max(known.seconds, seconds)
                left_s = max(lost_after_s - silent_s, 0.0)
                found[attempt.node] = SilentWorker(attempt.node, known.shares + 1, silent_s, left_s)
        return [found[node] for node in sorted(found)]


def silence_note(silent: list[SilentWorker]) -> str:
    """One line for all: `w2 silent for 5 s: 1 share is not heard`."""
    shares = sum(each.shares for each in silent)
    longest_s = max(each.seconds for each in silent)
    who = silent[0].node if len(silent) == 1 else plural(len(silent), "worker")
    are = "is" if shares == 1 else "are"
    return (
        f"{who} silent for {longest_s:.0f} s: {plural(shares, 'share')} {are} not heard"
        f"{_waits(max(each.left_s for each in silent))}"
    )


def _waits(left_s: float) -> str:
    """Until when a silent share is waited for."""
    return f", given up in about {math.ceil(left_s)} s" if left_s > 0.0 else ""


def loss_lines(
    tables: Tables, job: JobRecord, silent: list[SilentWorker], *, is_lossy: bool
) -> tuple[str, ...]:
    """A line for each worker that was lost, then one for each that is silent."""
    lines = [*_lost(tables, job)] if is_lossy else []
    lines += [
        f"{each.node} silent for {each.seconds:.0f} s, {plural(each.shares, 'share')}"
        f"{_waits(each.left_s)}"
        for each in silent
    ]
    return tuple(lines[-LINES_MAX:])


def _lost(tables: Tables, job: JobRecord) -> Iterator[str]:
    """`w2 lost, last heard at 7.2 s, 2 shares, refilled by w1`."""
    shares: dict[tuple[str, str], int] = {}
    at_s: dict[tuple[str, str], float] = {}
    unproven: set[tuple[str, str]] = set()
    reasons: dict[tuple[str, str], str] = {}
    refilled: dict[tuple[str, str], dict[str, None]] = {}
    for key, attempt in tables.attempts_of(job.job):
        if attempt.state != "lost":
            continue
        who = (attempt.node, attempt.boot)
        shares[who] = shares.get(who, 0) + 1
        workflow = job.workflow(key.workflow)
        started_ms = workflow.started_ms if workflow is not None else 0
        died_at_s = attempt.died_at_s(started_ms)
        if died_at_s is None:
            unproven.add(who)
        began_s = (started_ms or job.started_ms) / 1000.0 - job.started_ms / 1000.0
        moment_s = began_s + (attempt.heard_at_s if died_at_s is None else died_at_s)
        at_s[who] = max(at_s.get(who, 0.0), moment_s)
        reasons[who] = attempt.reason
        later = [each for each in tables.attempts[key.of] if each.number > key.attempt]
        if later:
            refilled.setdefault(who, {})[later[0].node] = None
    for who in sorted(shares, key=lambda each: (at_s[each], each)):
        takers = ", ".join(refilled.get(who, ()))
        happened = what_was_lost(who[0], reasons[who], takers).removeprefix("worker ")
        text = happened + when_lost(at_s[who], who in unproven)
        text += f", {plural(shares[who], 'share')}"
        yield text + (f", refilled by {takers}" if takers else "")
