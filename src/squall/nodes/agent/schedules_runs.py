"""The run of a schedule that is under way: handed in, watched, its result kept and compared.

It gives the next standing, or None while there is none; writing it down is the caller's. All
of it may be done twice, by two who believe to coordinate or by one after the other: the key
makes it one job, blobs are named by what they hold, and the same run has the same result.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from squall.api.errors import SquallError
from squall.ledger.interface import Digest
from squall.nodes.agent.blobs import StoreBlobs
from squall.nodes.agent.schedules_desk import Desk, HandInRefused, SeenJob
from squall.nodes.agent.schedules_judging import Judge, is_comparable, reason_of
from squall.nodes.agent.schedules_records import (
    Baseline,
    Comparison,
    Run,
    Schedule,
    Standing,
    job_key,
)
from squall.nodes.agent.schedules_seal import unseal
from squall.nodes.agent.schedules_standing import closed, ended
from squall.nodes.identity import JobId
from squall.nodes.results.result import JobResult, decode_result
from squall.nodes.submission import Submission
from squall.wire.secrets import Secrets

PATIENCE_S = 60.0
"""A run that was just decided is not too late, however late it was decided."""
GIVE_UP_S = 12 * 3600.0
"""Half of the time for which managers know the key of a job that is over."""
LATE = "nobody coordinated when it was to be handed in"
FORGOTTEN = "the agents do not know its job any more, and its result is gone"
AGAIN = "remove it and add it again"


@dataclass(frozen=True)
class Runs:
    desk: Desk
    blobs: StoreBlobs
    secrets: Secrets
    cluster: str
    judge: Judge

    async def pursue(
        self, schedule: Schedule, standing: Standing, run: Run, now_s: float
    ) -> Standing | None:
        """What is new of the run under way. `NotNow` and what a store raises: try again."""
        if run.job:
            return await self._watched(schedule, standing, run, now_s)
        if self._is_too_late(schedule, run, now_s):
            return closed(schedule, standing, ended(run, "missed", now_s, reason=LATE), now_s)
        try:
            job = await self._handed_in(schedule, run)
        except HandInRefused as error:
            refused = ended(run, "refused", now_s, reason=str(error))
            return closed(schedule, standing, refused, now_s)
        running = msgspec.structs.replace(run, state="running", job=job)
        return msgspec.structs.replace(standing, under_way=running)

    # Handing in.

    def _is_too_late(self, schedule: Schedule, run: Run, now_s: float) -> bool:
        """Only for one that certainly has no job yet."""
        times = schedule.times
        limit_s = times.grace if times.misfire == "skip" else GIVE_UP_S
        late = now_s - run.due > limit_s and now_s - run.began > PATIENCE_S
        return late and self.desk.known(job_key(schedule, run.slot), schedule.principal) is None

    async def _handed_in(self, schedule: Schedule, run: Run) -> JobId:
        submission = await self._submission(schedule)
        bundle = await self._blob(schedule.bundle, "bundle") if schedule.bundle else b""
        key = job_key(schedule, run.slot)
        return await self.desk.hand_in(key, schedule.principal, submission, bundle)

    async def _submission(self, schedule: Schedule) -> Submission:
        sealed = await self._blob(schedule.submission, "submission")
        try:
            found = unseal(sealed, schedule, self.secrets, self.cluster)
        except SquallError as error:
            raise HandInRefused(str(error)) from None
        if found.bundle != schedule.bundle:
            raise HandInRefused(f"its submission names another bundle: {AGAIN}")
        return found

    async def _blob(self, digest: str, what: str) -> bytes:
        try:
            return await self.blobs.get(Digest(digest))
        except KeyError:
            raise HandInRefused(f"its {what} is not in the store any more: {AGAIN}") from None

    # Its end.

    async def _watched(
        self, schedule: Schedule, standing: Standing, run: Run, now_s: float
    ) -> Standing | None:
        job = self.desk.look(JobId(run.job))
        if job is None:
            return closed(schedule, standing, ended(run, "lost", now_s, reason=FORGOTTEN), now_s)
        if job.state == "running":
            return None
        over = ended(run, job.state, now_s, exit_code=job.exit_code, reason=job.reason)
        over, baseline = await self._judged(schedule, standing.baseline, over, job)
        return closed(schedule, standing, over, now_s, baseline)

    async def _judged(
        self, schedule: Schedule, baseline: Baseline | None, run: Run, job: SeenJob
    ) -> tuple[Run, Baseline | None]:
        """With its result kept and compared. A result that cannot be read does not keep the
        run from its end."""
        if not job.result:
            return run, None
        try:
            data = await self.desk.result(job.result)
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

    async def _compared(self, baseline: Baseline, after: JobResult) -> Comparison:
        try:
            before = decode_result(await self.blobs.get(Digest(baseline.result)))
            return await self.judge(before, after)
        except KeyError:
            return Comparison(to=baseline.job, text="not compared: the result before it is gone")
        except (ValueError, ArithmeticError, SquallError) as error:
            return Comparison(to=baseline.job, text=f"not compared: {error}")
