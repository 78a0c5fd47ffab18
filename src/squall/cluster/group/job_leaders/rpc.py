"""The requests between members about jobs that one of them leads.

The primary asks for what only the leader has: the telemetry of a lost attempt, and the
results of the thresholds. The leader reports to the primary when a threshold ends a job, and
repeats that until the log says that the job is being stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from squall.cluster.group.committer import Committer
from squall.cluster.group.job_leaders.choice import JobLeaders
from squall.cluster.group.job_tables import GroupJob, HoldsJobs
from squall.cluster.ledger.interface import Ledger, NotPrimary
from squall.cluster.protocol.group_messages import (
    AbortReceived,
    AskCut,
    AskJudged,
    Cut,
    Judged,
    ReportAbort,
)
from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.runtime.backoff import Backoff
from squall.runtime.interfaces import Clock
from squall.runtime.tasks import TaskRunner
from squall.stats.thresholds.judge import ThresholdResult

ABORT_RETRY = Backoff(first_s=0.5, factor=1.0)
"""A job whose threshold failed makes load until the abort is committed, so a lost report is
repeated soon. There is one such report per job, so the interval need not grow."""


class JobLeaderRpc:
    """Handles and sends these requests."""

    def __init__(
        self,
        *,
        machine: HoldsJobs[GroupJob],
        ledger: Ledger,
        committer: Committer[Any],
        leaders: JobLeaders[Any],
        clock: Clock,
        tasks: TaskRunner,
        end_job: Callable[[JobId, str], bool],
    ) -> None:
        """`end_job` ends a job for this reason if this member leads the group; False if it
        does not."""
        self._machine = machine
        self._ledger = ledger
        self._committer = committer
        self._leaders = leaders
        self._clock = clock
        self._tasks = tasks
        self._end_job = end_job

    def register(
        self,
        handlers: Handlers,
        *,
        cut: Callable[[AttemptKey], bytes],
        judged: Callable[[JobId], list[ThresholdResult]],
    ) -> None:
        """`cut` returns the encoded record of an attempt so far, empty if there is none; `judged`
        the results of a job's thresholds."""

        def on_cut(message: AskCut, incoming: Incoming) -> Cut:
            return Cut(cut(message.key))

        def on_judged(message: AskJudged, incoming: Incoming) -> Judged:
            return Judged(judged(message.job))

        handlers.on(AskCut, on_cut)
        handlers.on(AskJudged, on_judged)
        handlers.on(ReportAbort, self._on_abort)

    def abort(self, job: JobId, text: str) -> None:
        """A threshold ends a job that this member leads."""
        self._tasks.start(f"abort {job}", self._report_abort(job, text), group="leader")

    async def _report_abort(self, job: JobId, text: str) -> None:
        while True:
            record = self._machine.tables.jobs.get(job)
            if record is None or record.over or record.stop or not self._leaders.leads(record):
                return
            if not self._end_job(job, text):
                with contextlib.suppress(RemoteError):
                    await self._leaders.relay(ReportAbort(job, text))
            await self._clock.sleep(ABORT_RETRY.delay_s(1))

    def _on_abort(self, message: ReportAbort, incoming: Incoming) -> AbortReceived:
        if not self._end_job(message.job, message.text):
            raise self._committer.answer(NotPrimary(self._ledger.primary))
        return AbortReceived()
