"""Lines about the shares of a running job that were lost, by worker."""

from __future__ import annotations

from collections.abc import Iterator

from squall.cluster.datacenter.records import JobRecord
from squall.cluster.datacenter.tables import Tables
from squall.reporting.loss_lines import what_was_lost, when_lost
from squall.reporting.number_format import plural


def lost_lines(tables: Tables, job: JobRecord) -> Iterator[str]:
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
