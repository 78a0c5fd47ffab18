"""Workers that die, restart or are cut off in mid-run: refilled, counted, never twice."""

from __future__ import annotations

import pytest

from squall.cluster.datacenter.records import AttemptFacts
from squall.cluster.manager.primary.effects import AssembleResult
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.timers import Timers, timers
from squall.stats.manifest import Profile
from tests.fakes.datacenter import FAST, Bench, workflow


def outcomes(bench: Bench, job: JobId) -> dict[str, str]:
    return {w.name: str(w.outcome) for w in bench.job(job).workflows}


def test_a_killed_worker_is_refilled_on_another_after_the_lease_and_not_before() -> None:
    bench = Bench(w1=1, w2=2)
    job = bench.submit(workflow("Load", vus=2, duration_s=30))
    bench.run(3)
    bench.workers["w1"].kill()
    killed = bench.now
    bench.until(lambda: bench.wf(job, "Load").lost > 0)
    assert bench.now - killed >= FAST.lost_after_s - FAST.session_interval_s - 0.1
    record = bench.finish(job)
    assert record.state == "completed"
    assert record.workflows[0].attempts == 3
    assert record.workflows[0].lost == 1


def test_a_restarted_worker_that_proves_the_death_is_refilled_at_once() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=20))
    bench.run(5)
    bench.workers["w1"].kill()
    bench.workers["w1"].restart(proven=True)
    bench.run(0.5)
    assert bench.wf(job, "Load").lost == 1
    bench.finish(job)
    assert outcomes(bench, job) == {"Load": "completed"}


def lost_attempt(bench: Bench) -> AttemptFacts:
    every = [each for attempts in bench.machine.tables.attempts.values() for each in attempts]
    (lost,) = [each for each in every if each.state == "lost"]
    return lost


def silence_of_a_killed_worker(away_s: float, *, is_seen: bool, is_proven: bool = True) -> float:
    """Seconds from its death to the end of its silence, by the log. It returns after `away_s`."""
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=60))
    bench.run(5)
    worker = bench.workers["w1"]
    worker.kill()
    died_s = (bench.group_ms - bench.wf(job, "Load").started_ms) / 1000.0
    if is_seen:
        worker.died_at = bench.now
    bench.run(away_s)
    worker.restart(proven=is_proven)
    bench.until(lambda: bench.wf(job, "Load").lost == 1)
    return lost_attempt(bench).silent_to_s - died_s


def test_the_silence_of_a_killed_worker_ends_at_its_death_if_its_launcher_saw_it() -> None:
    # Five percent of the time it was away: its clock may be the faster one.
    assert 0.0 <= silence_of_a_killed_worker(2.0, is_seen=True) <= 0.05 * 2.0 + 0.02
    assert silence_of_a_killed_worker(2.0, is_seen=False) >= 1.9


def test_the_silence_of_a_worker_that_died_after_its_lease_ends_with_the_lease() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=60))
    bench.run(5)
    worker = bench.workers["w1"]
    # It hangs: no session, no record at the end of its lease.
    worker.kill()
    cut_s = (bench.group_ms - bench.wf(job, "Load").started_ms) / 1000.0
    bench.run(FAST.execution_lease_s + 0.1)
    worker.died_at = bench.now
    worker.restart()
    bench.until(lambda: bench.wf(job, "Load").lost == 1)
    assert lost_attempt(bench).silent_to_s <= cut_s + FAST.execution_lease_s


def test_the_time_of_a_death_without_proof_means_nothing() -> None:
    silence_s = silence_of_a_killed_worker(0.5, is_seen=True, is_proven=False)
    assert silence_s >= FAST.execution_lease_s - FAST.session_interval_s


def test_an_unproven_boot_waits_the_full_time() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=30))
    bench.run(5)
    bench.workers["w1"].kill()
    bench.workers["w1"].restart(proven=False)
    bench.run(FAST.lost_after_s - 1.0)
    assert bench.wf(job, "Load").lost == 0
    bench.run(2)
    assert bench.wf(job, "Load").lost == 1


def test_a_worker_with_an_empty_directory_proves_nothing_of_one_that_is_cut_off() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=30))
    bench.run(5)
    # It makes load until its lease ends; the bench fails the test if another attempt does too.
    bench.usurp("w1", connected=False)
    bench.run(FAST.lost_after_s - 1.0)
    assert bench.workers["w1"].registered
    assert bench.wf(job, "Load").lost == 0
    bench.run(2)
    assert bench.wf(job, "Load").lost == 1
    bench.finish(job)
    assert outcomes(bench, job) == {"Load": "completed"}


def test_the_name_of_a_worker_that_is_heard_is_refused_to_another() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=10))
    bench.run(5)
    bench.usurp("w1", connected=True)
    bench.run(2)
    assert not bench.workers["w1"].registered
    assert any("another worker calls itself w1, heard 0." in line for line in bench.log)
    bench.finish(job)
    assert bench.wf(job, "Load").lost == 0


def test_the_record_that_a_restarted_worker_holds_ends_its_attempt() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=5))
    worker = bench.workers["w1"]
    bench.until(lambda: bench.wf(job, "Load").started_ms > 0)
    bench.run(4.5)
    worker.connected = False
    bench.run(1.5)
    worker.kill()
    worker.connected = True
    worker.restart()
    record = bench.finish(job)
    assert record.state == "completed" and record.workflows[0].lost == 0


def test_with_little_time_left_there_is_no_refill_and_the_outbox_is_awaited() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=6))
    bench.run(3)
    bench.workers["w1"].kill()
    bench.until(lambda: bench.wf(job, "Load").lost == 1)
    lost_ms = bench.group_ms
    record = bench.finish(job)
    waited_s = (bench.group_ms - lost_ms) / 1000
    assert FAST.outbox_wait_s - 0.1 <= waited_s < FAST.outbox_wait_s + 2
    assert record.workflows[0].attempts == 2
    assert record.state == "completed"


DEFAULTS = pytest.mark.parametrize("times", [timers("lan", 1), timers("lan", 3)])
"""What people get with one manager, and with three."""


def killed_at_the_end(times: Timers) -> tuple[Bench, JobId]:
    """w1 is killed 1.5 s before the end of the first of two layers."""
    bench = Bench(times, w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=20), workflow("After", "Load", vus=1))
    bench.until(lambda: bench.wf(job, "Load").started_ms > 0)
    bench.run(18.5)
    bench.workers["w1"].kill()
    return bench, job


@DEFAULTS
def test_a_loss_in_the_last_seconds_is_no_timeout_and_later_layers_run(times: Timers) -> None:
    bench, job = killed_at_the_end(times)
    killed = bench.now
    bench.until(lambda: bench.wf(job, "Load").over)
    assert bench.now - killed <= times.lost_after_s + 2.0 + 0.1
    assert bench.finish(job).state == "completed"
    assert outcomes(bench, job) == {"Load": "completed", "After": "completed"}


@DEFAULTS
def test_with_a_proof_a_loss_in_the_last_seconds_costs_nothing(times: Timers) -> None:
    bench, job = killed_at_the_end(times)
    bench.run(0.5)
    bench.workers["w1"].restart(proven=True)
    bench.until(lambda: bench.wf(job, "Load").over, 2.5)
    assert bench.finish(job).state == "completed"


@DEFAULTS
def test_the_outbox_of_a_boot_that_was_replaced_is_not_awaited(times: Timers) -> None:
    bench, job = killed_at_the_end(times)
    bench.run(4.0 * times.session_interval_s)
    bench.workers["w1"].restart(proven=False)
    bench.until(lambda: bench.wf(job, "Load").lost == 1)
    bench.until(lambda: bench.wf(job, "Load").over, 0.2)
    assert bench.finish(job).state == "completed"


@DEFAULTS
def test_a_worker_that_is_cut_off_at_the_end_brings_its_record_when_it_returns(
    times: Timers,
) -> None:
    bench = Bench(times, w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=20))
    bench.until(lambda: bench.wf(job, "Load").started_ms > 0)
    bench.run(18.5)
    bench.workers["w1"].connected = False
    bench.until(lambda: bench.wf(job, "Load").lost == 1)
    bench.workers["w1"].connected = True
    # Attempts are forgotten when the job is over.
    bench.hold = lambda effect: isinstance(effect, AssembleResult)
    bench.until(lambda: bench.wf(job, "Load").over, 2.1)
    facts = [a.facts for _, a in bench.machine.tables.attempts_of(job) if a.state == "lost"]
    assert [fact.complete for fact in facts if fact is not None] == [True]


@DEFAULTS
def test_the_time_of_a_job_allows_for_a_loss_in_each_layer(times: Timers) -> None:
    bench = Bench(times, w1=1, w2=1)
    layers = [workflow("L1"), workflow("L2", "L1"), workflow("L3", "L2")]
    job = bench.submit(*layers)
    bench.until(lambda: bench.wf(job, "L1").started_ms > 0)
    allowed_s = (bench.job(job).deadline_ms - bench.group_ms) / 1000
    assert allowed_s >= 3 * (10 + 1 + times.lost_after_s + 2.0)


def test_shares_that_are_lost_too_often_fail_their_workflow() -> None:
    bench = Bench(w1=1, w2=1, w3=1, w4=1, w5=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=100), workflow("After", "Load"))
    for _ in range(FAST.retries_max + 1):
        bench.run(1)
        (key,) = [key for keys in bench.machine.tables.live.values() for key in keys]
        facts = bench.machine.tables.attempt(key)
        assert facts is not None
        live = bench.machine.tables.live[facts.node]
        bench.workers[facts.node].kill()
        bench.until(lambda key=key, live=live: key not in live)
    record = bench.finish(job)
    assert record.state == "failed"
    assert "was lost in all 4 attempts" in record.workflows[0].error
    assert outcomes(bench, job)["After"] == "skipped"


def test_a_restarted_manager_goes_on_without_a_loss() -> None:
    bench = Bench(w1=2, w2=2)
    job = bench.submit(workflow("Load", duration_s=20), workflow("B", "Load", duration_s=5))
    for seconds in (0.1, 0.3, 1.0, 4.0, 8.0, 6.0, 1.0):
        bench.run(seconds)
        bench.manager_up = False
        bench.run(1.0)
        bench.manager_up = True
        bench.restart_manager()
    record = bench.finish(job)
    assert record.state == "completed"
    assert [w.lost for w in record.workflows] == [0, 0]


def stand_still(bench: Bench, seconds: float) -> None:
    """The manager's process does not run; when it does again, its timers come first."""
    bench.manager_up = False
    bench.run(seconds)
    bench.manager_up = True
    bench.settle()


def test_a_manager_that_stood_still_hears_the_workers_before_it_judges_them() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=20))
    bench.until(lambda: bench.wf(job, "Load").started_ms > 0)
    bench.run(19.5)
    stand_still(bench, 60.0)
    record = bench.finish(job)
    assert record.state == "completed", record.workflows[0].error
    assert record.workflows[0].lost == 0


def test_a_manager_that_is_late_all_the_time_judges_all_the_same() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=200))
    bench.run(3)
    bench.workers["w1"].kill()
    for _ in range(8):
        stand_still(bench, 4.0)
        bench.run(0.1)
    assert bench.wf(job, "Load").lost == 1


def test_a_new_primary_waits_before_it_declares_a_loss() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=60))
    bench.run(3)
    bench.workers["w1"].connected = False
    bench.run(FAST.lost_after_s - 1.5)
    bench.restart_manager()
    bench.run(FAST.lost_after_s - 0.5)
    assert bench.wf(job, "Load").lost == 0
    bench.run(1.0)
    assert bench.wf(job, "Load").lost == 1


def test_a_refill_without_free_cores_shares_one_of_its_job() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=40))
    bench.run(2)
    bench.workers["w2"].kill()
    bench.until(lambda: bench.wf(job, "Load").attempts == 3)
    (use,) = bench.machine.tables.slots.values()
    assert len(use.attempts) == 2
    bench.finish(job)


def test_remaining_iterations_go_to_the_refill() -> None:
    bench = Bench(w1=1, w2=1)
    profile = Profile(
        model="iterations", vus=2, max_vus=2, iterations=2000, duration_s=60, grace_s=1
    )
    job = bench.submit(workflow("Load", profile=profile))
    bench.run(5)
    bench.workers["w1"].kill()
    bench.workers["w1"].restart()
    bench.until(lambda: bench.wf(job, "Load").attempts == 3)
    (refill,) = [a for _, a in bench.machine.tables.live_of(job) if a.refill]
    assert 30 <= refill.iterations_done <= 50


def test_set_up_work_that_was_lost_begins_anew() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("SetUp", is_test=False, vus=1, duration_s=3))
    bench.until(lambda: bench.wf(job, "SetUp").started_ms > 0)
    (key,) = [key for keys in bench.machine.tables.live.values() for key in keys]
    facts = bench.machine.tables.attempt(key)
    assert facts is not None
    bench.workers[facts.node].kill()
    assert bench.finish(job).state == "completed"
    assert bench.job(job).workflows[0].lost == 1


def test_an_attempt_that_its_worker_does_not_know_is_lost_at_once() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=20))
    bench.run(2)
    bench.workers["w1"].held.clear()
    bench.run(1)
    assert bench.wf(job, "Load").lost == 1
    assert bench.finish(job).state == "completed"
