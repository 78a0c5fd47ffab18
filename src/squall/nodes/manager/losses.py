"""When an attempt may be declared lost, and what its share needs then.

The rules of the execution lease and of segments, as pure functions of the log and of what
a primary granted. They must never call a share free to run again before the lease of its
last attempt is over on any clock, nor refill what is almost at its end.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from squall.nodes.datacenter.records import AttemptFacts, JobRecord, WorkflowRecord
from squall.nodes.timers import Timers
from squall.stats.manifest import Profile


class Grants(NamedTuple):
    """What a primary knows of one attempt's leases, on its own clock."""

    granted: float | None
    """Arrival of the last request that it granted."""
    began: float
    """When it became primary: a former one may have granted until then."""
    dispatched: float


def lost_at(attempt: AttemptFacts, grants: Grants, timers: Timers, least_s: float = 0.0) -> float:
    """From when on the loss may be committed; minus infinity if at once. `least_s` is what
    the job asks for: its leases are at least so long."""
    if attempt.dead:
        return -math.inf
    longest_s = max(attempt.lease_ms / 1000.0, least_s)
    return _latest(grants) + timers.lost_factor * longest_s + timers.lost_margin_s


def lease_end(attempt: AttemptFacts, grants: Grants, now: float, least_s: float = 0.0) -> float:
    """The latest moment, up to now, at which the attempt may have made load."""
    return min(now, _latest(grants) + max(attempt.lease_ms / 1000.0, least_s))


def over_at(
    workflow: WorkflowRecord, profile: Profile, now: float, group_ms: int, timers: Timers
) -> float:
    """When an attempt that nobody stops has ended by itself, on the clock of `now`: its
    plan, its grace and the ladder are over, on clocks that differ."""
    longest_s = profile.duration_s + profile.grace_s + timers.stop_grace_s
    return now - elapsed_s(workflow, group_ms) + timers.lost_factor * longest_s


def _latest(grants: Grants) -> float:
    granted = -math.inf if grants.granted is None else grants.granted
    return max(granted, grants.began, grants.dispatched)


Kind = Literal["live", "settled", "wait", "refill", "exhausted"]


class Need(NamedTuple):
    """What a share of a started workflow needs."""

    kind: Kind
    until_ms: int = 0
    """`wait`: for the outbox of a lost worker, until then at most."""
    iterations_done: int = 0
    """`refill`: made by all attempts so far."""
    reason: str = ""
    """`exhausted`: why the last attempt was lost."""


def elapsed_s(workflow: WorkflowRecord, group_ms: int) -> float:
    """On the workflow's clock."""
    return max(group_ms - workflow.started_ms, 0) / 1000.0 if workflow.started_ms else 0.0


def remaining_s(workflow: WorkflowRecord, profile: Profile, group_ms: int) -> float:
    """What is left of a share's time. Set-up work (`once`) begins anew."""
    if profile.model == "once":
        return profile.duration_s
    return profile.duration_s - elapsed_s(workflow, group_ms)


def made(attempts: tuple[AttemptFacts, ...]) -> int:
    return sum(attempt.counted.made for attempt in attempts)


def share_need(
    job: JobRecord,
    workflow: WorkflowRecord,
    profile: Profile,
    attempts: tuple[AttemptFacts, ...],
    iterations: int,
    group_ms: int,
    timers: Timers,
) -> Need:
    """`iterations` is the plan of this share, for the `iterations` model."""
    last = attempts[-1]
    if last.state == "live":
        return Need("live")
    facts = last.facts
    whole = facts is not None and facts.complete
    if last.state == "ended" and facts is not None and (facts.error or not facts.cut):
        return Need("settled")
    if job.stop or workflow.stop:
        return Need("settled")
    done = made(attempts)
    over = profile.model == "iterations" and done >= iterations
    if over or remaining_s(workflow, profile, group_ms) < timers.refill_min_s:
        if last.state != "lost" or whole or last.dead:
            return Need("settled")
        until_ms = last.ended_ms + round(timers.outbox_wait_s * 1000)
        if job.deadline_ms:
            until_ms = min(until_ms, job.deadline_ms + job.extension_ms)
        return Need("wait", until_ms) if group_ms < until_ms else Need("settled")
    if job.submission.options.on_agent_loss == "continue":
        return Need("settled")
    failed = [each for each in attempts if each.state == "lost" or _cut_short(each)]
    if len(failed) > timers.retries_max:
        return Need("exhausted", reason=last.reason)
    return Need("refill", iterations_done=done)


def _cut_short(attempt: AttemptFacts) -> bool:
    facts = attempt.facts
    return attempt.state == "ended" and facts is not None and bool(facts.cut)
