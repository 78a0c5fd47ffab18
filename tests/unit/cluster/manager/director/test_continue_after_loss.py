"""`continue`: the load of a lost machine is done without, and one that is only cut off runs on."""

from __future__ import annotations

import math

import msgspec
import pytest

from squall.cluster.datacenter.commands import Accepted
from squall.cluster.datacenter.records import AttemptFacts, WorkflowRecord
from squall.cluster.manager.primary.lease_rules import Grants, lease_end, lost_at, over_at
from squall.cluster.protocol.job_keys import Attempt, JobId
from squall.cluster.protocol.timers import Timers
from squall.engine.run_options import RunOptions
from squall.stats.manifest import Profile
from tests.fakes.datacenter import FAST, Bench, creation, submission, workflow

TIMERS = Timers()
LIVE = AttemptFacts(
    number=Attempt(1), node="w1", boot="b", slot=0, process=0, created_ms=0, lease_ms=15_000
)
GRANTS = Grants(50.0, 0.0, 0.0)


def going_on(bench: Bench, duration_s: float) -> JobId:
    made = submission(workflow("Load", vus=2, duration_s=duration_s))
    options = RunOptions(file="file.py", on_agent_loss="continue")
    bench.settle()
    outcome = bench.apply(creation(msgspec.structs.replace(made, options=options)))
    assert isinstance(outcome, Accepted)
    bench.settle()
    return outcome.job


def test_a_lease_that_the_job_asks_for_counts_where_it_is_longer() -> None:
    assert lost_at(LIVE, GRANTS, TIMERS, 300.0) == pytest.approx(50.0 + 1.1 * 300.0 + 1.0)
    assert lost_at(LIVE, GRANTS, TIMERS, 5.0) == pytest.approx(50.0 + 1.1 * 15.0 + 1.0)
    assert lost_at(msgspec.structs.replace(LIVE, dead=True), GRANTS, TIMERS, 300.0) == -math.inf
    assert lease_end(LIVE, GRANTS, 1000.0, 300.0) == 350.0


def test_an_attempt_is_over_by_itself_when_plan_grace_and_ladder_are() -> None:
    record = WorkflowRecord(name="Load", layer=0, started_ms=10_000, shares=1)
    profile = Profile(model="closed", vus=2, max_vus=2, duration_s=60.0, grace_s=5.0)
    at = over_at(record, profile, 100.0, 30_000, TIMERS)
    assert at == pytest.approx(100.0 - 20.0 + 1.1 * (60.0 + 5.0 + TIMERS.stop_grace_s))


def test_a_killed_machine_is_not_refilled_and_the_job_ends_soon_after_its_plan() -> None:
    bench = Bench(w1=1, w2=2)
    job = going_on(bench, 20)
    bench.run(3)
    bench.workers["w1"].kill()
    record = bench.finish(job)
    assert record.state == "completed"
    assert (record.workflows[0].attempts, record.workflows[0].lost) == (2, 1)
    planned_s = 1.1 * (20 + 1 + FAST.stop_grace_s) + FAST.outbox_wait_s
    assert 20 < bench.now - _began(bench, job) <= planned_s + 3


def test_a_machine_that_is_cut_off_for_longer_than_a_lease_is_not_lost() -> None:
    bench = Bench(w1=1, w2=1)
    job = going_on(bench, 30)
    bench.run(3)
    bench.workers["w1"].connected = False
    bench.run(2 * FAST.lost_after_s)
    assert bench.wf(job, "Load").lost == 0
    bench.restart_manager()
    bench.run(2 * FAST.lost_after_s)
    assert bench.wf(job, "Load").lost == 0


def test_machines_that_end_while_nobody_leads_are_not_lost() -> None:
    bench = Bench(w1=1, w2=1)
    job = going_on(bench, 10)
    bench.run(8)
    bench.manager_up = False
    bench.run(30)
    bench.manager_up = True
    for worker in bench.workers.values():
        worker.connected = False
    bench.restart_manager()
    bench.run(0.5 * FAST.lost_after_s)
    assert bench.wf(job, "Load").lost == 0
    for worker in bench.workers.values():
        worker.connected = True
    record = bench.finish(job)
    assert record.state == "completed"
    assert (record.workflows[0].attempts, record.workflows[0].lost) == (2, 0)


def test_before_the_start_a_machine_is_lost_as_always() -> None:
    bench = Bench(w1=1, w2=1)
    bench.hold = lambda effect: "start" in getattr(effect, "tag", "")
    job = going_on(bench, 30)
    bench.run(1)
    assert not bench.wf(job, "Load").started_ms
    bench.workers["w1"].kill()
    bench.run(FAST.lost_after_s + 1.0)
    assert any(facts.state == "lost" for _, facts in bench.machine.tables.attempts_of(job))


def test_a_machine_that_proves_its_death_is_lost_at_once_and_not_refilled() -> None:
    bench = Bench(w1=1, w2=1)
    job = going_on(bench, 20)
    bench.run(5)
    bench.workers["w1"].kill()
    bench.workers["w1"].restart(proven=True)
    bench.run(0.5)
    assert bench.wf(job, "Load").lost == 1
    record = bench.finish(job)
    assert record.workflows[0].attempts == 2


def _began(bench: Bench, job: JobId) -> float:
    return bench.now - (bench.group_ms - bench.job(job).created_ms) / 1000.0
