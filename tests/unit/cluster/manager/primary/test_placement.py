"""Which cores a phase gets, and which job is placed next."""

from __future__ import annotations

import msgspec
import pytest

from squall.cluster.datacenter.commands import (
    AddWorker,
    Assignment,
    Configure,
    LoseAttempts,
    LostAttempt,
    PlaceWorkflows,
    RefillShares,
    Started,
    StartWorkflows,
)
from squall.cluster.datacenter.records import JobRecord
from squall.cluster.manager.primary.placement import (
    DoesNotFit,
    FreeCores,
    WorkerCore,
    fitted,
    least_cores,
    place_phase,
    pool_of,
    refill_core,
    specs_of,
    take_cores,
)
from squall.cluster.manager.primary.queue_order import (
    AGING_S,
    PASSING_S,
    WaitingJob,
    admitted,
    ordered,
    passing_ends_s,
    rank_of,
)
from squall.cluster.protocol.job_keys import Attempt, AttemptKey, JobId, ShareKey
from squall.cluster.protocol.messages import SpecValues
from squall.stats.manifest import Profile, WorkflowManifest
from tests.fakes.datacenter import Log, creation, submission, workflow


class World(Log):
    def __init__(self, **workers: int) -> None:
        super().__init__()
        self.apply(Configure(group="g", lease_ms=1000))
        for node, cores in workers.items():
            self.apply(AddWorker(node=node, boot="b", cores=cores, descriptors=1000))

    def job(self, *plans: WorkflowManifest) -> JobRecord:
        outcome = self.apply(creation(submission(*plans), f"k{self.op}"))
        return self.machine.tables.jobs[outcome.job]  # type: ignore[union-attr]

    def pool(self) -> FreeCores:
        return pool_of(self.machine.tables, self.machine.tables.workers.values())

    def place(self, job: JobRecord) -> dict[str, list[WorkerCore]]:
        plans = job.submission.manifest.workflows
        placements = place_phase(self.machine.tables, job, plans, self.pool(), {})
        self.apply(PlaceWorkflows(job=job.job, placements=tuple(placements)))
        return {
            each.workflow: [WorkerCore(a.node, a.boot, a.slot) for a in each.assignments]
            for each in placements
        }


def test_cores_are_taken_from_all_workers_in_turn() -> None:
    world = World(w1=1, w2=3, w3=2)
    chosen = [(core.node, core.slot) for core in take_cores(world.pool(), 5)]
    assert chosen == [("w2", 0), ("w3", 0), ("w1", 0), ("w2", 1), ("w3", 1)]
    assert len(take_cores(world.pool(), 99)) == 6


def test_a_phase_gets_the_free_cores_by_priority() -> None:
    world = World(w1=12, w2=12)
    job = world.job(
        workflow("Load", priority="high", vus=100),
        workflow("Data", is_test=False, vus=1),
        workflow("Metrics", priority="low", vus=100),
    )
    placed = world.place(job)
    # One core is kept for the work that is no test.
    assert {name: len(cores) for name, cores in placed.items()} == {
        "Load": 18,
        "Data": 1,
        "Metrics": 5,
    }
    assert len(world.machine.tables.slots) == 24


def test_users_and_iterations_sum_up_over_the_shares() -> None:
    world = World(w1=3, w2=3)
    job = world.job(workflow("Load", vus=2000))
    world.place(job)
    job = world.machine.tables.jobs[job.job]
    specs = specs_of(job, job.workflows[0], SpecValues())
    assert [spec.users for spec in specs] == [333, 333, 333, 333, 333, 335]


def test_what_does_not_fit_shares_cores_of_its_job_and_of_no_other() -> None:
    world = World(w1=2)
    first = world.job(workflow("A"), workflow("B"), workflow("C"))
    placed = world.place(first)
    assert set().union(*placed.values()) == {WorkerCore("w1", "b", 0), WorkerCore("w1", "b", 1)}
    assert world.pool().free_cores == 0


def test_processes_are_numbered_once_per_core_of_a_boot() -> None:
    world = World(w1=1, w2=1)
    job = world.job(workflow("A", vus=2), workflow("B", vus=2))
    world.place(job)
    numbers = {
        (facts.node, facts.slot): facts.process
        for _, facts in world.machine.tables.attempts_of(job.job)
    }
    assert sorted(numbers.values()) == [0, 1]


@pytest.mark.parametrize(
    ("priority", "vus", "least"),
    [
        ("auto", 100, 1),
        ("low", 100, 1),
        ("normal", 100, 2),
        ("high", 100, 6),
        ("high", 3, 3),
        ("exclusive", 1, 8),
    ],
)
def test_the_least_that_a_phase_begins_with(priority: str, vus: int, least: int) -> None:
    world = World(w1=8)
    plan = workflow("A", vus=vus, priority=priority)  # type: ignore[arg-type]
    assert least_cores([plan], world.pool()) == least


def test_closed_load_waits_for_as_many_cores_as_its_connections_need() -> None:
    world = World(w1=8)
    assert least_cores([workflow("A", vus=2500)], world.pool()) == 3


def test_open_load_is_clipped_to_the_sockets_and_closed_load_refused() -> None:
    profile = Profile(model="open", vus=10, max_vus=5000, rate_per_s=1.0)
    clipped = fitted(workflow("A", profile=profile), 2, 1000)
    assert clipped is not None and clipped.max_vus == 2000
    assert fitted(workflow("A", profile=profile), 5, 1000) is None
    assert fitted(workflow("A", vus=9_000_000), 1, 0) is None, "unknown limits do not clip"
    with pytest.raises(DoesNotFit, match=r"A: 3000 users .*2000 users fit on 2 cores"):
        fitted(workflow("A", vus=3000), 2, 1000)


class RefillWorld(World):
    """One job with one share, whose attempts fail one after the other."""

    def __init__(self, **workers: int) -> None:
        super().__init__(**workers)
        self.record = self.job(workflow("A", vus=1))
        self.share = ShareKey(self.record.job, "A", 0)
        self.place(self.record)
        started = Started("A", (Attempt(1),))
        self.apply(StartWorkflows(job=self.record.job, started=(started,), ahead_ms=0))

    def lose(self) -> None:
        last = self.machine.tables.last(self.share)
        assert last is not None
        key = AttemptKey(self.share.job, "A", 0, last.number)
        self.apply(LoseAttempts(lost=(LostAttempt(key, "gone", None, 0.0),)))

    def refill(self, *taken: WorkerCore) -> WorkerCore | None:
        return refill_core(self.machine.tables, self.record, self.pool(), self.share, taken)

    def lose_and_refill(self) -> str:
        """The worker that continues the share."""
        self.lose()
        core = self.refill()
        assert core is not None
        number = len(self.machine.tables.attempts[self.share]) + 1
        assignment = Assignment(0, Attempt(number), core.node, core.boot, core.slot, number)
        self.apply(RefillShares(job=self.record.job, workflow="A", assignments=(assignment,)))
        return core.node

    def restart(self, node: str, boot: str) -> None:
        cores = self.machine.tables.workers[node].cores
        self.apply(AddWorker(node=node, boot=boot, cores=cores, descriptors=1000))


def test_a_refill_prefers_another_worker_then_a_core_of_its_own_job() -> None:
    world = RefillWorld(w1=2, w2=1)
    world.lose()
    assert world.refill() == WorkerCore("w2", "b", 0)
    # What another share of the same command takes is shared, but not on the worker that failed.
    assert world.refill(WorkerCore("w2", "b", 0)) == WorkerCore("w2", "b", 0)
    world = RefillWorld(w1=2)
    world.lose()
    assert world.refill(WorkerCore("w1", "b", 0)) == WorkerCore("w1", "b", 1)
    world.place(world.job(workflow("B", vus=9)))
    assert world.pool().free_cores == 0
    assert world.refill() is None


def test_a_refill_avoids_every_worker_that_failed_the_share_while_there_is_another() -> None:
    world = RefillWorld(w1=1, w2=1, w3=1)
    assert [world.lose_and_refill(), world.lose_and_refill()] == ["w2", "w3"]
    # All have failed it once; the share goes to the first again, not to the last.
    assert world.lose_and_refill() == "w1"
    assert world.lose_and_refill() == "w2"


def test_a_restarted_worker_gets_its_share_back_once_rather_than_a_busy_one() -> None:
    world = RefillWorld(w1=1, w2=1)
    world.place(world.job(workflow("B", vus=1)))
    assert world.pool().free_cores == 0
    world.restart("w1", "b2")
    assert world.lose_and_refill() == "w1"
    # The second death of the worker counts: another one has a core now.
    world.restart("w1", "b3")
    world.apply(AddWorker(node="w3", boot="b", cores=1, descriptors=1000))
    assert world.lose_and_refill() == "w3"


def waiting(op: int, rank: int, waited_s: float = 0.0, least: int = 1, free: int = 4) -> WaitingJob:
    return WaitingJob(JobId(f"g-{op}"), op, rank, waited_s, waited_s, least, free)


def test_the_queue_is_by_rank_then_age_and_waiting_raises_a_job() -> None:
    queue = ordered([waiting(3, 1), waiting(1, 1), waiting(2, 3)])
    assert [each.op for each in queue] == [2, 1, 3]
    old = ordered([waiting(9, 4), waiting(1, 0, waited_s=5 * AGING_S)])
    assert [each.op for each in old] == [1, 9]


def test_small_jobs_pass_a_large_one_only_for_a_while() -> None:
    young = [waiting(1, 4, 1.0, least=8), waiting(2, 1)]
    assert admitted(young) == young[1]
    old = [waiting(1, 4, PASSING_S, least=8), waiting(2, 1)]
    assert admitted(old) is None
    assert passing_ends_s(young) == PASSING_S - 1.0
    assert admitted([]) is None and passing_ends_s([]) is None


def test_a_job_ranks_by_the_highest_of_its_workflows() -> None:
    assert rank_of(["low", "high"]) > rank_of(["normal"]) > rank_of([])


def test_a_plan_for_too_many_cores_takes_what_one_command_holds() -> None:
    world = World(w1=3000)
    job = world.job(workflow("A", vus=10_000))
    plans = job.submission.manifest.workflows
    (placement,) = place_phase(world.machine.tables, job, plans, world.pool(), {})
    assert placement.shares == 2500
    size = len(msgspec.msgpack.encode(placement))
    assert size < 200_000
