"""A job that this client splits over several datacenters, follows and merges; no gate is needed.

Each datacenter has a job of its own, under the key of the whole with the datacenter's name. Nothing
is started unless all datacenters can be reached. The numbers of all of them are merged while they
run, thresholds are judged on the sums, and at the end there is one result. What only gates can do:
the datacenters start when each is ready, not at the same moment; and the parts go on without this
client, but are not merged then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from squall.api.errors import SquallError, UsageError
from squall.cluster.client.cluster_client import TERMINAL
from squall.cluster.client.connection import ClientConnection
from squall.cluster.client.datacenter_options import Weights
from squall.cluster.client.errors import JobLost, Unreachable
from squall.cluster.client.submission_journal import SubmissionEntry
from squall.cluster.protocol.gates.job_split import part_of, part_of_change
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import (
    AdjustJob,
    Followed,
    NodeView,
    StreamEvent,
    StreamLine,
    StreamSnapshot,
)
from squall.cluster.protocol.submission import Submission
from squall.cluster.results.datacenter_totals import MergedTotals
from squall.cluster.results.job_result import JobResult
from squall.cluster.results.lost_datacenter import lost_result
from squall.cluster.results.merge_datacenters import EndedPart, merge_results
from squall.engine.load_change import LoadChange
from squall.runtime.interfaces import Clock
from squall.stats.snapshot import Snapshot

SETTLE_S = 0.7
"""A second is shown this long after its end: a leader sends it after 0.3 s, and a datacenter may be
far away."""
POLL_S = 0.1


@dataclass
class SplitObserver:
    """What the owner of a split job wants to know while it runs."""

    on_snapshot: Callable[[Snapshot], None] = lambda snapshot: None
    histograms: bool = False
    """Whether snapshots have the histograms of all rows."""
    on_line: Callable[[str, str], None] = lambda prefix, text: None
    on_event: Callable[[str, StreamEvent], None] = lambda datacenter, event: None
    on_notice: Callable[[str], None] = lambda text: None


@dataclass
class DatacenterJob:
    """The job of one datacenter."""

    name: str
    connection: ClientConnection
    submission: Submission
    job: JobId
    entry: SubmissionEntry
    created: bool
    shown_position: int = 0
    result: JobResult | None = None


async def reach_all(
    connections: Mapping[str, ClientConnection], within_s: float | None
) -> dict[str, list[NodeView]]:
    """The nodes of each datacenter. Raises one line that names the datacenter if one cannot be
    reached, or if two of them are the same."""

    async def reach(name: str, connection: ClientConnection) -> tuple[str, list[NodeView]]:
        try:
            answer = await connection.client.nodes(within_s)
        except SquallError as error:
            error.args = (f"{name}: {error}; nothing was started",)
            raise
        return answer.read.group if answer.read is not None else "", answer.nodes

    answers = await asyncio.gather(*(reach(*each) for each in connections.items()))
    seen: dict[str, str] = {}
    for name, (group, _) in zip(connections, answers, strict=True):
        if group and group in seen:
            raise UsageError(
                f"--to: {seen[group]} and {name} are the same datacenter; nothing was started"
            )
        seen[group] = name
    return {name: nodes for name, (_, nodes) in zip(connections, answers, strict=True)}


async def submit_split(
    connections: Mapping[str, ClientConnection],
    weights: Weights,
    submission: Submission,
    bundle: bytes,
    *,
    clock: Clock,
    key: str = "",
) -> SplitJob:
    """Submits one part to each datacenter. If one refuses its part, the others are cancelled."""

    async def submit(index: int, name: str) -> DatacenterJob:
        part = part_of(submission, index, weights)
        connection = connections[name]
        accepted, entry = await connection.client.submit(
            part, bundle, connection.journal, f"{key}/{name}" if key else ""
        )
        return DatacenterJob(name, connection, part, accepted.job, entry, accepted.created)

    names = [name for name, _ in weights]
    made = await asyncio.gather(
        *(submit(index, name) for index, name in enumerate(names)), return_exceptions=True
    )
    jobs = [each for each in made if isinstance(each, DatacenterJob)]
    for name, error in zip(names, made, strict=True):
        if isinstance(error, BaseException):
            for each in jobs:
                with contextlib.suppress(SquallError):
                    reason = f"{name} did not take its part"
                    await each.connection.client.cancel(each.job, now=True, reason=reason)
                    await each.connection.journal.close(each.entry)
            if not isinstance(error, SquallError):
                raise error
            error.args = (f"{name}: {error}",)
            raise error
    return SplitJob(jobs, weights, submission, clock)


class SplitJob:
    """The parts of one job. `run` follows them to their end; then `result` merges them."""

    def __init__(
        self, jobs: Sequence[DatacenterJob], weights: Weights, submission: Submission, clock: Clock
    ) -> None:
        self.jobs = list(jobs)
        self.id = "+".join(each.job for each in jobs)
        self._weights = weights
        self._submission = submission
        self._clock = clock
        self.totals = MergedTotals(
            submission.manifest,
            submission.options,
            [
                (each.name, part, each.submission.manifest)
                for each, (_, part) in zip(jobs, weights, strict=True)
            ],
        )
        self._aborted_by = ""
        self._cancelled = False
        self._is_over = False
        self._second = 0

    async def run(self, observer: SplitObserver) -> None:
        """Returns when the parts of all datacenters are over, or given up."""
        await asyncio.gather(self._follow_all(observer), self._show(observer))
        if all(part.state == "lost" for part in self.totals.parts):
            raise Unreachable(
                f"no datacenter answers: {self.totals.parts[0].reason}; see squall status "
                f"{self.jobs[0].job} --to its managers"
            )

    async def cancel(self, *, now: bool = False, reason: str = "") -> None:
        """Cancels the parts of all datacenters. One that cannot be reached ends its part by its
        own limits."""
        self._cancelled = True
        await asyncio.gather(*(self._cancel(each, now, reason) for each in self.jobs))

    async def change(self, change: LoadChange) -> None:
        """Changes the load of the whole: each datacenter gets its part of the rate or users."""
        wanted = AdjustJob(
            job=self.jobs[0].job,
            workflow=change.workflow,
            paused=change.paused,
            rate_per_s=change.rate_per_s,
            vus=change.vus,
        )
        asked: list[DatacenterJob] = []
        parts: list[AdjustJob] = []
        for index, each in enumerate(self.jobs):
            if self.totals.parts[index].state == "lost":
                continue
            part = part_of_change(wanted, index, self._weights)
            asked.append(each)
            parts.append(msgspec.structs.replace(part, job=each.job))
        answers = await asyncio.gather(
            *(each.connection.client.adjust(part) for each, part in zip(asked, parts, strict=True)),
            return_exceptions=True,
        )
        for each, answer in zip(asked, answers, strict=True):
            if isinstance(answer, SquallError):
                raise SquallError(f"{each.name}: {answer}")
            if isinstance(answer, BaseException):
                raise answer

    async def close(self) -> None:
        """The end was seen: the same command again makes a new job."""
        for each in self.jobs:
            await each.connection.journal.close(each.entry)

    async def result(self) -> JobResult:
        """The merged result, once `run` has returned."""
        parts: list[EndedPart] = []
        for index, each in enumerate(self.jobs):
            part = self.totals.parts[index]
            if part.state != "lost":
                try:
                    each.result = await each.connection.client.result(each.job, known=True)
                except (Unreachable, JobLost) as error:
                    self.totals.lose(index, _one_line(error))
            found = each.result
            if found is None:
                found = lost_result(
                    each.job,
                    each.submission.manifest,
                    self._submission.options,
                    part,
                    started_at=self._wall_of(part.began_at),
                )
            if found.refusal:
                found.refusal = f"{each.name}: {found.refusal}"
                return found
            parts.append(EndedPart(each.name, part.part, found))
        return merge_results(
            self.id,
            self._submission.manifest,
            self._submission.options,
            parts,
            aborted_by=self._aborted_by,
            judged=self.totals.judged(),
        )

    async def _follow_all(self, observer: SplitObserver) -> None:
        try:
            await asyncio.gather(*(self._follow(at, observer) for at in range(len(self.jobs))))
        finally:
            self._is_over = True

    async def _follow(self, index: int, observer: SplitObserver) -> None:
        each, part = self.jobs[index], self.totals.parts[index]
        client = each.connection.client
        try:
            async for answer in client.follow(each.job, known=True, cursor=lambda: part.cursor):
                self._take(index, answer, observer)
                if answer.state in TERMINAL and not answer.more:
                    break
        except (Unreachable, JobLost) as error:
            self.totals.lose(index, _one_line(error))
            observer.on_notice(f"{each.name} is lost: {_one_line(error)}")
            return
        if part.state == "failed" and part.began_at is None and not self._cancelled:
            # Its workers cannot run the file: the load of the others alone is not this test.
            observer.on_notice(f"{each.name} cannot run its part: {part.reason}")
            await self.cancel(now=True, reason=f"{each.name} cannot run its part")

    def _take(self, index: int, answer: Followed, observer: SplitObserver) -> None:
        each, part = self.jobs[index], self.totals.parts[index]
        now = self._clock.now()
        self.totals.observe(index, now, state=answer.state, reason=answer.reason)
        if answer.position and answer.position != each.shown_position:
            each.shown_position = answer.position
            observer.on_notice(
                f"job {each.job} waits in the queue of {each.name} at place {answer.position}"
            )
        for item in answer.items:
            match item:
                case StreamSnapshot():
                    part.shown = item.snapshot
                case StreamLine():
                    prefix = f"{each.name} {item.prefix}" if item.prefix else each.name
                    observer.on_line(prefix, item.text)
                case StreamEvent():
                    observer.on_event(each.name, item)
        if answer.reports is not None:
            self.totals.take(index, answer.reports, now)

    async def _show(self, observer: SplitObserver) -> None:
        """Shows each second once, when it is complete, until all parts are over."""
        self.totals.stats.shows_histograms = observer.histograms
        while not self._is_over:
            await self._clock.sleep(POLL_S)
            now = self._clock.now()
            second = int(self.totals.elapsed_s(now) - SETTLE_S)
            if second <= self._second:
                continue
            self._second = second
            snapshot, abort = self.totals.second(now)
            observer.on_snapshot(snapshot)
            if abort:
                self._aborted_by = abort
                observer.on_notice(f"threshold {abort} ends the run")
                await self.cancel(reason=f"threshold {abort}"[:200])

    async def _cancel(self, each: DatacenterJob, now: bool, reason: str) -> None:
        # `_follow` reports a datacenter that stays away, and a part that is over needs no
        # cancelling.
        with contextlib.suppress(SquallError):
            await each.connection.client.cancel(each.job, now=now, reason=reason)

    def _wall_of(self, began_at: float | None) -> float:
        """The wall clock of a moment on this client's clock."""
        if began_at is None:
            return self._clock.wall()
        return self._clock.wall() - (self._clock.now() - began_at)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
