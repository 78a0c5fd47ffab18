"""The records about jobs that the managers' and the gates' state have in common.

Records are immutable: a change makes a new one, so that a captured state stays as it was. Times in
`..._ms` are on the group's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import JobState
from squall.engine.load_change import AppliedChange

TERMINAL: tuple[JobState, ...] = ("completed", "partial", "failed", "cancelled", "timeout")
ROWS_PER_SLICE = 64
StopKind = Literal["", "cancelled", "timeout", "aborted", "failed"]
"""Why a job or workflow is being stopped; "" while it is not."""
EVENTS_MAX = 400
"""Events of a job: the first and the last are kept, those between are counted and dropped."""
ADJUSTMENTS_MAX = 200


class Adjustment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The latest adjustment of a workflow's load (R16)."""

    adjust_seq: int = 0
    paused: bool = False
    rate_per_s: float | None = None
    vus: int | None = None


class AdjustEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One adjustment, as it was requested."""

    at_ms: int
    workflow: str
    paused: bool | None = None
    rate_per_s: float | None = None
    vus: int | None = None
    by: str = ""
    request_id: str = ""
    adjust_seq: int = 0

    def applied(self, began_ms: int) -> AppliedChange:
        """This change in the time of a job that began then; a job that waited had it from its
        beginning."""
        return AppliedChange(
            workflow=self.workflow,
            at_s=max(self.at_ms - began_ms, 0) / 1000.0,
            paused=self.paused,
            rate_per_s=self.rate_per_s,
            vus=self.vus,
            by=self.by,
        )


class KeyEntry(msgspec.Struct, frozen=True, array_like=True):
    """The job that a client's idempotency key created; kept for a day longer than the job (R13)."""

    fingerprint: str
    job: JobId
    expires_ms: int = 0
    """0 while the job exists."""


class JobEvent(msgspec.Struct, frozen=True, array_like=True):
    at_ms: int
    text: str


# The rows of a snapshot of either state.


class KeyRow(msgspec.Struct, frozen=True, array_like=True, tag="key"):
    principal: str
    key: str
    row: KeyEntry


class EventsRow(msgspec.Struct, frozen=True, array_like=True, tag="events"):
    job: JobId
    row: tuple[JobEvent, ...]


def slices_of(
    head: msgspec.Struct, rows: Iterable[msgspec.Struct], job_row: type[msgspec.Struct]
) -> Iterator[bytes]:
    """A snapshot in pieces of bounded size: its head, then its rows."""
    yield msgspec.msgpack.encode(head)
    piece: list[msgspec.Struct] = []
    for row in rows:
        piece.append(row)
        # A job record may be large, so it ends its piece.
        if len(piece) >= ROWS_PER_SLICE or isinstance(row, job_row):
            yield msgspec.msgpack.encode(piece)
            piece = []
    if piece:
        yield msgspec.msgpack.encode(piece)
