"""A job that its client splits: all parts or none, one result, honest about what was lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from squall.api.errors import ExitCode, SquallError
from squall.cluster.client.cluster_client import outcome_from
from squall.cluster.client.connection import ClientConnection
from squall.cluster.client.errors import RequestRefused, Unreachable
from squall.cluster.client.split_job import SplitJob, SplitObserver, reach_all, submit_split
from squall.cluster.protocol.encoded_reports import raw
from squall.cluster.protocol.gates.job_reports import JobReports, ReportCursor, WorkflowReports
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import Followed, JobAccepted, JobState, NodeList
from squall.cluster.protocol.read_facts import ReadFacts
from squall.cluster.protocol.submission import Submission
from squall.cluster.results.assemble import assemble
from squall.cluster.results.job_result import JobResult
from squall.engine.run_options import RunOptions
from squall.runtime.real.runtime import CLOCK
from squall.stats.manifest import Profile
from squall.stats.snapshot import Snapshot
from tests.fakes.datacenter import submission as made_submission
from tests.unit.cluster.results.lab.records import ended, manifest, parts, record, window

WEIGHTS = (("eu", 0.6), ("us", 0.4))


class Datacenter:
    """A datacenter as the client sees it: what it answers, and what it was asked."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.group = f"group of {name}"
        self.submitted: list[tuple[str, Submission]] = []
        self.cancelled: list[str] = []
        self.refuses: SquallError | None = None
        self.seconds = 2
        self.ends: JobState = "completed"
        self.reason = ""
        self.refusal = ""
        self.lost_after: int | None = None
        self.is_cancelled = asyncio.Event()
        self.waits_for_cancel = False

    @property
    def connection(self) -> ClientConnection:
        async def close(entry: object) -> None: ...

        journal = SimpleNamespace(close=close)
        return cast("ClientConnection", SimpleNamespace(client=self, journal=journal))

    async def nodes(self, within_s: float | None = None) -> NodeList:
        if self.refuses is not None:
            raise self.refuses
        return NodeList(self.name, [], ReadFacts(level="strong", op=1, group=self.group))

    async def submit(
        self, submission: Submission, bundle: bytes, journal: object, key: str
    ) -> tuple[JobAccepted, object]:
        if self.refuses is not None:
            raise self.refuses
        self.submitted.append((key, submission))
        return JobAccepted(JobId(f"{self.name}-1"), True), object()

    async def cancel(self, job: JobId, *, now: bool = False, reason: str = "") -> None:
        self.cancelled.append(reason)
        self.is_cancelled.set()

    async def follow(
        self, job: JobId, *, known: bool, cursor: Callable[[], ReportCursor]
    ) -> AsyncIterator[Followed]:
        for second in range(0 if self.refusal else self.seconds):
            if self.lost_after == second:
                raise Unreachable(f"{self.name}:7400: gave up after 1 s")
            shop = WorkflowReports(
                name="Shop",
                started_at_s=0.0,
                upto=second + 1,
                reports=[raw(window(second, 0, [0.2] * 4, users=5))],
            )
            reports = JobReports(stream="m1/1", elapsed_s=second + 1.0, workers=1, workflows=[shop])
            yield Followed(upto=second, state="running", reports=reports)
            await asyncio.sleep(0)
        if self.waits_for_cancel:
            await self.is_cancelled.wait()
        yield Followed(upto=99, state=self.ends, reason=self.reason)

    async def result(self, job: JobId, *, known: bool) -> JobResult:
        share = [window(s, 0, [0.2] * 4, users=5) for s in range(self.seconds)]
        state = "cancelled" if self.is_cancelled.is_set() else self.ends
        made = parts([ended(record(0, share))], state=state, refusal=self.refusal)
        if self.refusal:
            made = msgspec.structs.replace(made, refusal_code=int(ExitCode.CONFIG))
        return assemble(manifest(), RunOptions(), made)


def whole(*thresholds: str) -> Submission:
    shop = manifest(Profile(vus=10, max_vus=10, duration_s=10.0))
    made = made_submission(*shop.workflows)
    return msgspec.structs.replace(
        made, options=RunOptions(thresholds=thresholds), bundle="", bundle_size=0
    )


def split(*datacenters: Datacenter, thresholds: tuple[str, ...] = ()) -> Callable[..., Any]:
    async def submitted(key: str = "") -> SplitJob:
        connections = {each.name: each.connection for each in datacenters}
        return await submit_split(
            connections, WEIGHTS, whole(*thresholds), b"", clock=CLOCK, key=key
        )

    return submitted


def test_each_datacenter_gets_its_part_under_a_key_of_its_own() -> None:
    async def run() -> None:
        eu, us = Datacenter("eu"), Datacenter("us")
        job = await split(eu, us)("nightly")
        assert [key for each in (eu, us) for key, _ in each.submitted] == [
            "nightly/eu",
            "nightly/us",
        ]
        assert [each.submitted[0][1].manifest.workflows[0].profile.vus for each in (eu, us)] == [
            6,
            4,
        ]
        assert job.id == "eu-1+us-1"

    asyncio.run(run())


def test_the_others_are_cancelled_if_one_does_not_take_its_part() -> None:
    async def run() -> None:
        eu, us = Datacenter("eu"), Datacenter("us")
        us.refuses = RequestRefused("the queue is full", "overloaded", ExitCode.USAGE)
        with pytest.raises(RequestRefused, match="us: the queue is full"):
            await split(eu, us)()
        assert eu.cancelled == ["us did not take its part"]

    asyncio.run(run())


def test_all_must_be_reached_and_be_different() -> None:
    async def run() -> None:
        eu, us = Datacenter("eu"), Datacenter("us")
        connections = {each.name: each.connection for each in (eu, us)}
        await reach_all(connections, None)
        us.refuses = Unreachable("no manager answers")
        with pytest.raises(Unreachable, match="us: no manager answers; nothing was started"):
            await reach_all(connections, None)
        us.refuses, us.group = None, eu.group
        with pytest.raises(SquallError, match="eu and us are the same datacenter"):
            await reach_all(connections, None)

    asyncio.run(run())


def test_the_results_are_merged() -> None:
    async def run() -> None:
        job = await split(Datacenter("eu"), Datacenter("us"))()
        await job.run(SplitObserver())
        outcome = outcome_from(await job.result())
        assert outcome.stats.workflows["Shop"].rows["home"].count == 16
        assert [each.name for each in outcome.datacenters] == ["eu", "us"]

    asyncio.run(run())


def test_a_datacenter_that_is_lost_leaves_what_it_reported() -> None:
    async def run() -> None:
        eu, us = Datacenter("eu"), Datacenter("us")
        us.lost_after = 1
        notices: list[str] = []
        job = await split(eu, us)()
        await job.run(SplitObserver(on_notice=notices.append))
        outcome = outcome_from(await job.result())
        assert outcome.stats.workflows["Shop"].rows["home"].count == 8 + 4
        assert (outcome.exit_code, outcome.datacenters[1].state) == (ExitCode.INVALID, "lost")
        assert notices == ["us is lost: us:7400: gave up after 1 s"]

    asyncio.run(run())


def test_no_datacenter_left_is_an_error() -> None:
    async def run() -> None:
        eu, us = Datacenter("eu"), Datacenter("us")
        eu.lost_after = us.lost_after = 0
        job = await split(eu, us)()
        with pytest.raises(Unreachable, match="no datacenter answers"):
            await job.run(SplitObserver())

    asyncio.run(run())


def test_a_datacenter_that_cannot_run_the_file_ends_the_others() -> None:
    async def run() -> None:
        eu, us = Datacenter("eu"), Datacenter("us")
        eu.waits_for_cancel = True
        us.ends, us.reason, us.refusal = "failed", "module not installed", "module not installed"
        job = await split(eu, us)()
        await job.run(SplitObserver())
        assert eu.cancelled == ["us cannot run its part"]
        with pytest.raises(SquallError, match="us: module not installed"):
            outcome_from(await job.result())

    asyncio.run(run())


def test_a_threshold_over_all_datacenters_ends_them() -> None:
    async def run() -> None:
        eu, us = Datacenter("eu"), Datacenter("us")
        for each in (eu, us):
            each.waits_for_cancel, each.seconds = True, 4
        shown: list[Snapshot] = []
        job = await split(eu, us, thresholds=("us: home.p(99) < 100ms, abort",))()
        await job.run(SplitObserver(on_snapshot=shown.append))
        assert eu.cancelled == us.cancelled == ["threshold us: home.p(99) < 100ms, abort"]
        outcome = outcome_from(await job.result())
        assert outcome.aborted_by == "us: home.p(99) < 100ms, abort"
        assert outcome.exit_code == ExitCode.THRESHOLDS
        assert shown[-1].datacenters[0].name == "eu"

    asyncio.run(run())
