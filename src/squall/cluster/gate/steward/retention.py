"""Chooses the ended jobs and the idempotency keys of the gates to remove: those whose time is over,
and the oldest of those beyond the number that is kept.

A job stays until all its datacenters have forgotten it, whatever the number (R15).
"""

from __future__ import annotations

from heapq import nsmallest
from itertools import islice

from squall.cluster.assignments.job_rules import may_purge
from squall.cluster.assignments.tables import AssignmentTables
from squall.cluster.gate.timers import GateTimers
from squall.cluster.protocol.job_commands import Purge

PURGE_MAX = 200
"""Jobs or keys in one command, which is bounded: a key and its client's name take up to 1 kB."""


def next_purge(tables: AssignmentTables, timers: GateTimers, group_ms: int) -> Purge | None:
    """Returns the next command, with at most `PURGE_MAX` jobs and keys; None: nothing to remove."""
    ended = [job for job in tables.jobs.values() if job.over]
    due = (job for job in ended if job.purge_ms <= group_ms and may_purge(tables, job))
    jobs = [job.job for job in islice(due, PURGE_MAX)]
    over = min(len(ended) - timers.jobs_kept_max - len(jobs), PURGE_MAX - len(jobs))
    kept = {key: entry.expires_ms for key, entry in tables.keys.items() if entry.expires_ms}
    keys = list(islice((key for key, at in kept.items() if at <= group_ms), PURGE_MAX))
    keys_over = min(len(kept) - timers.keys_kept_max - len(keys), PURGE_MAX - len(keys))
    early: list[object] = []
    if over > 0:
        live = (j for j in ended if j.purge_ms > group_ms and may_purge(tables, j, early=True))
        oldest = nsmallest(over, live, key=lambda job: (job.ended_ms, job.op))
        jobs += [job.job for job in oldest]
        early += oldest
    if keys_over > 0:
        live_keys = ((at, key) for key, at in kept.items() if at > group_ms)
        oldest_keys = [key for _, key in nsmallest(keys_over, live_keys)]
        keys += oldest_keys
        early += oldest_keys
    if not jobs and not keys:
        return None
    return Purge(
        jobs=tuple(jobs),
        keys=tuple(keys),
        key_keep_ms=round(timers.key_retention_s * 1000),
        early=bool(early),
    )
