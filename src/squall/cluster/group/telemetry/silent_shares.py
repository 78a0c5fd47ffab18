"""Lines about the shares of a running job that are silent.

A share whose worker died is lost only when its lease is certainly over (R5). Until then its
numbers are missing from every second that is shown, so the lines say how long its worker has
been silent. Nothing here decides; the log does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from squall.cluster.group.job_tables import LiveAttempt, LiveJob
from squall.cluster.protocol.job_keys import AttemptKey
from squall.reporting.number_format import plural

SILENT_S = 3.0
"""A report comes each second; one may be late and one lost."""
UNLINKED_S = 0.5
"""The same for a worker whose link is gone: most likely its process died, and the next shown second
must not look complete."""
LINES_MAX = 10


LiveAttempts = Sequence[tuple[AttemptKey, LiveAttempt]]
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
        job: LiveJob,
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


def loss_lines(lost: Iterable[str], silent: list[SilentWorker]) -> tuple[str, ...]:
    """The lines about what was lost, then one for each worker that is silent."""
    lines = [*lost]
    lines += [
        f"{each.node} silent for {each.seconds:.0f} s, {plural(each.shares, 'share')}"
        f"{_waits(each.left_s)}"
        for each in silent
    ]
    return tuple(lines[-LINES_MAX:])
