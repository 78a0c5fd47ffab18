"""The effects that the steward asks for. The driver carries out each once and reports the outcome.

`tag` names the effect: the steward does not ask for it again while it is under way.
"""

from __future__ import annotations

import msgspec

from squall.cluster.assignments.commands import GateCommand
from squall.cluster.protocol.gates.handover_keys import HandoverNumber
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import JobState


class SubmitCommand(msgspec.Struct, frozen=True):
    """Submit a command to the ledger, then call `submitted(tag, outcome)`; the outcome is None if
    it is not known whether the command was committed."""

    tag: str
    command: GateCommand


class StoreLostPart(msgspec.Struct, frozen=True, kw_only=True):
    """A started part is being given up: make the gates' own record of it durable as a result, then
    call `lost_part_stored(tag, job, part, blob, size)`; the blob is empty if there is no record."""

    tag: str
    job: JobId
    part: int
    handover: HandoverNumber
    datacenter: str


class MergeResults(msgspec.Struct, frozen=True):
    """All parts of a job are over: merge their results, judge once, make the result and the history
    durable, then call `results_merged(tag, job, facts)`."""

    tag: str
    job: JobId
    status: JobState
    reason: str


StewardEffect = SubmitCommand | StoreLostPart | MergeResults
