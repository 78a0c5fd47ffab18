"""What the director wants done. The driver does each once and tells how it went.

`tag` names the errand: nothing is asked for twice while its tag is out. `Push` has none
and needs no answer.
"""

from __future__ import annotations

import msgspec

from squall.nodes.datacenter.commands import Command
from squall.nodes.identity import AttemptKey, JobId
from squall.nodes.messages import JobState


class Submit(msgspec.Struct, frozen=True):
    """Submit to the ledger, then `submitted(tag, outcome)`; None if it is not known to be
    committed."""

    tag: str
    command: Command


class StoreCut(msgspec.Struct, frozen=True):
    """An attempt is being declared lost: store the last cumulative record of it that
    telemetry brought, durably, then `cut_stored(tag, key, facts)`; None if there is none."""

    tag: str
    key: AttemptKey


class TakeRecord(msgspec.Struct, frozen=True):
    """A worker holds a final record: make its blob durable here, read it, then
    `record_arrived(tag, facts)`."""

    tag: str
    key: AttemptKey
    node: str
    digest: str
    size: int


class CollectContext(msgspec.Struct, frozen=True):
    """A workflow is over: read the ends of these records, in this order, `collect` them;
    up to CONTEXT_INLINE_MAX as bytes, else as a blob. Then `context_collected(...)`."""

    tag: str
    job: JobId
    workflow: str
    records: tuple[str, ...]
    """Digests."""


class StoreValues(msgspec.Struct, frozen=True):
    """What is handed over to a workflow is too large to travel in every preparation:
    decode the contexts (bytes, or the blob of that digest), call `handed_over`, store the
    encoded `SpecValues` as a blob, then `values_stored(...)`."""

    tag: str
    job: JobId
    workflow: str
    contexts: tuple[tuple[str, bytes, str], ...]
    """(workflow, inline context, digest of its blob)."""


class AssembleResult(msgspec.Struct, frozen=True):
    """A job is over: make its result and its history durable, then
    `result_assembled(...)`. See `views_parts.job_parts`."""

    tag: str
    job: JobId
    status: JobState
    reason: str


class Push(msgspec.Struct, frozen=True):
    """Send `SessionPush` to this worker, if there is a connection."""

    node: str


Effect = Submit | StoreCut | TakeRecord | CollectContext | StoreValues | AssembleResult | Push


class ContextFacts(msgspec.Struct, frozen=True):
    inline: bytes = b""
    blob: str = ""
    size: int = 0


class ValuesFacts(msgspec.Struct, frozen=True):
    blob: str
    size: int


class ResultFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The durable blobs of a job's end. Empty digests where a blob could not be made."""

    result: str = ""
    size: int = 0
    exit_code: int = 0
    history: str = ""
    history_size: int = 0
    reason: str = ""
    """Replaces the job's own, if not empty."""
