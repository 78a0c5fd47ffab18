"""Held jobs: cores are reserved and code is loaded, but nothing runs before the gates start it."""

from __future__ import annotations

from squall.cluster.datacenter.commands import Accepted, AcceptJob, CancelHeld, StartHeld
from squall.cluster.datacenter.gated_records import GatedTry
from squall.cluster.datacenter.gated_rules import try_of
from squall.cluster.protocol.gates.handover_keys import GateFence, HandoverNumber
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import AttemptStatus
from tests.fakes.datacenter import Bench, creation, submission, workflow

GATE_JOB = JobId("g1-7")
FENCE = GateFence("g1", 0, 1)
ONE = HandoverNumber(1)


def accept(bench: Bench, duration_s: float = 3.0) -> JobId:
    bench.settle()
    command = AcceptJob(
        gate_job=GATE_JOB,
        datacenter="eu",
        handover=ONE,
        fence=FENCE,
        create=creation(submission(workflow("A", duration_s=duration_s))),
    )
    outcome = bench.apply(command)
    assert isinstance(outcome, Accepted), outcome
    bench.settle()
    return outcome.job


def start(bench: Bench) -> None:
    assert isinstance(
        bench.apply(StartHeld(gate_job=GATE_JOB, handover=ONE, fence=FENCE)), Accepted
    )
    bench.settle()


def cancel(bench: Bench) -> None:
    stop = CancelHeld(gate_job=GATE_JOB, handover=ONE, fence=FENCE, reason="moved", now=True)
    assert isinstance(bench.apply(stop), Accepted)
    bench.settle()


def tried(bench: Bench, job: JobId) -> GatedTry:
    found = try_of(bench.machine.tables, bench.job(job))
    assert found is not None
    return found


def losses(bench: Bench) -> list[str]:
    attempts = bench.machine.tables.attempts.values()
    return [each.reason for share in attempts for each in share if each.state == "lost"]


def test_a_held_job_gets_ready_without_a_lease_and_starts_when_the_gates_say_so() -> None:
    bench = Bench(w1=2, w2=2)
    job = accept(bench)
    bench.until(lambda: tried(bench, job).state == "ready")
    bench.run(20.0)
    leases = [m.lease_until for w in bench.workers.values() for m in w.held.values()]
    assert leases and max(leases) < 0.0, "an attempt of a held job got a lease"
    assert not bench.job(job).started_ms
    start(bench)
    bench.until(lambda: bool(bench.job(job).started_ms), 5.0)
    assert bench.finish(job).state == "completed"
    assert tried(bench, job).state == "ended"


def test_a_held_job_is_released_at_once_also_by_a_new_primary() -> None:
    bench = Bench(w1=2)
    job = accept(bench)
    bench.until(lambda: tried(bench, job).state == "ready")
    bench.restart_manager()
    bench.workers["w1"].connected = False
    cancel(bench)
    # No lease was ever granted, so the cores are free although the worker does not answer.
    assert bench.until(lambda: bench.job(job).over) < 1.5
    assert not bench.machine.tables.slots
    assert tried(bench, job).state == "cancelled"


def test_a_part_that_loses_a_worker_is_no_longer_ready_and_prepares_again() -> None:
    bench = Bench(w1=2, w2=2)
    job = accept(bench)
    bench.until(lambda: tried(bench, job).state == "ready")
    revision = tried(bench, job).revision
    node = next(iter(bench.machine.tables.live))
    bench.workers[node].kill()
    bench.workers[node].restart()
    bench.register(bench.workers[node])
    bench.until(lambda: tried(bench, job).state == "accepted")
    bench.until(lambda: tried(bench, job).state == "ready")
    assert tried(bench, job).revision == revision + 2


def test_a_held_job_is_not_given_up_while_it_waits_for_the_other_datacenters() -> None:
    bench = Bench(w1=2)
    job = accept(bench)
    bench.until(lambda: tried(bench, job).state == "ready")
    bench.run(bench.times.prepare_timeout_s + 5.0)
    assert tried(bench, job).state == "ready"
    start(bench)
    assert bench.finish(job).state == "completed"


def test_a_held_share_outlasts_its_lease_while_its_worker_is_heard() -> None:
    bench = Bench(w1=2)
    job = accept(bench)
    bench.until(lambda: tried(bench, job).state == "ready")
    first = tried(bench, job)
    # A datacenter that is slow keeps the others waiting for longer than any lease.
    bench.run(3.0 * bench.times.lost_after_s)
    assert tried(bench, job) == first
    assert not bench.job(job).started_ms
    # The first grant comes with the next session, when the share is older than every lease.
    start(bench)
    assert bench.finish(job).state == "completed"
    assert not losses(bench)


def test_a_new_primary_does_not_lose_the_held_shares_of_the_former_one() -> None:
    bench = Bench(w1=2)
    job = accept(bench)
    bench.until(lambda: tried(bench, job).state == "ready")
    bench.run(2.0 * bench.times.lost_after_s)
    bench.restart_manager()
    start(bench)
    assert bench.finish(job).state == "completed"
    assert not losses(bench)


def test_a_held_share_is_lost_once_its_worker_is_silent() -> None:
    bench = Bench(w1=2, w2=2)
    job = accept(bench)
    bench.until(lambda: tried(bench, job).state == "ready")
    node = next(iter(bench.machine.tables.live))
    bench.workers[node].connected = False
    bench.run(2.0 * bench.times.lost_after_s)
    assert losses(bench)
    bench.until(lambda: tried(bench, job).state == "ready")
    assert not bench.machine.tables.live[node]


def test_a_part_whose_code_cannot_be_loaded_is_refused_for_good() -> None:
    bench = Bench(w1=2)
    bench.workers["w1"].refuse = lambda key: AttemptStatus(
        key=key, phase="refused", text="no module shop", exit_code=104
    )
    job = accept(bench)
    bench.finish(job)
    end = tried(bench, job)
    assert (end.state, end.is_final, end.exit_code) == ("refused", True, 104)
    assert "no module shop" in end.reason
