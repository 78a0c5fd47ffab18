"""The effects that the director asks for. The driver carries out each once and reports the outcome.

`tag` names the effect: the director does not ask for it again while it is under way. `Push`
has no tag and no outcome.
"""

from __future__ import annotations

import msgspec

from squall.cluster.datacenter.commands import Command
from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.protocol.messages import JobState


class Submit(msgspec.Struct, frozen=True):
    """Submit a command to the ledger, then call `submitted(tag, outcome)`; the outcome is None if
    it is not known whether the command was committed."""

    tag: str
    command: Command


class StoreCut(msgspec.Struct, frozen=True):
    """An attempt is being declared lost: make the last cumulative record that telemetry brought
    durable, then call `cut_stored(tag, key, facts)`, with None if there is no record."""

    tag: str
    key: AttemptKey


class TakeRecord(msgspec.Struct, frozen=True):
    """A worker holds a final record: make its blob durable on this member, read it, then call
    `record_arrived(tag, facts)`."""

    tag: str
    key: AttemptKey
    node: str
    digest: str
    size: int


class CollectContext(msgspec.Struct, frozen=True):
    """A workflow is over: read the ends of these records, in this order, and `collect` them, as
    bytes up to CONTEXT_INLINE_MAX, else as a blob. Then call `context_collected(...)`."""

    tag: str
    job: JobId
    workflow: str
    records: tuple[str, ...]
    """Digests, ordered by share and attempt."""


class StoreValues(msgspec.Struct, frozen=True):
    """The values for a workflow are too large to travel in every preparation: decode the
    contexts (bytes, or the blob of that digest), apply `handed_over`, store the encoded
    `SpecValues` as a blob, then call `values_stored(...)`."""

    tag: str
    job: JobId
    workflow: str
    contexts: tuple[tuple[str, bytes, str], ...]
    """(workflow, inline context, digest of its blob)."""


class AssembleResult(msgspec.Struct, frozen=True):
    """A job is over: make its result and its history durable, then call
    `result_assembled(...)`. See `committed_parts.job_parts`."""

    tag: str
    job: JobId
    status: JobState
    reason: str


class Push(msgspec.Struct, frozen=True):
    """Ask this worker for a session at once, if there is a connection to it."""

    node: str


DirectorEffect = (
    Submit | StoreCut | TakeRecord | CollectContext | StoreValues | AssembleResult | Push
)


class ContextFacts(msgspec.Struct, frozen=True):
    """What a workflow exports: inline, or as a blob."""

    inline: bytes = b""
    blob: str = ""
    size: int = 0


class ValuesFacts(msgspec.Struct, frozen=True):
    """The blob of the values for a workflow."""

    blob: str
    size: int
