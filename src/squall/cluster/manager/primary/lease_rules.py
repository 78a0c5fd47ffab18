"""When an attempt may be declared lost (R5), and what its share needs then (R8).

Pure functions of the log and of what a primary granted. They never allow another attempt
before the lease of the last one is over on any clock, and never refill a share that is almost
at its end.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from squall.cluster.datacenter.records import AttemptFacts, JobRecord, WorkflowRecord
from squall.cluster.protocol.messages import DRAINED
from squall.cluster.protocol.timers import Timers
from squall.stats.manifest import Profile


class Grants(NamedTuple):
    """The moments that the leases of one attempt depend on, on the primary's clock."""

    granted: float | None
    """Arrival of the last request that this primary granted."""
    began: float
    """When it became primary: a former primary may have granted until then."""
    dispatched: float


def lost_at(attempt: AttemptFacts, grants: Grants, timers: Timers, least_s: float = 0.0) -> float:
    """The moment from which the loss may be committed; minus infinity if at once, because a
    registration proved the boot dead. The leases of the job are at least `least_s` long."""
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
    """When an attempt has certainly ended by itself, on the clock of `now`: its plan, its grace
    and the kill ladder are over even if the clocks differ."""
    longest_s = profile.duration_s + profile.grace_s + timers.stop_grace_s
    return now - elapsed_s(workflow, group_ms) + timers.lost_factor * longest_s


def _latest(grants: Grants) -> float:
    granted = -math.inf if grants.granted is None else grants.granted
    return max(granted, grants.began, grants.dispatched)


NeedKind = Literal["live", "settled", "wait", "refill", "exhausted"]


class ShareNeed(NamedTuple):
    """What a share of a started workflow needs now."""

    kind: NeedKind
    until_ms: int = 0
    """`wait`: until when at most the outbox of a lost worker is awaited."""
    iterations_done: int = 0
    """`refill`: iterations that all attempts so far made."""
    reason: str = ""
    """`exhausted`: why the last attempt was lost."""


def elapsed_s(workflow: WorkflowRecord, group_ms: int) -> float:
    """The reading of the workflow's clock, which starts with the workflow."""
    return max(group_ms - workflow.started_ms, 0) / 1000.0 if workflow.started_ms else 0.0


def remaining_s(workflow: WorkflowRecord, profile: Profile, group_ms: int) -> float:
    """What is left of a share's time. Set-up work (`once`) always begins from the start."""
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
    *,
    may_return: bool = True,
) -> ShareNeed:
    """`iterations` is the plan of this share in the `iterations` model. `may_return`: the boot that
    ran its last attempt may come back and bring its record; another boot of that worker has what
    there is in the outbox and brought it when it registered."""
    last = attempts[-1]
    if last.state == "live":
        return ShareNeed("live")
    facts = last.facts
    whole = facts is not None and facts.complete
    if last.state == "ended" and facts is not None and (facts.error or not facts.cut):
        return ShareNeed("settled")
    if job.stop or workflow.stop:
        return ShareNeed("settled")
    done = made(attempts)
    over = profile.model == "iterations" and done >= iterations
    if over or remaining_s(workflow, profile, group_ms) < timers.refill_min_s:
        if last.state != "lost" or whole or last.dead or not may_return:
            return ShareNeed("settled")
        until_ms = last.ended_ms + round(timers.outbox_wait_s * 1000)
        if job.deadline_ms:
            until_ms = min(until_ms, job.deadline_ms + job.extension_ms)
        return ShareNeed("wait", until_ms) if group_ms < until_ms else ShareNeed("settled")
    if job.submission.options.on_agent_loss == "continue":
        return ShareNeed("settled")
    failed = [each for each in attempts if each.state == "lost" or was_cut_short(each)]
    if len(failed) > timers.retries_max:
        return ShareNeed("exhausted", reason=last.reason)
    return ShareNeed("refill", iterations_done=done)


def was_cut_short(attempt: AttemptFacts) -> bool:
    """It ended before its time, and not because its worker was drained: that is no fault of the
    share or of the worker."""
    facts = attempt.facts
    return attempt.state == "ended" and facts is not None and facts.cut not in ("", DRAINED)
