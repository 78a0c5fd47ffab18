"""Where the coordinator's schedules hand in their jobs: the manager of the same term.

It is the way that a client's submission takes, without the network between. What is
refused for good and what is worth another try are told apart here.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, cast

from squall.api.errors import SquallError
from squall.ledger.interface import Digest
from squall.nodes.agent.schedules_records import RunState
from squall.nodes.identity import JobId
from squall.nodes.manager.node import ManagerNode
from squall.nodes.messages import SubmitJob
from squall.nodes.submission import Submission
from squall.wire.errors import RemoteError
from squall.wire.messages import ErrorCode

LATER = (ErrorCode.RETRY_LATER, ErrorCode.NOT_PRIMARY, ErrorCode.OVERLOADED)


class HandInRefused(SquallError):
    """It would be refused again."""


class NotNow(SquallError):
    """Worth another try."""


class SeenJob(NamedTuple):
    """A job as the log has it."""

    state: RunState
    """`running` until it is over."""
    exit_code: int = 0
    reason: str = ""
    result: str = ""


class Desk(Protocol):
    @property
    def is_open(self) -> bool:
        """Whether jobs are taken, and what is known of them is complete."""
        ...

    async def hand_in(
        self, key: str, principal: str, submission: Submission, bundle: bytes
    ) -> JobId:
        """The same key gives the same job. `HandInRefused` or `NotNow`."""
        ...

    def known(self, key: str, principal: str) -> JobId | None:
        """The job that was made of this key. None while the desk is open: there is none."""
        ...

    def look(self, job: JobId) -> SeenJob | None: ...

    async def result(self, digest: str) -> bytes:
        """`KeyError` if it is not there."""
        ...


class ManagerDesk:
    """See `Desk`."""

    def __init__(self, manager: ManagerNode) -> None:
        self._manager = manager

    @property
    def is_open(self) -> bool:
        manager = self._manager
        leads = manager.ready.is_set() and manager.director is not None
        return leads and bool(manager.machine.tables.group)

    async def hand_in(
        self, key: str, principal: str, submission: Submission, bundle: bytes
    ) -> JobId:
        try:
            if submission.bundle:
                await self._manager.blobs.put(bundle)
            message = SubmitJob(key, submission)
            return (await self._manager.clients.accept(message, principal)).job
        except RemoteError as error:
            if error.code in LATER:
                raise NotNow(error.text) from None
            raise HandInRefused(error.text or error.code) from None
        except OSError as error:
            raise NotNow(str(error)) from None

    def known(self, key: str, principal: str) -> JobId | None:
        found = self._manager.machine.tables.keys.get((principal, key))
        return None if found is None else found.job

    def look(self, job: JobId) -> SeenJob | None:
        found = self._manager.machine.tables.jobs.get(job)
        if found is None:
            return None
        state = cast("RunState", found.state) if found.over else "running"
        return SeenJob(state, found.exit_code, found.reason, found.result)

    async def result(self, digest: str) -> bytes:
        return await self._manager.blobs.get(Digest(digest))
