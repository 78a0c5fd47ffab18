"""Clients of the job API that draw their requests and record what was answered, and when.

They use the product's own client, with its retries: an operation lasts from the call to the answer
that a user would see. If the client gives up, the operation stays without an answer. Several
clients share keys and jobs, as programs with one credential do.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from lab.histories.job_api import (
    CONFLICT,
    Adjust,
    Adjusted,
    Cancel,
    Cancelled,
    Extend,
    Extended,
    JobAnswer,
    JobOperation,
    JobRequest,
    Look,
    Recorded,
    Refused,
    Submit,
    Submitted,
    Viewed,
)
from lab.histories.linearizability import NEVER
from squall.cluster.client.cluster_client import ClusterClient
from squall.cluster.client.errors import RequestRefused, Unreachable
from squall.cluster.client.submission_journal import SubmissionJournal
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import AdjustJob, JobView
from squall.cluster.protocol.submission import BundleManifest, Submission
from squall.engine.run_options import RunOptions
from squall.stats.manifest import FileManifest, Profile, StepManifest, WorkflowManifest

START = 0.0
"""Before every operation."""
OPERATIONS_PER_KEY = 14
"""A new key comes into use after so many operations: jobs that are over do little."""
LISTED_MAX = 10_000
"""More than there are jobs: a list that leaves out old ones would look like a stale one."""
CONTENTS = ("a", "a", "a", "b")
EXTENSION_MS = (1_000, 80_000)
"""Some of them exceed the cap."""
TIMEOUT_S = 200.0
CAP_MS = 60_000
"""The longest extension of such a job: a quarter of its timeout, at least a minute."""


@dataclass
class JobHistory:
    """What all clients did, and the jobs that they know."""

    now: Callable[[], float]
    """One clock for all clients."""
    recorded: list[Recorded] = field(default_factory=list[Recorded])
    jobs: dict[str, str] = field(default_factory=dict[str, str])
    """By key: the last job that an answer showed."""
    keys: list[str] = field(default_factory=list[str])
    """In use, the newest last."""


class JobClient:
    """One client: one operation at a time, drawn at random."""

    def __init__(
        self,
        name: str,
        client: ClusterClient,
        journal: SubmissionJournal,
        history: JobHistory,
        draw: random.Random,
        submission: Callable[[str], Submission],
    ) -> None:
        """`submission` returns the submission that a content stands for."""
        self._name = name
        self._client = client
        self._journal = journal
        self._history = history
        self._draw = draw
        self._submission = submission

    async def operate(self) -> None:
        """One operation; returns when it is answered, or when the client gives up."""
        history, draw = self._history, self._draw
        if len(history.recorded) >= OPERATIONS_PER_KEY * len(history.keys):
            history.keys.append(f"key{len(history.keys)}")
        # Mostly the newest ones.
        key = history.keys[-1 - min(int(draw.expovariate(1.0)), len(history.keys) - 1)]
        job = history.jobs.get(key, "")
        kind = draw.random()
        if not job or kind < 0.15:
            await self.submit(key, draw.choice(CONTENTS))
        elif kind < 0.45:
            await self.look(key, job)
        elif kind < 0.55:
            await self.list_jobs()
        elif kind < 0.65:
            await self.follow(key, job)
        elif kind < 0.82:
            await self.adjust(key, job)
        elif kind < 0.9:
            await self.extend(key, job, draw.randint(*EXTENSION_MS))
        else:
            await self.cancel(key, job, now=draw.random() < 0.3)

    async def submit(self, key: str, content: str) -> None:
        async def ask() -> JobAnswer:
            accepted, entry = await self._client.submit(
                self._submission(content), b"", self._journal, key
            )
            await self._journal.close(entry)
            self._history.jobs[key] = accepted.job
            return Submitted(accepted.job, accepted.created)

        await self._record(key, Submit(content), ask)

    async def cancel(self, key: str, job: str, *, now: bool) -> None:
        state = ""

        async def ask() -> JobAnswer:
            nonlocal state
            answer = await self._client.cancel(JobId(job), now=now)
            state = answer.state
            return Cancelled(answer.repeated)

        operation = await self._record(key, Cancel(job, now), ask)
        if state:
            # The manager reads the state after the commit of the cancellation: a second moment.
            look: JobRequest = Look(job, "cancel")
            self._add(key, look, Viewed(job, state), operation.called, operation.returned)

    async def adjust(self, key: str, job: str) -> None:
        draw = self._draw
        change = AdjustJob(job=JobId(job), vus=draw.randint(1, 9))
        if draw.random() < 0.4:
            change = AdjustJob(job=JobId(job), paused=draw.random() < 0.5)

        async def ask() -> JobAnswer:
            return Adjusted((await self._client.adjust(change)).adjust_seq)

        await self._record(key, Adjust(job, change.vus, change.paused), ask)

    async def extend(self, key: str, job: str, to_ms: int) -> None:
        async def ask() -> JobAnswer:
            change = AdjustJob(job=JobId(job), extend_s=to_ms / 1000.0)
            return Extended(round((await self._client.adjust(change)).extended_s * 1000))

        operation = await self._record(key, Extend(job, to_ms), ask)
        if operation.answer == CONFLICT:
            # The job is over. An earlier try of this request may have extended it before.
            look: JobRequest = Look(job, "refusal")
            self._add(key, look, CONFLICT, operation.called, operation.returned)
            operation.answer, operation.returned = None, NEVER

    async def look(self, key: str, job: str) -> None:
        async def ask() -> JobAnswer:
            return _viewed(await self._client.status(JobId(job)))

        await self._record(key, Look(job), ask)

    async def list_jobs(self) -> None:
        """A list is a strong read of every key."""
        called = self._history.now()
        keys = list(self._history.keys)
        try:
            views = await self._client.jobs(LISTED_MAX)
        except Unreachable:
            return
        returned = self._history.now()
        for key in keys:
            shown = [_viewed(view) for view in views if view.key == key] or [Refused("not_found")]
            for answer in shown:
                self._add(key, Look("", "list"), answer, called, returned)

    async def follow(self, key: str, job: str) -> None:
        """The state that the leader of the job shows. It may be older than the request, but not
        younger than its answer, and a job that was accepted is known."""

        async def ask() -> JobAnswer:
            async for answer in self._client.follow(JobId(job), after=-1):
                return Viewed(job, answer.state)
            raise AssertionError("a follow ends with an answer")

        operation = await self._record(key, Look(job, "follow"), ask)
        if isinstance(operation.answer, Viewed):
            operation.called = START

    async def _record(
        self, key: str, request: JobRequest, ask: Callable[[], Awaitable[JobAnswer]]
    ) -> JobOperation:
        operation = self._add(key, request, None, self._history.now())
        try:
            answer = await ask()
        except RequestRefused as error:
            answer = Refused(str(error.code))
        except Unreachable:
            return operation
        operation.returned = self._history.now()
        operation.answer = answer
        return operation

    def _add(self, key: str, request: JobRequest, answer: JobAnswer | None, *at: Any) -> Any:
        operation: JobOperation = JobOperation(self._name, request, *at, answer=answer)
        self._history.recorded.append(Recorded(key, operation))
        return operation


def _viewed(view: JobView) -> Viewed:
    (workflow,) = view.workflows
    return Viewed(view.job, view.state, workflow.adjusted)


def small_submission(content: str, duration_s: float, url: str) -> Submission:
    """A job of one workflow without a bundle; another content is another fingerprint."""
    profile = Profile(model="closed", vus=1, max_vus=9, duration_s=duration_s)
    workflow = WorkflowManifest(
        name="load", profile=profile, steps=[StepManifest(name="get", protocol="http")]
    )
    return Submission(
        bundle="",
        bundle_size=0,
        contents=BundleManifest(entry="", python="3.11"),
        manifest=FileManifest(path=f"{content}.py", workflows=[workflow]),
        options=RunOptions(url=f"{url}{content}", seed=1),
        timeout_s=TIMEOUT_S,
    )
