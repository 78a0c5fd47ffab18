"""Drives the current run of a schedule: submits it, watches its job, keeps and compares the result.

`advance` returns the next progress, or None if nothing changed; the caller writes it. Every step
may happen twice, on two agents that both believe to coordinate or on one after the other: the key
makes it one job, blobs are named by their content, and the same run has the same result.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from squall.api.errors import SquallError
from squall.cluster.ledger.interface import Digest
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.submission import Submission
from squall.cluster.results.job_result import JobResult, decode_result
from squall.cluster.wire.seal.secrets import Secrets
from squall.store_mode.ledger.blobs import StoreBlobs
from squall.store_mode.schedules.comparison import Judge, is_comparable, reason_of
from squall.store_mode.schedules.next_state import closed, ended
from squall.store_mode.schedules.records import (
    Baseline,
    RunComparison,
    Schedule,
    ScheduledRun,
    ScheduleProgress,
    job_key,
)
from squall.store_mode.schedules.sealed_submission import unseal
from squall.store_mode.schedules.submit import JobSubmitter, ObservedJob, SubmissionRefused

RECENTLY_BEGAN_S = 60.0
"""A run that was decided this recently is not too late, however late its decision was."""
GIVE_UP_S = 12 * 3600.0
"""Half of the time for which managers remember the key of a job that has ended: later, a missing
key would not prove that there was no job."""
LATE = "no agent coordinated when it should have been submitted"
JOB_FORGOTTEN = "the agents no longer know its job, and its result is gone"
AGAIN = "remove it and add it again"


@dataclass(frozen=True)
class RunDriver:
    """Advances the current run of a schedule by one step at a time."""

    submitter: JobSubmitter
    blobs: StoreBlobs
    secrets: Secrets
    cluster: str
    judge: Judge

    async def advance(
        self, schedule: Schedule, progress: ScheduleProgress, run: ScheduledRun, now_s: float
    ) -> ScheduleProgress | None:
        """Returns the next progress of the run. `SubmitLater` and store errors mean: try again."""
        if run.job:
            return await self._check_job(schedule, progress, run, now_s)
        if self._is_too_late(schedule, run, now_s):
            return closed(schedule, progress, ended(run, "missed", now_s, reason=LATE), now_s)
        try:
            job = await self._submitted(schedule, run)
        except SubmissionRefused as error:
            refused = ended(run, "refused", now_s, reason=str(error))
            return closed(schedule, progress, refused, now_s)
        running = msgspec.structs.replace(run, state="running", job=job)
        return msgspec.structs.replace(progress, under_way=running)

    # Submission.

    def _is_too_late(self, schedule: Schedule, run: ScheduledRun, now_s: float) -> bool:
        """True only if the run certainly has no job yet."""
        times = schedule.times
        limit_s = times.grace if times.misfire == "skip" else GIVE_UP_S
        late = now_s - run.due > limit_s and now_s - run.began > RECENTLY_BEGAN_S
        return (
            late
            and self.submitter.job_of_key(job_key(schedule, run.slot), schedule.principal) is None
        )

    async def _submitted(self, schedule: Schedule, run: ScheduledRun) -> JobId:
        submission = await self._submission(schedule)
        bundle = await self._blob(schedule.bundle, "bundle") if schedule.bundle else b""
        key = job_key(schedule, run.slot)
        return await self.submitter.submit(key, schedule.principal, submission, bundle)

    async def _submission(self, schedule: Schedule) -> Submission:
        sealed = await self._blob(schedule.submission, "submission")
        try:
            found = unseal(sealed, schedule, self.secrets, self.cluster)
        except SquallError as error:
            raise SubmissionRefused(str(error)) from None
        if found.bundle != schedule.bundle:
            raise SubmissionRefused(f"its submission names another bundle: {AGAIN}")
        return found

    async def _blob(self, digest: str, what: str) -> bytes:
        try:
            return await self.blobs.get(Digest(digest))
        except KeyError:
            raise SubmissionRefused(f"its {what} is no longer in the store: {AGAIN}") from None

    # The end of the job.

    async def _check_job(
        self, schedule: Schedule, progress: ScheduleProgress, run: ScheduledRun, now_s: float
    ) -> ScheduleProgress | None:
        job = self.submitter.look(JobId(run.job))
        if job is None:
            return closed(
                schedule, progress, ended(run, "lost", now_s, reason=JOB_FORGOTTEN), now_s
            )
        if job.state == "running":
            return None
        over = ended(run, job.state, now_s, exit_code=job.exit_code, reason=job.reason)
        over, baseline = await self._judged(schedule, progress.baseline, over, job)
        return closed(schedule, progress, over, now_s, baseline)

    async def _judged(
        self, schedule: Schedule, baseline: Baseline | None, run: ScheduledRun, job: ObservedJob
    ) -> tuple[ScheduledRun, Baseline | None]:
        """Keeps the result and compares it. A result that cannot be read does not prevent the
        run from ending."""
        if not job.result:
            return run, None
        try:
            data = await self.submitter.result(job.result)
            result = decode_result(data)
        except (KeyError, SquallError) as error:
            reason = f"its result cannot be read: {error}"
            return msgspec.structs.replace(run, reason=reason), None
        digest = str(await self.blobs.put(data))
        verdict, why = result.verdict.state, run.reason or reason_of(result)
        run = msgspec.structs.replace(run, result=digest, verdict=verdict, reason=why)
        if schedule.compare_to == "last" and baseline is not None and not result.refusal:
            compared = await self._compared(baseline, result)
            run = msgspec.structs.replace(run, comparison=compared)
        return run, Baseline(job=run.job, result=digest) if is_comparable(result) else None

    async def _compared(self, baseline: Baseline, after: JobResult) -> RunComparison:
        try:
            before = decode_result(await self.blobs.get(Digest(baseline.result)))
            return await self.judge(before, after)
        except KeyError:
            return RunComparison(to=baseline.job, text="not compared: the result before it is gone")
        except (ValueError, ArithmeticError, SquallError) as error:
            return RunComparison(to=baseline.job, text=f"not compared: {error}")
