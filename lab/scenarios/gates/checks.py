"""Watches the engine and the target of all datacenters, and judges every job of the gates.

A part of a job is a job of its datacenter, whose id begins with that of the gates' job. The checks
know the committed state of the gates from the machines of all their boots, also those that crashed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from lab.scenarios.datacenter.engine_model import (
    OPEN_EXCESS,
    TICK_S,
    ModelCore,
    ModelEngine,
    ModelHost,
    ModelTarget,
)
from lab.sim.checks import check
from lab.sim.world import World
from squall.cluster.assignments.records import GateJobRecord
from squall.cluster.gate.node import GateNode
from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.worker.share_host import ShareOrder
from squall.runtime.interfaces import Runtime


def gate_job_of(job: str) -> JobId:
    return JobId(job.partition(".")[0])


@dataclass
class GatesWatch:
    """The observations of one run, and the checks on them."""

    world: World
    # Every boot of every gate.
    boots: list[GateNode] = field(default_factory=list[GateNode])
    # Users of all shares, by gates' job and workflow: id -> the part that has it.
    users: dict[tuple[str, str], dict[int, int]] = field(
        default_factory=dict[tuple[str, str], dict[int, int]]
    )
    # Parts whose start is committed.
    started: set[str] = field(default_factory=set[str])

    def record(self, job: JobId) -> GateJobRecord | None:
        """The newest record of a job in any boot of any gate."""
        found = [each.machine.tables.jobs.get(job) for each in self.boots]
        known = [each for each in found if each is not None]
        return max(known, key=lambda each: each.touched) if known else None

    def must_be_started(self, part: str, what: str) -> None:
        if part in self.started or "." not in part:
            # A job that a client submitted to a datacenter starts by itself.
            return
        record = self.record(gate_job_of(part))
        is_started = record is not None and record.started_ms > 0
        check(is_started, f"{part} {what}, and no gate has committed its start")
        self.started.add(part)

    def prepared(self, order: ShareOrder) -> None:
        """The user ids of all parts of a workflow are disjoint."""
        key, spec = order.key, order.spec
        if "." not in key.job:
            return
        part = self.part_of(key.job)
        ids = self.users.setdefault((gate_job_of(key.job), key.workflow), {})
        for number in range(spec.users):
            user = spec.first_id + number * spec.id_step
            other = ids.setdefault(user, part)
            check(other == part, f"user {user} of {key.job} is in part {other} and in part {part}")

    def part_of(self, job: str) -> int:
        """The part that a local job is a try of."""
        record, local = self.record(gate_job_of(job)), job.partition(".")[2]
        for part in record.parts if record is not None else ():
            for tried in part.tries:
                if local == f"{tried.datacenter}{tried.handover}":
                    return part.index
        raise AssertionError(f"no gate has assigned {job}")


class GatesTarget(ModelTarget):
    """One target for all datacenters: it also checks the rate of the whole job."""

    def __init__(self, world: World, watch: GatesWatch) -> None:
        super().__init__(world)
        self._watch = watch
        self._whole: dict[tuple[str, str], deque[tuple[float, int]]] = {}

    def arrived(
        self, key: AttemptKey, requests: int, rate_per_s: float = 0.0, sender: str = ""
    ) -> None:
        self._watch.must_be_started(key.job, "sends")
        super().arrived(key, requests, rate_per_s, sender)
        record = self._watch.record(gate_job_of(key.job))
        if record is None or not rate_per_s:
            return
        plan = record.submission.manifest.workflow(key.workflow).profile.rate_per_s
        now = self._watch.world.now
        second = self._whole.setdefault((str(record.job), key.workflow), deque())
        second.append((now, requests))
        while second[0][0] <= now - 1.0 + TICK_S / 2:
            second.popleft()
        made = sum(count for _, count in second)
        # A start planned at the end of a tick may happen in the next, in each datacenter.
        most = OPEN_EXCESS * plan + TICK_S * plan + len(record.parts)
        check(made <= most, f"{record.job}: {made} starts in a second of a plan of {plan:g}")

    def total(self, job: str) -> int:
        return sum(n for key, n in self.by_attempt.items() if gate_job_of(key.job) == job)


class GatesHost(ModelHost):
    """An attempt host that reports to the checks what its worker prepares."""

    def __init__(self, engine: ModelEngine, runtime: Runtime, watch: GatesWatch) -> None:
        super().__init__(engine, runtime)
        self._watch = watch

    def prepare(self, order: ShareOrder) -> None:
        self._watch.prepared(order)
        super().prepare(order)

    def opened(self, core: ModelCore) -> None:
        self._watch.must_be_started(core.key.job, "opens users")

    def set_lease(self, key: AttemptKey, until: float, boot_until: float) -> None:
        self._watch.must_be_started(key.job, "gets a lease")
        super().set_lease(key, until, boot_until)
