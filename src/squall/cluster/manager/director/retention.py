"""Chooses the ended jobs and the idempotency keys to remove: those whose time is over, and the
oldest of those beyond the number that is kept. The number bounds the state of the group, whatever
clients submit; the time alone does not.

Pure. It never chooses a job that is not over or whose result the gates do not have yet, nor the key
of a job that still exists.
"""

from __future__ import annotations

from heapq import nsmallest
from itertools import islice

from squall.cluster.datacenter.commands import Purge, PurgeGated
from squall.cluster.datacenter.tables import Tables
from squall.cluster.protocol.timers import Timers

PURGE_MAX = 200
"""Jobs or keys in one command, which is bounded: a key and its client's name take up to 1 kB."""


def next_purge(tables: Tables, timers: Timers, group_ms: int) -> Purge | None:
    """Returns the next command, with at most `PURGE_MAX` jobs and keys; None: nothing to remove."""
    ended = [job for job in tables.jobs.values() if job.over and not job.undelivered]
    jobs = [job.job for job in islice((j for j in ended if j.purge_ms <= group_ms), PURGE_MAX)]
    over = min(len(ended) - timers.jobs_kept_max - len(jobs), PURGE_MAX - len(jobs))
    kept = {key: entry.expires_ms for key, entry in tables.keys.items() if entry.expires_ms}
    keys = list(islice((key for key, at in kept.items() if at <= group_ms), PURGE_MAX))
    keys_over = min(len(kept) - timers.keys_kept_max - len(keys), PURGE_MAX - len(keys))
    if over > 0:
        live = (job for job in ended if job.purge_ms > group_ms)
        jobs += [job.job for job in nsmallest(over, live, key=lambda job: (job.ended_ms, job.op))]
    if keys_over > 0:
        live_keys = ((at, key) for key, at in kept.items() if at > group_ms)
        keys += [key for _, key in nsmallest(keys_over, live_keys)]
    if not jobs and not keys:
        return None
    return Purge(
        jobs=tuple(jobs),
        keys=tuple(keys),
        key_keep_ms=round(timers.key_retention_s * 1000),
        early=over > 0 or keys_over > 0,
    )


def next_gated_purge(tables: Tables, group_ms: int) -> PurgeGated | None:
    """Returns the command that removes the records of forgotten jobs of the gates."""
    over = (
        job for job, each in tables.gated.items() if each.closed and each.expires_ms <= group_ms
    )
    jobs = tuple(islice(over, PURGE_MAX))
    return PurgeGated(jobs=jobs) if jobs else None
