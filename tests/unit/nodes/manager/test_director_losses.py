"""Workers that die, restart or are cut off in mid-run: refilled, counted, never twice."""

from __future__ import annotations

from director_bench import FAST, Bench, workflow
from squall.nodes.identity import JobId
from squall.stats.manifest import Profile


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
