"""Names of the things that a cluster runs. Plain data, ordered, the same on every node."""

from __future__ import annotations

from typing import NewType

import msgspec

JobId = NewType("JobId", str)
"""Short id of the group and the op number of the job's creation: `k3f9-1042`."""
Attempt = NewType("Attempt", int)
"""From 1; a share runs at most once per attempt."""


class ShareKey(msgspec.Struct, frozen=True, order=True, array_like=True, cache_hash=True):
    """One core process's part of one workflow: share k of n, as the plan numbered it."""

    job: JobId
    workflow: str
    share: int


class AttemptKey(msgspec.Struct, frozen=True, order=True, array_like=True, cache_hash=True):
    """What a worker runs, reports and is told to stop by."""

    job: JobId
    workflow: str
    share: int
    attempt: Attempt

    @property
    def of(self) -> ShareKey:
        return ShareKey(self.job, self.workflow, self.share)

    def __str__(self) -> str:
        return f"{self.job}/{self.workflow}/{self.share}#{self.attempt}"
