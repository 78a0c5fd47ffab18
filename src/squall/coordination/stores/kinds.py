"""The kinds of records and streams that belong to the library: one table for the stores, for the
checks of what an application writes, for the alerts and for the reference pages.

The first part of a key is its kind. An application uses any other kind for its own records.
"""

from __future__ import annotations

import msgspec

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind. `kept_s` is how long a record is kept after its last write, or a stream after its
    last append; None without an end."""

    key: str
    holds: str
    kept_s: float | None
    is_stream: bool = False
    must_end: bool = True
    """The store refuses a record of this kind without an expiry."""
    per_work: bool = False
    """Their number follows the work that is done, not the number of members: many are no sign of
    trouble, and `TooManyKeys` does not count them."""
    is_reserved: bool = True
    """Only the library writes it."""


KINDS: dict[str, Kind] = {
    "leader": Kind(key="leader", holds="the lease and the epoch", kept_s=None, must_end=False),
    "meta": Kind(
        key="meta",
        holds="schema, environment, and when each signing key was first seen",
        kept_s=None,
        must_end=False,
    ),
    "refused": Kind(
        key="refused/<environment>",
        holds="the last member that may not come back because of its environment",
        kept_s=10 * MINUTE_S,
    ),
    "secret": Kind(
        key="secret",
        holds="the secret of an embedded store (memory, SQLite) to which none was given",
        kept_s=None,
        must_end=False,
    ),
    "heartbeat": Kind(key="heartbeat/<member>", holds="the last heartbeat", kept_s=15 * MINUTE_S),
    # A day more than a tombstone, and refreshed daily: so a boot number is never given twice.
    "member": Kind(
        key="member/<member>", holds="the registration of an id and its boot", kept_s=8 * DAY_S
    ),
    "tombstone": Kind(key="tombstone/<member>", holds="the death of a boot", kept_s=7 * DAY_S),
    "warning": Kind(
        key="warning/<member>", holds="the warnings about a silent member", kept_s=5 * MINUTE_S
    ),
    "state": Kind(key="state/<member>", holds="its open waits", kept_s=HOUR_S),
    "signal": Kind(
        key="signal/<receiver>", holds="the inbox of a member", kept_s=DAY_S, is_stream=True
    ),
    "ack": Kind(
        key="ack/<sender>/<signal>", holds="an acknowledgment", kept_s=HOUR_S, per_work=True
    ),
    "idempotency": Kind(
        key="idempotency/<receiver>/<signal>",
        holds="the mark of a delivered signal; outlives the signal by an hour",
        kept_s=25 * HOUR_S,
        per_work=True,
    ),
    "quarantine": Kind(
        key="quarantine/<receiver>/<signal>", holds="a refused signal or ticket", kept_s=HOUR_S
    ),
    "durations": Kind(
        key="durations/<task type>", holds="how long waits of a type took", kept_s=7 * DAY_S
    ),
    "queued": Kind(
        key="queued/<queue>",
        holds="tickets as they were enqueued",
        kept_s=30 * DAY_S,
        is_stream=True,
    ),
    "ready": Kind(
        key="ready/<queue>",
        holds="tickets that workers may take",
        kept_s=30 * DAY_S,
        is_stream=True,
    ),
    "deadletter": Kind(
        key="deadletter/<queue>",
        holds="tickets that failed too often",
        kept_s=30 * DAY_S,
        is_stream=True,
    ),
    "final": Kind(
        key="final/<queue>/<ticket>", holds="how a ticket ended", kept_s=DAY_S, per_work=True
    ),
    "dedup": Kind(
        key="dedup/<queue>/<hash>", holds="the ticket of a dedup id", kept_s=DAY_S, per_work=True
    ),
    "payload": Kind(
        key="payload/<queue>/<ticket>",
        holds="a payload above 256 KiB",
        kept_s=30 * DAY_S,
        per_work=True,
    ),
    "late": Kind(
        key="late/<queue>/<ticket>/<attempt>",
        holds="a result that came too late",
        kept_s=DAY_S,
        per_work=True,
    ),
    "schedules": Kind(
        key="schedules", holds="all jobs of the scheduler", kept_s=366 * DAY_S, must_end=False
    ),
    "run": Kind(
        key="run/<job>/<due time>",
        holds="one run of a job",
        kept_s=7 * DAY_S,
        must_end=False,
        per_work=True,
    ),
    "runs": Kind(
        key="runs/<job>", holds="the last 50 runs of a job", kept_s=366 * DAY_S, must_end=False
    ),
    "orders": Kind(
        key="orders", holds="runs that operators ordered", kept_s=7 * DAY_S, is_stream=True
    ),
    "sweeps": Kind(key="sweeps", holds="the progress of `Ttl`", kept_s=7 * DAY_S, must_end=False),
    "archive": Kind(
        key="archive/<key>",
        holds="records that `Ttl` archived; yours to read and to remove",
        kept_s=30 * DAY_S,
        must_end=False,
        per_work=True,
        is_reserved=False,
    ),
    "cleanup": Kind(key="cleanup/guard, cleanup/result", holds="the last cleanup", kept_s=DAY_S),
    "probe": Kind(key="probe/<id>", holds="the test of the store at a start", kept_s=10 * MINUTE_S),
}

ENDING_KINDS = frozenset(
    name for name, kind in KINDS.items() if kind.must_end and not kind.is_stream
)
"""Kinds of records that must have an expiry."""
STREAM_KINDS = tuple(name for name, kind in KINDS.items() if kind.is_stream)
"""Kinds of streams."""
RESERVED_KINDS = frozenset(name for name, kind in KINDS.items() if kind.is_reserved)
"""Kinds that an application may read but not write."""
WORK_KINDS = frozenset(name for name, kind in KINDS.items() if kind.per_work)
"""Kinds whose number follows the work that is done."""


def kept_s(kind: str) -> float:
    """How long a record of a kind that ends is kept."""
    found = KINDS[kind].kept_s
    assert found is not None, kind
    return found
