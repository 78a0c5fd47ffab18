"""Ends jobs: deadlines, parts of a lost datacenter, the result, the terminal state."""

from __future__ import annotations

import math
from collections.abc import Iterator

from squall.cluster.assignments.commands import LosePart
from squall.cluster.assignments.job_rules import part_over
from squall.cluster.assignments.records import GateJobRecord, PartRecord, PartTry
from squall.cluster.gate.steward.effects import MergeResults, StoreLostPart
from squall.cluster.gate.steward.volatile_state import StewardState
from squall.cluster.group.job_deadlines import deadline_ms, longest_run_ms, timeout_text
from squall.cluster.group.primary.job_end import FINISHED, finish_command
from squall.cluster.protocol.job_commands import StopJob
from squall.cluster.protocol.messages import JobState
from squall.cluster.protocol.timers import Timers

_STOPPED: dict[str, JobState] = {
    "cancelled": "cancelled",
    "timeout": "timeout",
    "failed": "failed",
    "aborted": "completed",
}

PLAN_ALONE = Timers(
    job_margin_s=0.0, stop_grace_s=0.0, outbox_wait_s=0.0, execution_lease_s=0.0, lost_margin_s=0.0
)
"""Timers that add nothing to the length of a plan."""


def check_deadline(state: StewardState, job: GateJobRecord) -> float:
    """Stops a job whose time is over; returns the moment of the next check."""
    limit_ms = deadline_ms(job)
    if limit_ms is None or job.stop:
        return math.inf
    if state.group_ms < limit_ms:
        return state.at(limit_ms)
    command = StopJob(job=job.job, kind="timeout", reason=timeout_text(job))
    state.submit(f"stop {job.job}", command)
    return state.now + 1.0


def check_losses(state: StewardState, job: GateJobRecord) -> float:
    """Gives up started parts whose datacenter is unreachable (R15: Lost(e)): at once if the job
    says so, else after the wait for it. Returns the moment of the next check."""
    check_at = math.inf
    targets = job.submission.targets
    drops = targets.on_loss == "drop" if targets else False
    for part, tried in _running(job):
        check_at = min(check_at, state.now + 1.0)
        # This gate may have begun to lead a moment ago: it has probed the datacenter since its own
        # start, and `is_unreachable` needs as long as a probe may take.
        is_gone = state.is_unreachable(tried.datacenter)
        if is_gone and (drops or _waited_s(state, job, tried) >= state.timers.lost_wait_s):
            _lose(state, job, part, tried)
    return check_at


def _waited_s(state: StewardState, job: GateJobRecord, tried: PartTry) -> float:
    """How long the gates have waited for a silent datacenter. Its part may go on to the end of its
    plan, and the datacenter can deliver that work later."""
    end_ms = job.started_ms + longest_run_ms(job.submission.manifest, PLAN_ALONE)
    end_ms += job.extension_ms
    if job.stop:
        end_ms = min(end_ms, job.stop_ms)
    # Both must have lasted so long: the time since the plan's end, and the silence of the
    # datacenter. One that fell silent after a long run still gets the whole wait.
    return min((state.group_ms - end_ms) / 1000.0, state.silent_s(tried.datacenter))


def _running(job: GateJobRecord) -> Iterator[tuple[PartRecord, PartTry]]:
    for part in job.parts:
        if part.current is not None and part.current.state == "started":
            yield part, part.current


def _lose(state: StewardState, job: GateJobRecord, part: PartRecord, tried: PartTry) -> None:
    stored = state.job(job.job).lost.get(part.index)
    # The record is durable before a command names it (R9). A new primary does not know of a stored
    # record and stores it again, which is harmless.
    if stored is None:
        tag = f"cut {job.job} {part.index}"
        state.ask(
            StoreLostPart(
                tag=tag,
                job=job.job,
                part=part.index,
                handover=tried.handover,
                datacenter=tried.datacenter,
            )
        )
        return
    blob, size = stored
    command = LosePart(
        job=job.job,
        part=part.index,
        handover=tried.handover,
        reason=f"{tried.datacenter} is unreachable",
        result=blob,
        result_size=size,
    )
    state.submit(f"lose {job.job} {part.index}", command)


def check_end(state: StewardState, job: GateJobRecord) -> float:
    """Once every part is over: merges the results, then commits the one terminal state."""
    if not all(part_over(job, part) for part in job.parts):
        return math.inf
    status = final_status(job)
    merged = state.job(job.job).merged
    if merged is None:
        state.ask(MergeResults(f"result {job.job}", job.job, status, final_reason(job)))
        return state.now + 1.0
    timers = state.timers
    keep_s = timers.retention_s if status in FINISHED else timers.retention_failed_s
    command = finish_command(job, status, final_reason(job), merged, keep_s)
    state.submit(f"finish {job.job}", command)
    return state.now + 1.0


def final_status(job: GateJobRecord) -> JobState:
    """The one terminal state. An abort by a threshold is an end in order."""
    if job.stop in _STOPPED:
        return _STOPPED[job.stop]
    ends: list[JobState] = [_end(part) for part in job.parts]
    if len(set(ends)) == 1:
        return ends[0]
    return "partial" if any(each in FINISHED for each in ends) else "failed"


def _end(part: PartRecord) -> JobState:
    """How a part ended; a lost one counts by its cut record."""
    if part.current is None or part.current.state != "ended":
        return "partial" if part.current is not None and part.current.result else "failed"
    return part.current.outcome or "failed"


def final_reason(job: GateJobRecord) -> str:
    """What stopped the job; of a job that ran to its end, the first part that did not complete."""
    if job.reason:
        return job.reason
    for part in job.parts:
        tried = part.current
        if tried is not None and _end(part) != "completed":
            text = tried.reason or f"its part is {tried.outcome or tried.state}"
            return text if tried.datacenter in text else f"{tried.datacenter}: {text}"
    return ""
