"""Checks a submission before a command with it is proposed, the same way for managers and gates.

A submission is untrusted input (R3): everything in it is checked here, and once more when the
command is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from squall.api.errors import SquallError
from squall.cluster.group.committer import RETRY_AFTER_S, Committer
from squall.cluster.group.job_tables import GroupJob, HoldsJobs, JobTables
from squall.cluster.group.sealed_secrets import SecretSealer
from squall.cluster.ledger.interface import Digest, Ledger
from squall.cluster.protocol.messages import SubmitJob
from squall.cluster.protocol.submission import Submission, fingerprint
from squall.cluster.protocol.submission_limits import key_fault, submission_fault
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.messages import ErrorCode
from squall.engine.plan.layers import topological_layers
from squall.stats.thresholds.binding import bind_all

WAITING_RETRY_S = 2.0


@dataclass(frozen=True)
class CheckedSubmission:
    """A submission as the log stores it."""

    submission: Submission
    """Without secrets, which are in `sealed`."""
    sealed: bytes
    fingerprint: str
    layers: tuple[tuple[str, ...], ...]
    """The names of the workflows by layer, in the order in which layers run."""


class SubmissionCheck:
    """Checks submissions against the state of this member's group."""

    def __init__(
        self,
        *,
        machine: HoldsJobs[GroupJob],
        ledger: Ledger,
        committer: Committer[Any],
        sealer: SecretSealer,
        queue_max: int,
        datacenters: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """`datacenters` are those that a threshold may name."""
        self._datacenters = datacenters
        self._machine = machine
        self._ledger = ledger
        self._committer = committer
        self._sealer = sealer
        self._queue_max = queue_max

    async def checked(self, message: SubmitJob, principal: str) -> CheckedSubmission:
        """Returns when the bundle is durable on a quorum. Raises RemoteError."""
        submission = message.submission
        _check_content(message, self._datacenters())
        if submission.bundle and not await self._ensured(Digest(submission.bundle)):
            raise RemoteError(ErrorCode.NOT_FOUND, "offer the bundle first")
        names = {w.name: w.depends for w in submission.manifest.workflows}
        try:
            layers = topological_layers(names, "workflow")
        except SquallError as error:
            raise RemoteError(ErrorCode.BAD_MESSAGE, str(error)) from None
        tables = self._machine.tables
        if not tables.group:
            # The first command of a group names it. A job that came before would be rejected, which
            # the client would take for an answer about its key.
            text = "the group is not configured yet"
            raise RemoteError(ErrorCode.RETRY_LATER, text, retry_after_s=RETRY_AFTER_S)
        check_room(tables, principal, message.key, self._queue_max)
        stored, sealed = self._sealed(submission, f"{principal}/{message.key}")
        return CheckedSubmission(
            submission=stored,
            sealed=sealed,
            fingerprint=fingerprint(submission),
            layers=tuple(tuple(layer) for layer in layers),
        )

    async def _ensured(self, bundle: Digest) -> bool:
        """Whether a member has the bundle: the client may have offered it to the member that
        relays for it. Returns when a quorum has it, because the command names it (R9)."""
        try:
            return await self._ledger.blobs.ensure(bundle)
        except SquallError as error:
            raise self._committer.answer(error) from None

    def _sealed(self, submission: Submission, bound_to: str) -> tuple[Submission, bytes]:
        options = submission.options
        if not options.secrets:
            return submission, b""
        sealed = self._sealer.seal(options.secrets, bound_to)
        bare = msgspec.structs.replace(options, secrets={})
        return msgspec.structs.replace(submission, options=bare), sealed


class QueueFull(RemoteError):
    """The group takes no new job now."""


def check_room(tables: JobTables[GroupJob], principal: str, key: str, queue_max: int) -> None:
    """Refuses a new job while the queue is full. A repeated submission is let through: its job
    is in the queue already (R13)."""
    if (principal, key) in tables.keys:
        return
    waiting = sum(tables.jobs[job].state == "queued" for job in tables.active)
    if waiting >= queue_max:
        text = (
            f"the queue is full: {waiting:,} jobs wait, at most {queue_max:,} are allowed; "
            "submit again later"
        )
        raise QueueFull(ErrorCode.OVERLOADED, text, retry_after_s=WAITING_RETRY_S)


def _check_content(message: SubmitJob, datacenters: Collection[str]) -> None:
    submission = message.submission
    fault = key_fault(message.key) or submission_fault(submission)
    if fault:
        raise RemoteError(ErrorCode.BAD_MESSAGE, fault)
    try:
        # The job's leader judges them while the job runs. Apply does not parse them: the grammar
        # grows, and members of two versions would disagree.
        bind_all(submission.manifest, submission.options.thresholds, datacenters)
    except SquallError as error:
        raise RemoteError(ErrorCode.BAD_MESSAGE, str(error)) from None
