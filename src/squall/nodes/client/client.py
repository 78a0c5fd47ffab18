"""A client of a datacenter: submits jobs, follows them, fetches results, asks and tells.

It decides nothing about a job: the managers do. Whatever it sends may be repeated, so a
lost connection is not a failure until patience ends; a job that was accepted goes on
without its client. It must never send a job before its key is on disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from squall.api.errors import SquallError
from squall.nodes.client.errors import JobLost, Refused, Unreachable
from squall.nodes.client.journal import Entry, Journal
from squall.nodes.client.managers import Managers
from squall.nodes.identity import JobId
from squall.nodes.memory_blobs import MemoryBlobs
from squall.nodes.messages import (
    Adjusted,
    AdjustJob,
    CancelAccepted,
    CancelJob,
    Draining,
    DrainNode,
    Explanation,
    Follow,
    Followed,
    GetJob,
    JobAccepted,
    JobList,
    JobStatus,
    JobView,
    ListJobs,
    ListNodes,
    NodeList,
    OfferBlob,
    SubmitJob,
    WhyJob,
)
from squall.nodes.patience import Patience
from squall.nodes.results.result import JobResult, decode_result
from squall.nodes.submission import Submission, fingerprint
from squall.runtime.interfaces import Address, Runtime
from squall.runtime.tasks import TaskRunner
from squall.wire.blobs import BlobFetcher, serve_blobs
from squall.wire.dispatch import Handlers
from squall.wire.errors import BlobError
from squall.wire.messages import ErrorCode
from squall.wire.secrets import Secrets

TERMINAL = frozenset({"completed", "partial", "failed", "cancelled", "timeout"})
QUERY_PATIENCE_S = Patience().query_s
PATIENCE_S = 60.0
FOLLOW_S = 5.0
OFFERS_MAX = 5


class ClusterClient:
    """Use it on a running loop; `close` at the end."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: TaskRunner,
        *,
        addresses: Sequence[Address],
        secrets: Secrets,
        cluster: str,
        patience_s: float = PATIENCE_S,
        patience: Patience | None = None,
        shown: str = "",
    ) -> None:
        """`patience_s` is for a job that runs, `patience` what its network needs. `shown`
        is what people know the managers by, where it is not their addresses."""
        self._runtime = runtime
        self._patience = patience or Patience(query_s=QUERY_PATIENCE_S)
        self._patience_s = patience_s
        self._blobs = MemoryBlobs()
        handlers = Handlers()
        serve_blobs(handlers, self._blobs)
        self.managers = Managers(
            runtime,
            tasks,
            handlers,
            addresses=addresses,
            secrets=secrets,
            cluster=cluster,
            patience=self._patience,
            shown=shown,
        )
        self._job_leader = self.managers.apart()
        board = self.managers.board
        self._fetcher = BlobFetcher(
            self._blobs, board.counters, tasks, chunk_timeout_s=self._patience.chunk_s
        )

    async def close(self) -> None:
        await self.managers.close()

    # Jobs.

    async def submit(
        self, submission: Submission, bundle: bytes, journal: Journal, key: str = ""
    ) -> tuple[JobAccepted, Entry]:
        """The key is on disk before the first byte leaves; close the entry when the end
        of the job was seen."""
        asked = f"{fingerprint(submission)} {self.managers.shown}"
        entry = await journal.open(asked, key)
        try:
            accepted = await self._submitted(SubmitJob(entry.key, submission), bundle)
        except Refused:
            await journal.close(entry)
            raise
        return accepted, await journal.accepted(entry, accepted.job)

    async def _submitted(self, message: SubmitJob, bundle: bytes) -> JobAccepted:
        """A manager that began to lead after the offer need not have the bundle yet: then it
        is offered again."""
        submission = message.submission
        if not submission.bundle:
            return await self._ask_long(message, self._patience.answer_s)
        self._blobs.put(bundle)
        offer = OfferBlob(submission.bundle, submission.bundle_size)
        offers = 0
        while True:
            offers += 1
            await self._ask_long(offer, self._patience.upload_s)
            try:
                return await self._ask_long(message, self._patience.answer_s)
            except Refused as error:
                if error.code != ErrorCode.NOT_FOUND or offers == OFFERS_MAX:
                    raise

    async def follow(
        self, job: JobId, after: int = 0, *, known: bool = False
    ) -> AsyncIterator[Followed]:
        """Answers as they come, each with what is new; the last has a terminal state. A job
        that was `known` and is not any more is lost: `JobLost`."""
        while True:
            ask = Follow(job=job, after=after, wait_s=FOLLOW_S)
            try:
                answer: Followed = await self._job_leader.ask(
                    ask,
                    timeout_s=FOLLOW_S + self._patience.answer_s,
                    patience_s=self._patience_s,
                )
            except Refused as error:
                raise self._unknown(error, job, known=known) from None
            known = True
            after = max(after, answer.upto)
            yield answer
            if answer.state in TERMINAL and not answer.more:
                return
            if self._patience.follow_pause_s and not answer.more:
                await self._runtime.clock.sleep(self._patience.follow_pause_s)

    async def result(self, job: JobId, *, known: bool = False) -> JobResult:
        """Of a job that is over; SquallError with its reason if it left no result."""
        try:
            view = await self.status(job)
        except Refused as error:
            raise self._unknown(error, job, known=known) from None
        if view.state not in TERMINAL:
            raise SquallError(f"job {job} is {view.state}; its result comes with its end")
        if not view.result:
            raise SquallError(f"job {job} {view.state} without a result: {view.reason}")
        await self._fetch(view.result, view.result_size)
        return decode_result(self._blobs.take(view.result))

    async def status(self, job: JobId) -> JobView:
        return (await self.look(job)).view

    async def look(self, job: JobId) -> JobStatus:
        """The job, and what its file holds."""
        return await self._ask_about(GetJob(job), job)

    async def jobs(self, limit: int = 100) -> list[JobView]:
        answer: JobList = await self._ask(ListJobs(limit))
        return answer.jobs

    async def cancel(self, job: JobId, *, now: bool = False) -> CancelAccepted:
        return await self._ask_about(CancelJob(job, now), job)

    async def adjust(self, change: AdjustJob) -> Adjusted:
        return await self._ask_about(change, change.job)

    async def why(self, job: JobId) -> Explanation:
        return await self._ask_about(WhyJob(job), job)

    # Nodes.

    async def nodes(self, at_least_s: float = 0.0) -> NodeList:
        """`at_least_s`: as patiently as somebody asked for."""
        return await self._ask(ListNodes(), at_least_s)

    async def drain(self, node: str, *, resume: bool = False) -> Draining:
        try:
            return await self._ask(DrainNode(node, resume))
        except Refused as error:
            if error.code != ErrorCode.NOT_FOUND:
                raise
            raise Refused(
                f"no node {node} here; squall nodes lists them", error.code, error.exit_code
            ) from None

    # How it is asked.

    def _unknown(self, error: Refused, job: JobId, *, known: bool) -> SquallError:
        if error.code != ErrorCode.NOT_FOUND or not known:
            return _unknown_job(error, job)
        return JobLost(
            f"job {job} is lost: {self.managers.shown} does not know it any more. The log that "
            "held it was lost or made anew (a store that was emptied, a forced recovery): its "
            "load is stopped and its counts are gone. Run it again"
        )

    async def _ask(self, message: msgspec.Struct, at_least_s: float = 0.0) -> Any:
        patience = self._patience
        return await self.managers.ask(
            message,
            timeout_s=patience.answer_s,
            patience_s=max(patience.query_s, at_least_s),
        )

    async def _ask_about(self, message: msgspec.Struct, job: JobId) -> Any:
        try:
            return await self._ask_long(message, self._patience.answer_s)
        except Refused as error:
            raise _unknown_job(error, job) from None

    async def _ask_long(self, message: msgspec.Struct, timeout_s: float) -> Any:
        """Of a job that runs: a manager may take its time to come back."""
        return await self.managers.ask(message, timeout_s=timeout_s, patience_s=self._patience_s)

    async def _fetch(self, blob: str, size: int) -> None:
        """A transfer that broke goes on where it ended, from whoever answers."""
        clock = self._runtime.clock
        until = clock.now() + self._patience_s
        while True:
            try:
                await self._fetcher.fetch(blob, size, [self.managers.current])
                return
            except BlobError as error:
                if clock.now() >= until:
                    raise Unreachable(f"{self.managers.shown}: {error}") from None
            await self.managers.ask(
                ListNodes(),
                timeout_s=self._patience.answer_s,
                patience_s=max(until - clock.now(), 0.0),
            )
            await clock.sleep(0.2)


def _unknown_job(error: Refused, job: JobId) -> Refused:
    if error.code != ErrorCode.NOT_FOUND:
        return error
    return Refused(f"no job {job} here; squall jobs lists them", error.code, error.exit_code)
