"""The commands about whole jobs that the managers' and the gates' logs have in common.

Each is compare-and-set on the state, so that repeating one changes nothing (R13). Fields are only
ever added, with defaults, and with a new version of the commands of both logs.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import JobState


class StopJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="stop"):
    """Stops a job that was cancelled, timed out, was aborted by a threshold, or cannot run. The
    first reason stays; `now` may be added later."""

    job: JobId
    kind: Literal["cancelled", "timeout", "aborted", "failed"]
    reason: str
    now: bool = False
    exit_code: int = 0


class FailJob(msgspec.Struct, frozen=True, kw_only=True, tag="broken"):
    """Ends a job at once because the primary's rules for it raised (R3): what it would do next is
    not known, and no other job may suffer from it."""

    job: JobId
    error: str


class ExtendJob(msgspec.Struct, frozen=True, kw_only=True, tag="extend"):
    """Extends the deadline by `by_ms`, until the sum of all extensions of the job is `cap_ms`. The
    answer holds that sum."""

    job: JobId
    by_ms: int
    cap_ms: int
    by: str = ""


class LeadJobs(msgspec.Struct, frozen=True, kw_only=True, tag="lead"):
    """Names other leaders for these jobs."""

    leaders: tuple[tuple[JobId, str], ...]


class FinishJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="finish"):
    """Sets the one terminal state of a job."""

    job: JobId
    status: JobState
    reason: str = ""
    exit_code: int = 0
    result: str = ""
    result_size: int = 0
    history: str = ""
    history_size: int = 0
    keep_ms: int = 0


class Purge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="purge"):
    """Removes jobs that have ended, and idempotency keys of jobs that were removed."""

    jobs: tuple[JobId, ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    key_keep_ms: int = 0
    early: bool = False
    """There are more than the group keeps: remove them although their retention is not over."""
