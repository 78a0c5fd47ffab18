"""Schedules in a store in memory, in virtual time, with a desk that makes jobs of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from lab.scenarios.coordination.store import WorldClock
from lab.sim.run import Scenario, run_seed
from lab.sim.world import World
from squall.cluster.protocol.bundle import Bundle, make_bundle
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.submission import Submission
from squall.cluster.results.assemble import assemble
from squall.cluster.results.job_result import JobResult, encode_result
from squall.cluster.wire.seal.secrets import Secrets, client_credential
from squall.coordination.election.term import Term
from squall.coordination.records.keys import LEADER
from squall.coordination.scheduler.records import JobRecord
from squall.coordination.stores.interface import ANY, Fence, Put
from squall.engine.run_options import RunOptions
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log, MemorySink
from squall.stats.manifest import Profile
from squall.store_mode.schedules.client import ScheduleClient, ScheduleRequest
from squall.store_mode.schedules.records import GRACE_S, ScheduledRun
from squall.store_mode.schedules.runner import ScheduleDependencies, ScheduleRunner
from squall.store_mode.schedules.submit import ObservedJob, SubmissionRefused, SubmitLater
from tests.unit.cluster.results.lab.records import ended as ended_part
from tests.unit.cluster.results.lab.records import manifest, parts, record, window
from tests.unit.store_mode.lab.ledgers import CountedStore, Lab

SECRET = "a secret of the schedules' tests"
CLUSTER = "load-eu"
HUSH = "never-in-the-store"
MINUTE = 60.0
LONG = Profile(model="closed", vus=10, max_vus=10, duration_s=40.0)


@dataclass
class FakeDesk:
    """Jobs by key, as managers make them. A job ends on demand."""

    is_open: bool = True
    ends_at_once: bool = True
    asked: list[str] = field(default_factory=list[str])
    """Every key that was handed in, also again."""
    jobs: dict[str, JobId] = field(default_factory=dict[str, JobId])
    seen: dict[str, ObservedJob] = field(default_factory=dict[str, ObservedJob])
    results: dict[str, bytes] = field(default_factory=dict[str, bytes])
    submissions: list[Submission] = field(default_factory=list[Submission])
    bundles: list[bytes] = field(default_factory=list[bytes])
    principals: list[str] = field(default_factory=list[str])
    refuses: str = ""
    loses_answers: int = 0
    stuck: asyncio.Event | None = None
    makes: Callable[[str], JobResult] | None = None

    async def submit(
        self, key: str, principal: str, submission: Submission, bundle: bytes
    ) -> JobId:
        self.asked.append(key)
        if self.stuck is not None:
            await self.stuck.wait()
        if self.refuses:
            raise SubmissionRefused(self.refuses)
        if key not in self.jobs:
            job = JobId(f"j-{len(self.jobs) + 1}")
            self.jobs[key] = job
            self.seen[job] = ObservedJob("running")
            self.submissions.append(submission)
            self.bundles.append(bundle)
            self.principals.append(principal)
            if self.ends_at_once:
                self.end(job)
        if self.loses_answers:
            self.loses_answers -= 1
            raise SubmitLater("the answer was lost")
        return self.jobs[key]

    def end(self, job: str, **changes: Any) -> None:
        made = self.makes(job) if self.makes is not None else result_of(job)
        self.results[job] = encode_result(made)
        self.seen[job] = ObservedJob("completed", result=job)._replace(**changes)

    def job_of_key(self, key: str, principal: str) -> JobId | None:
        return self.jobs.get(key)

    def look(self, job: JobId) -> ObservedJob | None:
        return self.seen.get(job)

    async def result(self, digest: str) -> bytes:
        return self.results[digest]


class ScheduleLab:
    """`lead` makes an agent that coordinates; `wait` lets time pass."""

    def __init__(self, store: CountedStore, runtimes: Callable[[str], Runtime]) -> None:
        self.store = store
        self.now = WorldClock(store.world, 1.0).wall
        self.submitter = FakeDesk()
        self._runtimes = runtimes
        self._clock = runtimes("client").clock
        self._running: list[asyncio.Task[None]] = []
        self.sink = MemorySink()

    def book(self, principal: str = "ann", secret: str = SECRET) -> ScheduleClient:
        secrets = Secrets.of_credential(client_credential(secret, principal))
        return ScheduleClient(self.store, self._runtimes("client"), secrets, CLUSTER)

    async def add(self, name: str = "shop", *, secret: str = SECRET, **wishes: Any) -> None:
        times: dict[str, Any] = {"every": MINUTE, "grace": GRACE_S, "misfire": "skip"}
        times |= {
            key: wishes.pop(key) for key in tuple(wishes) if key in JobRecord.__struct_fields__
        }
        request = ScheduleRequest(name=name, times=JobRecord(**times), **wishes)
        await self.book(secret=secret).add(request, *submission_of())

    async def lead(
        self, name: str, epoch: int, *, secrets: Secrets | None = None
    ) -> Callable[[], Awaitable[None]]:
        """Coordinates from now on; what it gives ends that, as a crash does."""
        schedules = await self.elected(name, epoch, secrets=secrets)
        task = asyncio.ensure_future(schedules.run())
        self._running.append(task)

        async def crash() -> None:
            task.cancel()
            await asyncio.wait([task])

        return crash

    async def elected(
        self, name: str, epoch: int, *, secrets: Secrets | None = None
    ) -> ScheduleRunner:
        """One that does nothing by itself."""
        put = Put(LEADER, b"", expect=ANY, ttl_s=None)
        await self.store.write(put, fence=Fence(LEADER, epoch))
        term = Term(epoch, self.store, lambda: True, lambda _: None)
        runtime = self._runtimes(name)
        dependencies = ScheduleDependencies(
            runtime=runtime,
            store=self.store,
            submitter=self.submitter,
            secrets=secrets or Secrets.of_node(SECRET),
            cluster=CLUSTER,
            now=self.now,
            poll_s=1.0,
            log=Log(self.sink, runtime.clock),
        )
        return ScheduleRunner(dependencies, term)

    async def wait(self, seconds: float) -> None:
        await self._clock.sleep(seconds)

    async def until_due(self, every_s: float = MINUTE, *, plus_s: float = 2.0) -> None:
        """To just after the next multiple."""
        await self.wait(every_s - self.now() % every_s + plus_s)

    async def runs(self, name: str = "shop") -> list[ScheduledRun]:
        return list((await self.book().entry(name)).progress.runs)

    async def end(self) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)


def played(script: Callable[[ScheduleLab], Awaitable[None]], *, bound: bool = True) -> None:
    async def scenario(world: World) -> None:
        lab = Lab(world, bound=bound)
        made = ScheduleLab(lab.store, lab.runtime)
        try:
            await script(made)
        finally:
            await made.end()

    outcome = run_seed(Scenario("test", "", scenario, limit_s=30 * 86_400.0), 1)
    assert outcome.clean, outcome.failure + "\n" + outcome.details


def submission_of() -> tuple[Submission, Bundle]:
    bundle = make_bundle({"shop.py": b"print('shop')"}, entry="shop.py", python="3.11")
    submission = Submission(
        bundle=bundle.digest,
        bundle_size=len(bundle.data),
        contents=bundle.manifest,
        manifest=manifest(LONG),
        options=RunOptions(file="shop.py", secrets={"TOKEN": HUSH}),
    )
    return submission, bundle


def result_of(job: str, latency_s: float = 0.010, **changes: Any) -> JobResult:
    """Forty seconds with thirty requests each, all of about this latency."""
    values = [latency_s * (1.0 + 0.01 * (number % 7)) for number in range(30)]
    made = record(0, [window(second, 0, values, users=10) for second in range(40)], elapsed_s=40.0)
    attempt = ended_part(made, shares=1)
    fields: dict[str, Any] = {"job": job, "elapsed_s": 40.1} | changes
    return assemble(manifest(LONG), RunOptions(), parts([attempt], **fields))
