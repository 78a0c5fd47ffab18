"""The keys of jobs, shares and attempts. Plain data, ordered, the same on every node."""

from __future__ import annotations

from typing import NewType

import msgspec

JobId = NewType("JobId", str)
"""The short id of the group and the op of the job's creation: `b3f9-1042`. A group that was
recovered or restored has another id, because its log gives the same op numbers again (R1)."""
Attempt = NewType("Attempt", int)
"""Counts from 1; a share runs at most once per attempt."""


class ShareKey(msgspec.Struct, frozen=True, order=True, array_like=True, cache_hash=True):
    """The part of a workflow that one core process runs: share k of n."""

    job: JobId
    workflow: str
    share: int


class AttemptKey(msgspec.Struct, frozen=True, order=True, array_like=True, cache_hash=True):
    """One attempt at a share: what a worker runs and reports."""

    job: JobId
    workflow: str
    share: int
    attempt: Attempt

    @property
    def of(self) -> ShareKey:
        return ShareKey(self.job, self.workflow, self.share)

    def __str__(self) -> str:
        return f"{self.job}/{self.workflow}/{self.share}#{self.attempt}"
