"""The pages of the jobs of a cluster: follows each job while it has viewers.

It follows a job once, from its first viewer until a minute after the last one left. The cluster's
client repeats its requests itself when a manager is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from squall.api.errors import SquallError
from squall.cluster.client.cluster_client import TERMINAL, ClusterClient, outcome_from
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import (
    AdjustJob,
    Followed,
    StreamEvent,
    StreamLine,
    StreamSnapshot,
)
from squall.engine.load_change import LoadChange
from squall.engine.load_steps import LoadSteps
from squall.reporting.redaction import Redactor
from squall.web.feed import PageControls, RunFeed
from squall.web.finished_run import finished_run

FOLLOWED_MAX = 20
"""Jobs at a time; the one that was opened first and has no viewer goes when another comes."""
UNWATCHED_S = 60.0


@dataclass
class _Followed:
    feed: RunFeed
    task: asyncio.Task[None]


class TooManyJobs(SquallError):
    """Viewers have opened more jobs than this page follows."""


class JobPages:
    """The followed jobs of one cluster."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._followed: dict[str, _Followed] = {}

    async def feed_of(self, job: str) -> RunFeed:
        """The feed of a job, which is followed from now on. Raises `SquallError` if there is no
        such job, or if too many jobs are open."""
        known = self._followed.get(job)
        if known is None:
            view = await self._client.status(JobId(job))
            # Another viewer may have opened it meanwhile.
            known = self._followed.get(job) or self._open(job, view.file)
        return known.feed

    async def close(self) -> None:
        tasks = [each.task for each in self._followed.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _open(self, job: str, file: str) -> _Followed:
        if len(self._followed) >= FOLLOWED_MAX:
            unseen = (name for name, each in self._followed.items() if not each.feed.viewers)
            idle = next(unseen, "")
            if not idle:
                raise TooManyJobs(f"{FOLLOWED_MAX} jobs are looked at; close the page of one")
            self._forget(idle)
        feed = RunFeed(f"{file}  job {job}")
        task = asyncio.create_task(self._follow(JobId(job), feed))
        made = self._followed[job] = _Followed(feed, task)
        return made

    def _forget(self, job: str) -> None:
        gone = self._followed.pop(job, None)
        if gone is not None:
            gone.task.cancel()
            gone.feed.disconnect()

    async def _follow(self, job: JobId, feed: RunFeed) -> None:
        following = asyncio.ensure_future(self._followed_to_its_end(job, feed))
        try:
            # It ends when nobody has looked for a while; a viewer that comes later opens it anew.
            unwatched_s = 0.0
            while unwatched_s < UNWATCHED_S:
                await asyncio.sleep(1.0)
                unwatched_s = 0.0 if feed.viewers else unwatched_s + 1.0
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
            known = self._followed.get(job)
            if known is not None and known.feed is feed:
                del self._followed[job]

    async def _followed_to_its_end(self, job: JobId, feed: RunFeed) -> None:
        try:
            status = await self._client.job_status(job)
            if status.manifest is not None:
                feed.start(status.manifest, sum(each.cores for each in status.view.workflows))
                steps = LoadSteps(status.manifest)
                if status.view.state not in TERMINAL:
                    feed.offer(self._controls(job, steps, feed))
                    await self._show(job, steps, feed)
            outcome = outcome_from(await self._client.result(job))
            feed.end(await asyncio.to_thread(finished_run, outcome, Redactor(())))
        except SquallError as error:
            feed.end(None, str(error))

    async def _show(self, job: JobId, steps: LoadSteps, feed: RunFeed) -> None:
        waited = False
        async for answer in self._client.follow(job, 0, known=True):
            if answer.position:
                waited = True
                feed.notice(f"waits in the queue at place {answer.position}")
            elif waited:
                waited = False
                feed.notice("")
            _show_answer(answer, steps, feed)
            if answer.state in TERMINAL and not answer.more:
                return

    def _controls(self, job: JobId, steps: LoadSteps, feed: RunFeed) -> PageControls:
        tasks: set[asyncio.Task[None]] = set()

        async def change(change: LoadChange) -> None:
            await self._client.adjust(
                AdjustJob(
                    job=job,
                    workflow=change.workflow,
                    paused=change.paused,
                    rate_per_s=change.rate_per_s,
                    vus=change.vus,
                )
            )

        async def multiply(factor: float, workflow: str) -> None:
            for each in steps.by(factor, workflow):
                await change(each)

        async def cancel(now: bool) -> None:
            try:
                await self._client.cancel(job, now=now, reason="on the page")
            except SquallError as error:
                feed.log(f"the job is not cancelled: {error}")

        def stop(now: bool) -> None:
            feed.notice("stopping")
            task = asyncio.create_task(cancel(now))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        return PageControls(change, multiply, stop)


def _show_answer(answer: Followed, steps: LoadSteps, feed: RunFeed) -> None:
    for item in answer.items:
        match item:
            case StreamSnapshot():
                steps.feed(item.snapshot)
                feed.snapshot(item.snapshot)
            case StreamLine():
                feed.log(f"{item.prefix} {item.text}" if item.prefix else item.text)
            case StreamEvent():
                feed.log(f"{item.at_s:7.1f} s  {item.text}")
