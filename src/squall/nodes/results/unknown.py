"""How much load a lost attempt may have made that nobody counted: the interval [0, u].

The silence begins where its reports end and ends with its last lease. Open models: no
more than 1.05 times the planned starts of the silence are released, and what waited or
ran at the cut may go on. Closed models: its users cannot ask faster than the lowest
latency that was seen; that is an estimate and marked so. What was in flight at the cut
is added in both.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from squall.engine.schedule import StartSchedule
from squall.nodes.results.parts import AttemptPart
from squall.stats.manifest import WorkflowManifest
from squall.stats.record import AttemptRecord
from squall.stats.reports import RowDelta

RELEASE_FACTOR = 1.05
"""Late starts are released at no more than this times the plan."""
LATENCY_FLOOR_S = 0.000_05
"""No exchange over a network was ever faster; used where none was seen."""


class Unknown(NamedTuple):
    requests: int = 0
    iterations: int = 0
    is_estimate: bool = False


class InFlight(NamedTuple):
    """At the last report of a record."""

    requests: int = 0
    iterations: int = 0
    waiting: int = 0
    """Planned starts that were neither made nor dropped."""


def unknown_of(part: AttemptPart, workflow: WorkflowManifest, lowest_s: float) -> Unknown:
    """`lowest_s` is the lowest latency of a step that anyone saw in this workflow."""
    record = part.record
    if record is not None and record.end is not None:
        return Unknown()
    begin_s = cut_of(part)
    end_s = part.lost_at_s if part.silence_end_s is None else part.silence_end_s
    silence_s = max(end_s - begin_s, 0.0)
    profile = workflow.profile
    lanes = max(workflow.connections_per_vu, 1)
    flying = in_flight(record, lanes)
    if profile.is_open:
        schedule = StartSchedule(profile, part.share, part.shares)
        planned = schedule.planned_until(end_s) - schedule.planned_until(begin_s)
        fresh = math.ceil(RELEASE_FACTOR * planned) if planned > 0 else 0
        iterations = fresh + flying.waiting + flying.iterations
        requests = iterations * _requests_each(record, workflow) + flying.requests
        return Unknown(requests, iterations, is_estimate=False)
    seen_s = lowest_s if math.isfinite(lowest_s) else LATENCY_FLOOR_S
    # One more than fits at the lowest latency that was seen: what nobody saw may have been a
    # little faster, and a bound that is too low is wrong.
    turns = math.ceil(silence_s / max(seen_s, LATENCY_FLOOR_S)) + (silence_s > 0.0)
    requests = part.users * lanes * turns + flying.requests
    return Unknown(requests, part.users * turns + flying.iterations, is_estimate=True)


def cut_of(part: AttemptPart) -> float:
    """Up to which moment of the workflow its reports count."""
    record = part.record
    if record is None:
        return part.joined_s
    if record.end is not None:
        return max(record.end.elapsed_s, record.joined_s)
    return max(record.silent_from_s, record.joined_s)


def in_flight(record: AttemptRecord | None, lanes: int = 1) -> InFlight:
    """`lanes` are the requests that one user may have under way at once."""
    if record is None:
        return InFlight()
    requests = iterations = waiting = 0
    for report in record.reports:
        sums = report.requests
        requests += sums.sent - sums.answered - sums.failed
        row, starts = report.iteration, report.starts
        iterations += row.started - row.interrupted - _ended(row)
        waiting += starts.planned - starts.made - starts.dropped
    # What failed before it was sent is in `failed` too, so the difference may be too low.
    busy = record.reports[-1].busy * lanes if record.reports else 0
    return InFlight(max(requests, busy), max(iterations, 0), max(waiting, 0))


def lowest_latency_s(record: AttemptRecord | None) -> float:
    """Of any step; infinity without one."""
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
    return sum(_ended(r.iteration) + r.iteration.interrupted for r in record.reports)


def unfinished(record: AttemptRecord | None) -> int:
    """Iterations that had begun, as far as it was told, and did not end by themselves."""
    if record is None:
        return 0
    return max(sum(r.iteration.started - _ended(r.iteration) for r in record.reports), 0)


def _ended(row: RowDelta) -> int:
    return sum(outcome.count for outcome in row.outcomes)


def _requests_each(record: AttemptRecord | None, workflow: WorkflowManifest) -> int:
    """Requests of one iteration, at most as far as anyone can tell."""
    steps = sum(1 for step in workflow.steps if step.protocol) or 1
    done = finished(record)
    sent = sum(report.requests.sent for report in record.reports) if record is not None else 0
    return max(steps, math.ceil(sent / done) if done else 0)
