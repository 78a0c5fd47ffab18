"""The end of a job: its result and history become durable, then a command sets its state."""

from __future__ import annotations

from collections.abc import Awaitable

import msgspec

from squall.api.errors import ExitCode, SquallError
from squall.cluster.group.job_tables import GroupJob
from squall.cluster.ledger.interface import Blobs
from squall.cluster.protocol.job_commands import FinishJob
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import JobState
from squall.cluster.results.job_result import JobResult, encode_result, outcome_of
from squall.runtime.log import Log

FINISHED: tuple[JobState, ...] = ("completed", "partial")


class JobEndFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The durable blobs of a job's end. A digest is empty if its blob could not be made."""

    result: str = ""
    size: int = 0
    exit_code: int = 0
    history: str = ""
    history_size: int = 0
    reason: str = ""
    """Replaces the reason of the job, if not empty."""


def finish_command(
    job: GroupJob, status: JobState, reason: str, facts: JobEndFacts, keep_s: float
) -> FinishJob:
    return FinishJob(
        job=job.job,
        status=status,
        reason=facts.reason or reason,
        exit_code=facts.exit_code or job.exit_code,
        result=facts.result,
        result_size=facts.size,
        history=facts.history,
        history_size=facts.history_size,
        keep_ms=round(keep_s * 1000),
    )


async def stored_end(blobs: Blobs, result: JobResult, events: object) -> JobEndFacts:
    """Makes the result and the history of a job durable."""
    data = encode_result(result)
    history = msgspec.msgpack.encode(events)
    return JobEndFacts(
        result=await blobs.put(data),
        size=len(data),
        exit_code=int(result.refusal_code or outcome_of(result).exit_code),
        history=await blobs.put(history),
        history_size=len(history),
    )


async def end_or_reason(
    job: JobId, end: Awaitable[JobEndFacts], what_failed: str, log: Log
) -> JobEndFacts:
    """A job ends even if its result cannot be made; its reason says so then (R3)."""
    try:
        return await end
    except (SquallError, OSError):
        raise
    except Exception as error:
        log.error("result_failed", job=job, error=error)
        reason = f"internal error: {what_failed} ({error})"
        return JobEndFacts(reason=reason, exit_code=int(ExitCode.INTERNAL))
