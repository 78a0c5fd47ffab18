"""Whole jobs on models of workers: queued, placed, started, ended, as the rules say."""

from __future__ import annotations

import msgspec

from squall.cluster.datacenter.commands import DrainWorker
from squall.cluster.manager.clients.job_views import job_view, node_views, why
from squall.cluster.protocol.job_keys import JobId, ShareKey
from squall.cluster.protocol.messages import AttemptStatus, SessionAnswer
from squall.stats.manifest import Profile
from tests.fakes.datacenter import FAST, Bench, ModelWorker, texts, workflow


def outcomes(bench: Bench, job: JobId) -> dict[str, str]:
    return {w.name: str(w.outcome) for w in bench.job(job).workflows}


def attempts(bench: Bench, job: JobId, name: str, share: int = 0) -> list[str]:
    return [a.state for a in bench.machine.tables.attempts[ShareKey(job, name, share)]]


def refuse_for_good(worker: ModelWorker, text: str, *, retryable: bool = False) -> None:
    worker.refuse = lambda key: AttemptStatus(
        key=key, phase="refused", text=text, exit_code=104, retryable=retryable
    )


def test_a_job_takes_all_free_cores_and_completes() -> None:
    bench = Bench(w1=2, w2=2)
    job = bench.submit(workflow("Load", duration_s=5))
    bench.run(2)
    assert bench.job(job).state == "running"
    assert len(bench.machine.tables.slots) == 4
    record = bench.finish(job)
    assert record.state == "completed" and record.result
    assert not bench.machine.tables.slots
    assert bench.assembled == [job]


def test_layers_run_one_after_the_other() -> None:
    bench = Bench(w1=2)
    job = bench.submit(
        workflow("SetUp", is_test=False, duration_s=2),
        workflow("Load", "SetUp", duration_s=3),
        workflow("Report", "Load", "SetUp", is_test=False, duration_s=1),
    )
    bench.until(lambda: bench.wf(job, "Load").started_ms > 0)
    assert bench.wf(job, "SetUp").over
    bench.finish(job)
    assert outcomes(bench, job) == dict.fromkeys(("SetUp", "Load", "Report"), "completed")


def test_a_workflow_of_a_failed_one_is_skipped_and_the_rest_goes_on() -> None:
    bench = Bench(w1=4)
    bench.workers["w1"].error = "boom"
    job = bench.submit(
        workflow("A", duration_s=5), workflow("B", "A"), workflow("Clean", "A", always=True)
    )
    bench.until(lambda: bench.wf(job, "A").over)
    bench.workers["w1"].error = ""
    record = bench.finish(job)
    assert outcomes(bench, job) == {"A": "failed", "B": "skipped", "Clean": "completed"}
    assert record.state == "partial"
    assert bench.wf(job, "B").error == "A failed"
    assert bench.wf(job, "A").error == "boom"
    assert bench.wf(job, "A").attempts == 4, "an error of a workflow is not retried"


def test_a_refusal_for_good_before_anything_ran_fails_the_job_with_its_line() -> None:
    bench = Bench(w1=1, w2=1)
    refuse_for_good(bench.workers["w1"], "no module named numpy")
    job = bench.submit(workflow("Load", vus=2))
    record = bench.finish(job)
    assert record.state == "failed" and record.reason == "no module named numpy"
    assert record.exit_code == 104
    assert not bench.machine.tables.slots
    assert not record.started_ms


def test_a_refusal_that_another_worker_may_take_is_tried_there_without_a_loss() -> None:
    bench = Bench(w1=1, w2=1, w3=1)
    refuse_for_good(bench.workers["w1"], "disk full", retryable=True)
    job = bench.submit(workflow("Load", vus=2, duration_s=3))
    record = bench.finish(job)
    assert record.state == "completed"
    assert record.workflows[0].lost == 0
    assert record.workflows[0].attempts > 2


def test_exclusive_waits_for_all_cores_and_a_stream_of_small_jobs_does_not_starve_it() -> None:
    bench = Bench(w1=2, w2=2)
    first = bench.submit(workflow("Load", vus=2, duration_s=15))
    bench.run(1)
    big = bench.submit(workflow("Big", vus=8, duration_s=3, priority="exclusive"))
    began = bench.now
    while not bench.job(big).started_ms:
        bench.submit(workflow("Small", vus=1, duration_s=4))
        bench.run(1)
        assert bench.now - began < 40
    live = {key.job for keys in bench.machine.tables.live.values() for key in keys}
    assert live == {big}
    assert bench.job(first).over
    bench.finish(big)


def test_a_queued_job_says_its_place_and_what_it_waits_for() -> None:
    bench = Bench(w1=1)
    first = bench.submit(workflow("Load", vus=1, duration_s=20))
    bench.run(1)
    second = bench.submit(workflow("Load", vus=1))
    third = bench.submit(workflow("Load", vus=1))
    facts = bench.director.state
    views = [job_view(facts.tables, bench.job(j), bench.group_ms, facts) for j in (second, third)]
    assert [view.position for view in views] == [1, 2]
    assert [view.state for view in views] == ["queued", "queued"]
    assert "needs 1, 0 are free" in " ".join(why(facts, bench.job(third)))
    assert "is at " in " ".join(why(facts, bench.job(first)))


def test_why_says_what_a_worker_sees_of_a_share_that_executes_nothing() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=60))
    bench.run(2)
    bench.workers["w2"].note = "its core process does not answer: held by flow.py:7 in get"
    bench.run(1)
    lines = why(bench.director.state, bench.job(job))
    assert "w2: its core process does not answer: held by flow.py:7 in get" in lines
    assert not any(line.startswith("w1:") for line in lines)


def test_without_workers_a_job_fails_after_a_while_with_the_reason() -> None:
    bench = Bench()
    job = bench.submit(workflow("Load"))
    assert "no worker" in " ".join(why(bench.director.state, bench.job(job)))
    record = bench.finish(job, FAST.dispatch_timeout_s + 10)
    assert record.state == "failed" and record.reason.startswith("no worker")


def test_two_hundred_queued_jobs_drain_one_after_the_other() -> None:
    bench = Bench(w1=2)
    jobs = [bench.submit(workflow("Load", duration_s=0.2)) for _ in range(200)]
    bench.until(lambda: all(bench.job(job).over for job in jobs), 200)
    assert {bench.job(job).state for job in jobs} == {"completed"}


def test_a_draining_worker_gets_no_work_and_is_told_when_it_is_done() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=4))
    bench.run(1)
    bench.apply(DrainWorker(node="w1", draining=True))
    other = bench.submit(workflow("Load", vus=2, duration_s=2))
    bench.finish(job)
    bench.finish(other)
    assert bench.wf(other, "Load").shares == 1
    bench.run(1)
    assert bench.workers["w1"].drained and not bench.workers["w2"].drained
    states = {view.name: view.state for view in node_views(bench.machine.tables)}
    assert states == {"w1": "drained", "w2": "idle"}


def test_workflows_that_do_not_fit_share_cores_of_their_job() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("A", duration_s=3), workflow("B", duration_s=3))
    bench.run(1)
    (use,) = bench.machine.tables.slots.values()
    assert len(use.attempts) == 2 and use.job == job
    assert bench.finish(job).state == "completed"


def test_events_tell_what_happened() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=30))
    bench.run(2)
    bench.workers["w1"].kill()
    bench.until(lambda: bench.wf(job, "Load").lost == 1)
    told = "\n".join(texts(bench, job))
    assert "created by ann" in told and "Load started" in told and "on w1 lost" in told


def test_a_job_is_purged_after_its_time_and_its_key_a_day_later() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=1), key="mine")
    bench.finish(job)
    for _ in range(int(FAST.retention_s / 100) + 2):
        bench.group_ms += 100_000
        bench.run(6, 1.0)
    assert job not in bench.machine.tables.jobs
    assert ("ann", "mine") in bench.machine.tables.keys
    bench.group_ms += int(FAST.key_retention_s * 1000)
    bench.run(12, 1.0)
    assert not bench.machine.tables.keys


def test_a_workflow_that_is_refused_again_and_again_fails_with_the_last_refusal() -> None:
    bench = Bench(w1=1)
    refuse_for_good(bench.workers["w1"], "disk full", retryable=True)
    job = bench.submit(workflow("Load", vus=1, duration_s=5), workflow("After", "Load"))
    record = bench.finish(job, FAST.dispatch_timeout_s + 20)
    assert record.state == "failed"
    assert record.workflows[0].error == "could not be started within 30 s: disk full"
    assert record.workflows[0].attempts > 3
    assert not bench.loads


def test_workers_that_never_become_ready_give_their_cores_back() -> None:
    bench = Bench(w1=1, w2=1)
    bench.workers["w1"].prepare_s = 1000.0
    job = bench.submit(workflow("Load", vus=2, duration_s=3))
    bench.run(FAST.prepare_timeout_s + 3)
    assert bench.wf(job, "Load").shares == 1, "it runs on the other worker"
    assert bench.finish(job).state == "completed"


def test_a_job_that_needs_more_sockets_than_there_are_fails_with_the_line() -> None:
    bench = Bench()
    bench.workers["w1"] = ModelWorker("w1", 2, descriptors=100)
    bench.register(bench.workers["w1"])
    job = bench.submit(workflow("Load", vus=500))
    record = bench.finish(job, 10)
    assert record.state == "failed" and record.exit_code == 104
    assert "500 users need more connections" in record.reason


def test_an_open_model_is_clipped_and_the_result_knows() -> None:
    bench = Bench()
    bench.workers["w1"] = ModelWorker("w1", 2, descriptors=10)
    bench.register(bench.workers["w1"])
    profile = Profile(model="open", vus=2, max_vus=50, rate_per_s=5, duration_s=3, grace_s=1)
    job = bench.submit(workflow("Load", profile=profile))
    bench.finish(job)
    clipped = bench.wf(job, "Load").profile
    assert clipped is not None and clipped.max_vus == 20


def test_nothing_starts_before_every_share_is_ready() -> None:
    for slow in ("w1", "w2", "w3"):
        bench = Bench(w1=1, w2=1, w3=1)
        bench.workers[slow].prepare_s = 3.0
        job = bench.submit(workflow("Load", vus=3, duration_s=5))
        bench.run(2.5)
        assert bench.job(job).state == "preparing"
        bench.run(1.5)
        assert bench.job(job).state == "running"


def test_no_other_job_gets_cores_while_an_exclusive_workflow_has_any() -> None:
    bench = Bench(w1=4)
    bench.run(0.5)
    alone = bench.submit(workflow("Alone", vus=1, duration_s=5, priority="exclusive"))
    bench.run(1)
    assert len(bench.machine.tables.slots) == 1
    other = bench.submit(workflow("Small", vus=1, duration_s=2))
    bench.run(2)
    assert bench.job(other).state == "queued"
    bench.finish(other)
    assert bench.job(other).started_ms >= bench.job(alone).ended_ms


def test_what_goes_back_into_the_queue_gets_no_more_leases() -> None:
    bench = Bench(w1=1, w2=1)
    bench.workers["w2"].prepare_s = 1.0
    refuse_for_good(bench.workers["w2"], "disk full", retryable=True)
    obey = bench._obey

    def deaf(worker: ModelWorker, answer: SessionAnswer) -> None:
        obey(worker, msgspec.structs.replace(answer, stop=[]))

    bench._obey = deaf
    job = bench.submit(workflow("Load", vus=2, duration_s=5))
    bench.run(2)
    assert bench.wf(job, "Load").returning
    answer = bench.session(bench.workers["w1"])
    assert answer is not None and not answer.granted and answer.stop
    bench.run(FAST.lost_after_s + 1)
    assert attempts(bench, job, "Load", 0)[0] == "lost"
