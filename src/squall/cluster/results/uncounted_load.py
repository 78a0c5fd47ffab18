"""Bounds the load that a lost attempt may have made and no record counts: [0, u] (R8).

The silence begins where the reports end, or the counters that survived the process; it ends at the
death of the process if that is known, else with the last lease. No iteration begins after the end
of the plan. In an open model no more than 1.05 times the planned starts of the silence are
released, and iterations that waited or ran at the cut may go on. In a closed model the users
cannot send faster than the lowest latency that was seen, which is an estimate and marked as one.
Requests in flight at the cut are added in both.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from squall.cluster.results.parts import AttemptPart
from squall.engine.load.schedule import StartSchedule
from squall.stats.attempt_record import AttemptRecord, SurvivingCounters
from squall.stats.manifest import WorkflowManifest
from squall.stats.reports import RowDelta

RELEASE_FACTOR = 1.05
"""Late starts are released at no more than this times the plan."""
START_SKEW_S = 0.5
"""By how much the clocks of a workflow on its manager and on a worker may differ: a start counts
only if its round trip was shorter (R7)."""
LATENCY_FLOOR_S = 0.000_05
"""No exchange over a network is faster; used if no latency was seen."""


class UncountedLoad(NamedTuple):
    requests: int = 0
    iterations: int = 0
    is_estimate: bool = False


class InFlight(NamedTuple):
    """What was under way at the last report of a record."""

    requests: int = 0
    iterations: int = 0
    waiting: int = 0
    """Planned starts that were neither made nor dropped."""


def unknown_of(part: AttemptPart, workflow: WorkflowManifest, lowest_s: float) -> UncountedLoad:
    """`lowest_s` is the lowest latency of a step in all records of this workflow."""
    record = part.record
    if record is not None and record.end is not None:
        return UncountedLoad()
    begin_s, end_s = cut_of(part), _silence_end(part)
    flying = in_flight(record, max(workflow.connections_per_vu, 1))
    each = _requests_each(record, workflow)
    # An iteration that ran at the cut has sent a part of its requests already. What is left of it
    # and the request that it may have had in flight are never more than all that it makes.
    running = max(math.ceil(flying.iterations * each), flying.requests)
    if workflow.profile.is_open:
        schedule = StartSchedule(workflow.profile, part.share, part.shares)
        planned = schedule.planned_until(end_s) - schedule.planned_until(begin_s)
        fresh = math.ceil(RELEASE_FACTOR * planned) if planned > 0 else 0
        starts = fresh + flying.waiting
        requests = math.ceil(starts * each) + running
        return UncountedLoad(requests, starts + flying.iterations, is_estimate=False)
    # A last report in the middle of a second counts to its end, which may lie beyond the lease.
    silence_s = max(end_s - begin_s, 0.0)
    return _unknown_closed(part, workflow, lowest_s, silence_s, flying, each)


def _unknown_closed(
    part: AttemptPart,
    workflow: WorkflowManifest,
    lowest_s: float,
    silence_s: float,
    flying: InFlight,
    each: float,
) -> UncountedLoad:
    profile = workflow.profile
    lanes = max(workflow.connections_per_vu, 1)
    seen_s = max(lowest_s if math.isfinite(lowest_s) else LATENCY_FLOOR_S, LATENCY_FLOOR_S)
    planned_s = min(silence_s, max(profile.duration_s - cut_of(part), 0.0))
    # One more than fits at the lowest latency that was seen: a request in the silence may have
    # been a little faster, and a bound that is too low is wrong.
    turns = math.ceil(silence_s / seen_s) + (silence_s > 0.0)
    # Iterations that ran at the end of the plan go on in their grace time; no others begin.
    within_plan = math.ceil(planned_s / seen_s) + (planned_s > 0.0)
    ended = finished(part.record)
    if ended:
        turns = min(turns, within_plan + math.ceil(each))
    requests = part.users * lanes * turns + flying.requests
    iterations = part.users * min(turns, within_plan) + flying.iterations
    if profile.model == "iterations" and part.iterations:
        # No more iterations than the share has left.
        left = max(part.iterations - ended, flying.iterations)
        iterations = min(iterations, left)
        if ended:
            requests = min(requests, math.ceil(left * each) + flying.requests)
    return UncountedLoad(requests, iterations, is_estimate=True)


def _silence_end(part: AttemptPart) -> float:
    """The latest moment at which the attempt may have sent: its death as its own machine saw it,
    and what the manager knows of its lease."""
    end_s = part.lost_at_s if part.silence_end_s is None else part.silence_end_s
    counters = part.record.counters if part.record is not None else None
    if counters is None or counters.dead_by_s is None:
        return end_s
    return min(counters.dead_by_s, end_s + START_SKEW_S)


def cut_of(part: AttemptPart) -> float:
    """The moment of the workflow up to which its reports and counters count."""
    record = part.record
    if record is None:
        return part.joined_s
    if record.end is not None:
        return max(record.end.elapsed_s, record.joined_s)
    return max(record.silent_from_s, record.joined_s)


def in_flight(record: AttemptRecord | None, lanes: int = 1) -> InFlight:
    """`lanes` is the number of requests that one user may have under way at once."""
    if record is None:
        return InFlight()
    requests = iterations = waiting = 0
    for report in record.reports:
        sums = report.requests
        requests += sums.sent - sums.answered - sums.failed
        row, starts = report.iteration, report.starts
        iterations += row.started - row.interrupted - _ended(row)
        waiting += starts.planned - starts.made - starts.dropped
    busy = record.reports[-1].busy if record.reports else 0
    counters = _latest_counters(record)
    if counters is not None:
        iterations, busy = counters.made - counters.finished, counters.busy
    # `failed` also counts requests that failed before they were sent, so the difference may be
    # too low.
    return InFlight(max(requests, busy * lanes), max(iterations, 0), max(waiting, 0))


def _latest_counters(record: AttemptRecord) -> SurvivingCounters | None:
    """The counters that survived, if no report is newer."""
    counters = record.counters
    return counters if counters is not None and counters.at_s >= record.silent_from_s else None


def lowest_latency_s(record: AttemptRecord | None) -> float:
    """The lowest latency of any step; infinity without one."""
    if record is None:
        return math.inf
    return min(
        (
            outcome.service.min_s
            for report in record.reports
            for row in report.rows
            for outcome in row.outcomes
            if outcome.service.count
        ),
        default=math.inf,
    )


def finished(record: AttemptRecord | None) -> int:
    """Iterations that ended, counted or interrupted."""
    if record is None:
        return 0
    ended = sum(_ended(r.iteration) + r.iteration.interrupted for r in record.reports)
    counters = _latest_counters(record)
    return ended if counters is None else max(ended, counters.finished)


def unfinished(record: AttemptRecord | None) -> int:
    """Iterations that had begun at the cut and did not end by themselves."""
    if record is None:
        return 0
    counters = _latest_counters(record)
    if counters is not None:
        return max(counters.made - counters.finished, 0)
    return max(sum(r.iteration.started - _ended(r.iteration) for r in record.reports), 0)


def _ended(row: RowDelta) -> int:
    return sum(outcome.count for outcome in row.outcomes)


def _requests_each(record: AttemptRecord | None, workflow: WorkflowManifest) -> float:
    """The requests of one iteration: those that ended by the iterations that ended. Requests in
    flight belong to iterations that did not, and would make it too many."""
    steps = sum(1 for step in workflow.steps if step.protocol) or 1
    done = finished(record)
    if record is None or not done:
        return steps
    ended = sum(report.requests.answered + report.requests.failed for report in record.reports)
    return max(steps, ended / done)
