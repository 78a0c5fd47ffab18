"""What managers ask each other about jobs that one of them leads.

The primary asks for what only the leader has: the telemetry of a lost attempt, and what
the thresholds said. The leader tells the primary when a threshold ends a job, again and
again until the log says that it is being stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from squall.ledger.interface import Ledger, NotPrimary
from squall.nodes.datacenter.machine import Datacenter
from squall.nodes.group_messages import (
    AbortHeard,
    AskCut,
    AskJudged,
    Cut,
    Judged,
    TellAbort,
)
from squall.nodes.identity import JobId
from squall.nodes.manager.clients import Committer
from squall.nodes.manager.copies import Copies
from squall.nodes.manager.director import Director
from squall.nodes.manager.job_leaders import JobLeaders
from squall.nodes.manager.leader import JobLeader
from squall.runtime.interfaces import Clock
from squall.runtime.tasks import TaskRunner
from squall.stats.record_builder import encode_record
from squall.wire.dispatch import Handlers, Incoming
from squall.wire.errors import RemoteError

TELL_AGAIN_S = 0.5


class LeaderApi:
    def __init__(
        self,
        *,
        machine: Datacenter,
        ledger: Ledger,
        committer: Committer,
        leaders: JobLeaders,
        clock: Clock,
        tasks: TaskRunner,
        director: Callable[[], Director | None],
        on_heard: Callable[[], None],
    ) -> None:
        self._machine = machine
        self._ledger = ledger
        self._committer = committer
        self._leaders = leaders
        self._clock = clock
        self._tasks = tasks
        self._director = director
        self._on_heard = on_heard

    def register(self, handlers: Handlers, leader: JobLeader, copies: Copies) -> None:
        def cut(message: AskCut, incoming: Incoming) -> Cut:
            record = copies.best(message.key)
            return Cut(encode_record(record) if record is not None else b"")

        def judged(message: AskJudged, incoming: Incoming) -> Judged:
            return Judged(leader.judged(message.job))

        handlers.on(AskCut, cut)
        handlers.on(AskJudged, judged)
        handlers.on(TellAbort, self._heard)

    def abort(self, job: JobId, text: str) -> None:
        """A threshold of a job that is led here ends it."""
        self._tasks.start(f"abort {job}", self._tell(job, text), group="leader")

    async def _tell(self, job: JobId, text: str) -> None:
        while True:
            record = self._machine.tables.jobs.get(job)
            if record is None or record.over or record.stop or not self._leaders.leads(record):
                return
            if not self._take(job, text):
                with contextlib.suppress(RemoteError):
                    await self._leaders.relay(TellAbort(job, text))
            await self._clock.sleep(TELL_AGAIN_S)

    def _heard(self, message: TellAbort, incoming: Incoming) -> AbortHeard:
        if not self._take(message.job, message.text):
            raise self._committer.answer(NotPrimary(self._ledger.primary))
        return AbortHeard()

    def _take(self, job: JobId, text: str) -> bool:
        """False: this member does not lead the group."""
        director = self._director()
        if director is None or not self._ledger.is_primary:
            return False
        director.abort(job, text)
        self._on_heard()
        return True
