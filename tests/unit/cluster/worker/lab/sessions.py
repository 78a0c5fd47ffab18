"""A session core, and answers for it in one line."""

from __future__ import annotations

from typing import Any, TypeVar

from squall.cluster.protocol.job_keys import Attempt, AttemptKey, JobId
from squall.cluster.protocol.messages import (
    GoOrder,
    JobBrief,
    Preparation,
    SessionAnswer,
    StopOrder,
)
from squall.cluster.protocol.timers import Timers
from squall.cluster.worker.effects import SessionEffect
from squall.cluster.worker.session import WorkerSession
from squall.engine.core_protocol import ShareSpec
from squall.engine.run_options import RunOptions
from squall.stats.manifest import Profile

JOB = JobId("k3f9-7")
PROFILE = Profile(vus=2, max_vus=2, duration_s=60.0, grace_s=3.0)
TIMERS = Timers(stop_grace_s=10.0, go_round_trip_max_s=0.5)
E = TypeVar("E")


def key(share: int = 0, attempt: int = 1) -> AttemptKey:
    return AttemptKey(JOB, "Shop", share, Attempt(attempt))


def brief(**fields: Any) -> JobBrief:
    options: RunOptions = fields.pop("options", RunOptions(url="http://x"))
    return JobBrief(job=JOB, bundle="", bundle_size=0, entry="", options=options, **fields)


def preparation(share: int = 0, attempt: int = 1, **fields: Any) -> Preparation:
    spec = ShareSpec(workflow="Shop", share=share, shares=4, profile=PROFILE, users=2, users_max=2)
    return Preparation(key=key(share, attempt), spec=spec, **{"slot": 0, "process": 0, **fields})


class Lab:
    """One worker of two cores. Time is what the test says."""

    def __init__(self, cores: int = 2) -> None:
        self.session = WorkerSession("w1", "boot-1", cores, TIMERS)
        self.now = 100.0
        self.boot_now = 5000.0
        self.committed = 10

    def exchange(self, *, took_s: float = 0.01, **fields: Any) -> list[SessionEffect]:
        """A request and, so much later, the answer to it."""
        request = self.session.request(self.now, self.boot_now)
        return self.answer(request.sequence, took_s=took_s, **fields)

    def answer(self, sequence: int, *, took_s: float = 0.0, **fields: Any) -> list[SessionEffect]:
        self.now += took_s
        self.boot_now += took_s
        given: dict[str, Any] = {"epoch": 1, "view": 1, "committed": self.committed}
        given |= {"lease_s": 15.0, "sequence": sequence, **fields}
        return self.session.answer(SessionAnswer(**given), self.now)

    def prepare(self, *attempts: Preparation, **fields: Any) -> list[SessionEffect]:
        return self.exchange(
            jobs=[brief(**fields)],
            prepare=list(attempts),
            granted=[attempt.key for attempt in attempts],
        )

    def running(self, share: int = 0, attempt: int = 1, **fields: Any) -> AttemptKey:
        which = key(share, attempt)
        self.prepare(preparation(share, attempt, **fields))
        self.session.on_ready(which)
        self.exchange(granted=[which], go=[go(which)])
        assert self.phase(which) == "running"
        return which

    def ticks(self, seconds: float) -> list[SessionEffect]:
        """Time passes, and the session ticks ten times a second."""
        effects: list[SessionEffect] = []
        until = self.now + seconds
        while self.now < until:
            step_s = min(0.1, until - self.now)
            self.now += step_s
            self.boot_now += step_s
            effects += self.session.tick(self.now)
        return effects

    def phase(self, which: AttemptKey) -> str:
        statuses = {s.key: s for s in self.session.request(self.now, self.boot_now).attempts}
        return statuses[which].phase if which in statuses else ""


def go(which: AttemptKey, elapsed_s: float = 0.0) -> GoOrder:
    return GoOrder(key=which, elapsed_s=elapsed_s, run_elapsed_s=elapsed_s)


def stop(which: AttemptKey, **fields: Any) -> StopOrder:
    return StopOrder(key=which, **fields)


def only(effects: list[SessionEffect], kind: type[E]) -> list[E]:
    return [effect for effect in effects if isinstance(effect, kind)]
