"""Takes jobs from submission to start: assigns their parts to datacenters, starts all parts
together, and releases reservations that waited too long.

A job of several parts reserves in all its datacenters or in none, and starts when all are ready
(R15). Jobs are served in the order of their creation: a job that waits for the tickets of its
datacenters is not overtaken there by a later one.
"""

from __future__ import annotations

import math

from squall.cluster.assignments.commands import AssignParts, PartChoice, QueueAgain, StartParts
from squall.cluster.assignments.records import GateJobRecord, PartRecord
from squall.cluster.gate.steward.volatile_state import RouteAnswer, RouteQuestion, StewardState
from squall.cluster.group.job_deadlines import longest_run_ms
from squall.cluster.protocol.job_commands import StopJob
from squall.cluster.protocol.timers import Timers

CHECK_AGAIN_S = 0.5
"""How soon a job that waits is checked without a change of its state: health changes outside of the
log."""
PLAN_TIMERS = Timers()
"""The longest leases that a datacenter has by default, those of a group of one."""


def needs_datacenter(part: PartRecord) -> bool:
    """Whether the part has no try that may still start."""
    return part.current is None or (
        not part.current.waits and part.current.state not in ("started", "ended", "lost")
    )


def check_start(state: StewardState, job: GateJobRecord) -> float:
    """Starts a job whose parts are all ready, or releases its reservations after the limit. Returns
    the moment of the next check."""
    final = [p for p in job.parts if p.current is not None and p.current.is_final]
    if final and final[0].current is not None:
        text = f"{final[0].current.datacenter} refused its part: {final[0].current.reason}"
        return _fail(state, job, text, final[0].current.exit_code)
    if any(needs_datacenter(part) for part in job.parts):
        # `assign_waiting` finds a datacenter first; its command makes this job due again.
        return math.inf
    tries = [part.current for part in job.parts if part.current is not None]
    if all(each.state == "ready" for each in tries):
        # The deadline of a job without a timeout: without one, a datacenter that never reports the
        # end of its part would keep the job open for ever.
        run_ms = longest_run_ms(job.submission.manifest, PLAN_TIMERS)
        run_ms += round(state.timers.deadline_margin_s * 1000)
        handovers = tuple(each.handover for each in tries)
        command = StartParts(job=job.job, handovers=handovers, run_ms=run_ms)
        state.submit(f"start {job.job}", command)
        # The outcome of the command causes the next check; the second is only the fallback.
        return state.now + 1.0
    hold_ms = round(state.timers.hold_s * 1000)
    # A new primary gives datacenters the time to answer it.
    unanswered = [each for each in tries if each.state == "assigned"]
    late = [(max(each.assigned_ms, state.began_ms) + hold_ms, each) for each in unanswered]
    ready = [each.ready_ms for each in tries if each.state == "ready"]
    if ready:
        waiting = [each for each in tries if each.state != "ready"]
        late += [(min(ready) + hold_ms, each) for each in waiting]
    gone = [each for each in tries if state.is_unreachable(each.datacenter)]
    if gone:
        # It accepted its part and was never heard again. Nothing was started there (R15).
        text = f"{gone[0].datacenter} is unreachable"
        state.submit(f"again {job.job}", QueueAgain(job=job.job, reason=text))
        return state.now + 1.0
    if not late:
        # In the queue of its datacenters, where no other job waits for it.
        return state.now + CHECK_AGAIN_S
    at_ms, first = min(late, key=lambda each: each[0])
    if state.group_ms < at_ms:
        return min(state.at(at_ms), state.now + CHECK_AGAIN_S)
    does = "does not answer" if first.state == "assigned" else "is not ready"
    text = f"{first.datacenter} {does} after {state.timers.hold_s:g} s"
    state.submit(f"again {job.job}", QueueAgain(job=job.job, reason=text))
    return state.now + 1.0


def assign_waiting(state: StewardState) -> float:
    """Gives datacenters to all jobs that need one, in order. Returns the moment of the next
    check."""
    tables = state.tables
    check_at = math.inf
    # Datacenters that an earlier job of several parts waits for.
    claimed: set[str] = set()
    for name in sorted(tables.active, key=lambda each: tables.jobs[each].op):
        job = tables.jobs[name]
        if job.started_ms or job.stop or tables.is_copied(name):
            continue
        if any(needs_datacenter(part) for part in job.parts):
            try:
                check_at = min(check_at, _assign(state, job, claimed))
            except Exception as error:
                # One job must not keep the others from their datacenters (R3).
                state.fail_job(name, error)
                check_at = min(check_at, state.now + 1.0)
    return check_at


def _assign(state: StewardState, job: GateJobRecord, claimed: set[str]) -> float:
    known, timers = state.job(job.job), state.timers
    if job.holds:
        # Each return to the queue doubles the wait: a job whose parts are never ready together must
        # not keep reserving cores that other jobs could use.
        at = state.at(job.queued_ms + round(timers.again_s(job.holds) * 1000))
        if at > state.now:
            return at
    missing = tuple(part.index for part in job.parts if needs_datacenter(part))
    refused = _refusals(job)
    taken = frozenset(
        part.current.datacenter
        for part in job.parts
        if part.current is not None and part.current.waits
    )
    answer = state.route(RouteQuestion(job=job, parts=missing, refused=refused, taken=taken))
    if not answer.datacenters:
        return _wait_for_route(state, job, answer)
    known.unroutable_since = math.inf
    wait_until = _after_refusal(state, job, missing, answer)
    if wait_until > state.now:
        return _hold_until(state, job, wait_until)
    if len(job.parts) > 1:
        wanted = {*taken, *(name for name, _ in answer.datacenters)}
        tickets = state.tables.tickets
        busy = [n for n in sorted(wanted) if tickets.get(n, job.job) != job.job or n in claimed]
        # A job that waits for tickets claims its datacenters too, so no later job overtakes it.
        claimed |= wanted
        if busy:
            known.waits_for = f"another job of several datacenters is prepared in {', '.join(busy)}"
            return state.now + CHECK_AGAIN_S
    known.waits_for = ""
    choices = tuple(
        PartChoice(
            part=index,
            datacenter=name,
            handover=state.tables.next_handover(job, index, name),
            why=why,
        )
        for index, (name, why) in zip(missing, answer.datacenters, strict=True)
    )
    state.submit(f"assign {job.job}", AssignParts(job=job.job, choices=choices))
    return state.now + 1.0


def _refusals(job: GateJobRecord) -> dict[str, str]:
    """The datacenters that refused a part of the job, with the last reason of each."""
    return {
        tried.datacenter: tried.reason
        for part in job.parts
        for tried in part.tries
        if tried.state == "refused"
    }


def _wait_for_route(state: StewardState, job: GateJobRecord, answer: RouteAnswer) -> float:
    """Keeps a job waiting that no datacenter can run; after a limit it fails with the reason."""
    known = state.job(job.job)
    known.waits_for = answer.reason
    known.unroutable_since = min(known.unroutable_since, state.now)
    if state.now - known.unroutable_since >= state.timers.unroutable_s:
        return _fail(state, job, answer.reason)
    return state.now + CHECK_AGAIN_S


def _after_refusal(
    state: StewardState, job: GateJobRecord, missing: tuple[int, ...], answer: RouteAnswer
) -> float:
    """The moment from which a datacenter that refused a part may be asked again; every refusal
    doubles the wait. A job that was refused too often fails."""
    until = -math.inf
    for index, (name, _) in zip(missing, answer.datacenters, strict=True):
        refused = [
            each
            for each in job.parts[index].tries
            if each.state == "refused" and each.datacenter == name
        ]
        if not refused:
            continue
        if len(job.parts[index].tries) >= state.timers.tries_max:
            tries = len(job.parts[index].tries)
            text = f"{name} refused its part in try {tries}, the last: {refused[-1].reason}"
            return _fail(state, job, text)
        wait_ms = round(state.timers.again_s(len(refused)) * 1000)
        until = max(until, state.at(refused[-1].ended_ms + wait_ms))
        state.job(job.job).waits_for = f"{name} refused it: {refused[-1].reason}"
    return until


def _hold_until(state: StewardState, job: GateJobRecord, asked_at: float) -> float:
    """Decides how long ready parts keep their cores while a refused part waits for `asked_at`. If
    less than half of their hold is left by then, they release the cores now. Otherwise no other job
    could use the cores, and each time the hold would end before the datacenter can answer."""
    tries = [part.current for part in job.parts if part.current is not None]
    ready_ms = [each.ready_ms for each in tries if each.state == "ready"]
    if not ready_ms or asked_at <= state.at(min(ready_ms)) + state.timers.hold_s / 2.0:
        return asked_at
    command = QueueAgain(job=job.job, reason=state.job(job.job).waits_for)
    state.submit(f"again {job.job}", command)
    return state.now + 1.0


def _fail(state: StewardState, job: GateJobRecord, text: str, exit_code: int = 0) -> float:
    command = StopJob(job=job.job, kind="failed", reason=text, exit_code=exit_code)
    state.submit(f"stop {job.job}", command)
    return state.now + 1.0
