"""Bounds the load that a lost attempt may have made and no record counts: [0, u] (R8).

The silence begins where the reports end, or the counters that survived the process; it ends at the
death of the process if that is known, else with the last lease. No iteration begins after the end
of the plan. In an open model no more than 1.05 times the planned starts of the silence are
released; starts that waited or were overdue at the cut are made, and iterations that ran go on.
Requests in flight at the cut are added in both models.

A closed model has no plan of starts. Its bound is an estimate, marked as one: the lowest of what
these facts allow.
- No user sends faster than the lowest latency that was seen.
- `pacing` and the shortest think time limit how often a user begins an iteration.
- For a moment users go on as they did: at most twice as fast as in their busiest second.
- `iterations` and the rows of a `take="once"` feed limit what is left to begin.
The last three hold for users that were ready. A user that starts in the silence may run start
actions, of which no report tells how much they send: for it only the latency counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from squall.cluster.results.parts import AttemptPart
from squall.engine.load.drivers import DROP_AFTER_S
from squall.engine.load.schedule import StartSchedule, UserSchedule
from squall.stats.attempt_record import AttemptRecord, SurvivingCounters
from squall.stats.manifest import Profile, WorkflowManifest
from squall.stats.reports import RowDelta

RELEASE_FACTOR = 1.05
"""Late starts are released at no more than this times the plan."""
START_SKEW_S = 0.5
"""By how much the clocks of a workflow on its manager and on a worker may differ: a start counts
only if its round trip was shorter (R7)."""
LATENCY_FLOOR_S = 0.000_05
"""No exchange over a network is faster; used if no latency was seen."""
PACE_FACTOR = 2.0
"""How much faster than in their busiest second users may send in a short silence; also by how much
the requests of an iteration may differ if they are more than its steps."""
PACE_HOLDS_S = 2.0
"""In a longer silence the target may have changed: the busiest second tells nothing."""


class Pace(NamedTuple):
    """How fast the users of a workflow were seen to send."""

    lowest_s: float = math.inf
    """The lowest latency of a step."""
    peak: float = 0.0
    """The most requests per user in any second."""


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


def unknown_of(part: AttemptPart, workflow: WorkflowManifest, pace: Pace) -> UncountedLoad:
    """`pace` is that of all records of this workflow."""
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
        overdue = _overdue(part, schedule, begin_s) if end_s > begin_s else 0
        starts = _with_rows(fresh + flying.waiting + overdue, part, workflow)
        requests = math.ceil(starts * each) + running
        return UncountedLoad(requests, starts + flying.iterations, is_estimate=False)
    # A last report in the middle of a second counts to its end, which may lie beyond the lease.
    silence_s = max(end_s - begin_s, 0.0)
    return _unknown_closed(part, workflow, pace, silence_s, flying, each)


def _overdue(part: AttemptPart, schedule: StartSchedule, cut_s: float) -> int:
    """Starts that were due at the cut and that the driver had not seen: its loop was late. It makes
    them next, unless it drops them."""
    reports = part.record.reports if part.record is not None else ()
    before = schedule.planned_until(part.joined_s) if part.refill else 0
    due = schedule.planned_until(cut_s) - before - sum(each.starts.planned for each in reports)
    # A driver that was paused or slowed down by hand has seen less than the plan.
    kept = schedule.planned_until(cut_s) - schedule.planned_until(cut_s - DROP_AFTER_S)
    return max(min(due, kept), 0)


def _unknown_closed(
    part: AttemptPart,
    workflow: WorkflowManifest,
    pace: Pace,
    silence_s: float,
    flying: InFlight,
    each: float,
) -> UncountedLoad:
    profile = workflow.profile
    lanes = max(workflow.connections_per_vu, 1)
    lowest_s = pace.lowest_s if math.isfinite(pace.lowest_s) else LATENCY_FLOOR_S
    seen_s = max(lowest_s, LATENCY_FLOOR_S)
    planned_s = min(silence_s, max(profile.duration_s - cut_of(part), 0.0))
    # One more than fits at the lowest latency that was seen: a request in the silence may have
    # been a little faster, and a bound that is too low is wrong.
    turns = math.ceil(silence_s / seen_s) + (silence_s > 0.0)
    # Iterations that ran at the end of the plan go on in their grace time; no others begin.
    within_plan = math.ceil(planned_s / seen_s) + (planned_s > 0.0)
    ended = finished(part.record)
    if ended:
        turns = min(turns, within_plan + math.ceil(each))
    users = _users_in(part, profile, silence_s)
    requests = users * lanes * turns + flying.requests
    iterations = users * min(turns, within_plan) + flying.iterations
    if ended:
        ready = min(_ready(part.record), users)
        starting = (users - ready) * lanes * turns
        most = _requests_most(each, workflow)
        running = max(math.ceil(flying.iterations * most), flying.requests)
        starts = _with_rows(ready * _starts_each(profile, planned_s, within_plan), part, workflow)
        requests = min(requests, math.ceil(starts * most) + running + starting)
        if pace.peak and silence_s <= PACE_HOLDS_S:
            # Users that do the same at the same time make their requests in bursts: one more
            # iteration of each.
            sent = ready * (PACE_FACTOR * pace.peak * silence_s + (silence_s > 0.0) * most)
            requests = min(requests, math.ceil(sent) + running + starting)
        # An iteration makes a request at least.
        iterations = min(iterations, starts + starting + flying.iterations, requests)
    if profile.model == "iterations" and part.iterations:
        # No more iterations than the share has left.
        left = max(part.iterations - ended, flying.iterations)
        iterations = min(iterations, left)
        if ended:
            requests = min(requests, math.ceil(left * each) + flying.requests)
    return UncountedLoad(requests, iterations, is_estimate=True)


def _users_in(part: AttemptPart, profile: Profile, silence_s: float) -> int:
    """The most users during the silence: of a ramp, those of its stages."""
    if profile.model != "ramp":
        return part.users
    plan, at_s = UserSchedule(profile, part.share, part.shares), cut_of(part)
    end_s = at_s + silence_s
    most = _alive(part.record)
    while at_s <= end_s:
        most = max(most, plan.target(at_s))
        at_s = plan.next_change(at_s)
    return min(most, part.users)


def _alive(record: AttemptRecord | None) -> int:
    if record is None or not record.reports:
        return 0
    counters = _latest_counters(record)
    return counters.users if counters is not None else record.reports[-1].users


def _ready(record: AttemptRecord | None) -> int:
    """Users whose start actions were over at the last report."""
    opened = sum(report.opened for report in record.reports) if record is not None else 0
    return min(_alive(record), opened)


def _starts_each(profile: Profile, planned_s: float, at_latency: int) -> int:
    """The iterations that one user may begin in this time, the first of them at once."""
    shortest_s = max(profile.pacing_s or 0.0, profile.think_s[0] if profile.think_s else 0.0)
    if planned_s <= 0.0 or shortest_s <= 0.0:
        return at_latency
    # Without the millionth, 0.3 s would hold two paces of 0.1 s.
    return min(at_latency, math.floor(planned_s / shortest_s + 1e-6) + 1)


def _with_rows(starts: int, part: AttemptPart, workflow: WorkflowManifest) -> int:
    """No more than the rows of `take="once"` feeds that the share had not given out. Earlier
    attempts may have taken more of them."""
    if not workflow.once_rows:
        return starts
    taken = finished(part.record) + in_flight(part.record).iterations
    return min(starts, max(len(range(part.share, workflow.once_rows, part.shares)) - taken, 0))


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


def pace_of(records: Iterable[AttemptRecord | None]) -> Pace:
    known = [record for record in records if record is not None]
    return Pace(
        min(map(lowest_latency_s, known), default=math.inf), max(map(peak_of, known), default=0.0)
    )


def peak_of(record: AttemptRecord) -> float:
    """The most requests per user in a second, or in a window of several; 0.0 without a report."""
    return record.peak or max(
        (
            report.requests.sent / record.width_s / report.users
            for report in record.reports
            if report.users
        ),
        default=0.0,
    )


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
    steps = _measured_steps(workflow)
    done = finished(record)
    if record is None or not done:
        return steps
    ended = sum(report.requests.answered + report.requests.failed for report in record.reports)
    return max(steps, ended / done)


def _requests_most(each: float, workflow: WorkflowManifest) -> float:
    """If iterations make more requests than they have steps, their numbers may differ."""
    return each * PACE_FACTOR if each > RELEASE_FACTOR * _measured_steps(workflow) else each


def _measured_steps(workflow: WorkflowManifest) -> int:
    return sum(1 for step in workflow.steps if step.protocol) or 1
