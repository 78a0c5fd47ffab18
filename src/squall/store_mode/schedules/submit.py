"""Submits the jobs of schedules to the manager of the coordinator's own term.

A job takes the path of a client's submission, without the network. This module separates
refusals that are final from those worth another try.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, cast

from squall.api.errors import SquallError
from squall.cluster.ledger.interface import Digest
from squall.cluster.manager.node import ManagerNode
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import SubmitJob
from squall.cluster.protocol.submission import Submission
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.messages import ErrorCode
from squall.store_mode.schedules.records import RunState

RETRYABLE = (ErrorCode.RETRY_LATER, ErrorCode.NOT_PRIMARY, ErrorCode.OVERLOADED)


class SubmissionRefused(SquallError):
    """The manager would refuse it again."""


class SubmitLater(SquallError):
    """The manager cannot take it now; try again."""


class ObservedJob(NamedTuple):
    """The state of a job in the manager's tables."""

    state: RunState
    """`running` until it has ended."""
    exit_code: int = 0
    reason: str = ""
    result: str = ""


class JobSubmitter(Protocol):
    """What the schedules need of the manager."""

    @property
    def is_open(self) -> bool:
        """Whether the manager takes jobs and has applied its whole log."""
        ...

    async def submit(
        self, key: str, principal: str, submission: Submission, bundle: bytes
    ) -> JobId:
        """The same key gives the same job. Raises `SubmissionRefused` or `SubmitLater`."""
        ...

    def job_of_key(self, key: str, principal: str) -> JobId | None:
        """The job with this key. None means that there is none, if `is_open`."""
        ...

    def look(self, job: JobId) -> ObservedJob | None: ...

    async def result(self, digest: str) -> bytes:
        """Raises `KeyError` if the blob is missing."""
        ...


class ManagerSubmitter:
    """Submits to the `ManagerNode` of this process; see `JobSubmitter`."""

    def __init__(self, manager: ManagerNode) -> None:
        self._manager = manager

    @property
    def is_open(self) -> bool:
        manager = self._manager
        leads = manager.ready.is_set() and manager.director is not None
        return leads and bool(manager.machine.tables.group)

    async def submit(
        self, key: str, principal: str, submission: Submission, bundle: bytes
    ) -> JobId:
        try:
            if submission.bundle:
                await self._manager.blobs.put(bundle)
            message = SubmitJob(key, submission)
            return (await self._manager.clients.accept(message, principal)).job
        except RemoteError as error:
            if error.code in RETRYABLE:
                raise SubmitLater(error.text) from None
            raise SubmissionRefused(error.text or error.code) from None
        except OSError as error:
            raise SubmitLater(str(error)) from None

    def job_of_key(self, key: str, principal: str) -> JobId | None:
        found = self._manager.machine.tables.keys.get((principal, key))
        return None if found is None else found.job

    def look(self, job: JobId) -> ObservedJob | None:
        found = self._manager.machine.tables.jobs.get(job)
        if found is None:
            return None
        state = cast("RunState", found.state) if found.over else "running"
        return ObservedJob(state, found.exit_code, found.reason, found.result)

    async def result(self, digest: str) -> bytes:
        return await self._manager.blobs.get(Digest(digest))
