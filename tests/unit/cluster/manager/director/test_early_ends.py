"""Jobs that end before their time: cancelled, timed out, stuck, aborted."""

from __future__ import annotations

import msgspec
import pytest

from squall.cluster.datacenter.commands import AdjustLoad, ExtendJob
from squall.cluster.group.job_deadlines import extension_cap_ms
from squall.cluster.manager.clients.job_views import job_view, why
from squall.cluster.manager.primary.effects import TakeRecord
from squall.cluster.protocol.job_keys import AttemptKey, JobId, ShareKey
from squall.cluster.protocol.messages import AttemptStatus, SessionAnswer
from tests.fakes.datacenter import FAST, Bench, ModelWorker, workflow


def outcomes(bench: Bench, job: JobId) -> dict[str, str]:
    return {w.name: str(w.outcome) for w in bench.job(job).workflows}


def attempts(bench: Bench, job: JobId, name: str, share: int = 0) -> list[str]:
    return [a.state for a in bench.machine.tables.attempts[ShareKey(job, name, share)]]


def refuse_for_good(worker: ModelWorker, text: str, *, retryable: bool = False) -> None:
    worker.refuse = lambda key: AttemptStatus(
        key=key, phase="refused", text=text, exit_code=104, retryable=retryable
    )


def test_a_cut_off_worker_stops_by_its_lease_and_its_late_record_replaces_the_cut() -> None:
    bench = Bench(w1=1, w2=2)
    job = bench.submit(workflow("Load", vus=2, duration_s=40))
    bench.run(3)
    lost_on = bench.workers["w1"]
    lost_on.connected = False
    bench.until(lambda: bench.wf(job, "Load").attempts == 3)
    key = next(iter(lost_on.held))
    facts = bench.machine.tables.attempt(key)
    assert facts is not None and facts.facts is not None and not facts.facts.complete
    lost_on.connected = True
    bench.run(2)
    facts = bench.machine.tables.attempt(key)
    assert facts is not None and facts.state == "lost"
    assert facts.facts is not None and facts.facts.complete
    assert key not in lost_on.held, "its outbox is freed"
    bench.finish(job)


def test_cancel_is_durable_stops_every_share_and_never_resumes() -> None:
    bench = Bench(w1=2, w2=2)
    job = bench.submit(workflow("Load", duration_s=60), workflow("After", "Load"))
    bench.run(3)
    bench.cancel(job)
    assert bench.job(job).state == "stopping"
    bench.restart_manager()
    record = bench.finish(job, 10)
    assert record.state == "cancelled"
    assert outcomes(bench, job) == {"Load": "interrupted", "After": "skipped"}
    bench.run(5)
    assert not bench.machine.tables.slots and bench.job(job).state == "cancelled"


def test_cancel_of_a_dead_worker_ends_by_the_rule_of_loss() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=60))
    bench.run(3)
    bench.workers["w1"].kill()
    bench.cancel(job)
    record = bench.finish(job, FAST.lost_after_s + 5)
    assert record.state == "cancelled" and record.workflows[0].lost == 1


def test_a_worker_that_ignores_the_stop_is_granted_no_more_and_lost() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=600))
    bench.run(2)
    obey = bench._obey

    def deaf(worker: ModelWorker, answer: SessionAnswer) -> None:
        obey(worker, msgspec.structs.replace(answer, stop=[]))

    bench._obey = deaf
    bench.cancel(job)
    record = bench.finish(job, 60)
    assert record.state == "cancelled"


def test_a_cancelled_job_still_cleans_up_but_not_when_cancelled_now() -> None:
    for at_once, expected in ((False, "completed"), (True, "skipped")):
        bench = Bench(w1=2)
        job = bench.submit(
            workflow("Load", duration_s=60), workflow("Clean", "Load", always=True, duration_s=2)
        )
        bench.run(3)
        bench.cancel(job, now=at_once)
        record = bench.finish(job, 30)
        assert record.state == "cancelled"
        assert outcomes(bench, job)["Clean"] == expected


def test_cleaning_up_after_a_cancel_has_a_limit() -> None:
    bench = Bench(w1=2)
    job = bench.submit(
        workflow("Load", duration_s=60), workflow("Clean", "Load", always=True, duration_s=500)
    )
    bench.run(3)
    bench.cancel(job)
    bench.finish(job, FAST.always_limit_s + 10)
    assert outcomes(bench, job)["Clean"] == "timeout"


@pytest.mark.parametrize(("length_s", "expected"), [(2, "completed"), (500, "timeout")])
def test_a_job_that_timed_out_still_cleans_up_within_the_limit(
    length_s: float, expected: str
) -> None:
    bench = Bench(w1=2)
    cleaning = workflow("Clean", "Load", always=True, duration_s=length_s)
    job = bench.submit(workflow("Load", duration_s=60), cleaning, timeout_s=5)
    bench.run(6)
    assert bench.job(job).stop == "timeout"
    record = bench.finish(job, FAST.always_limit_s + 10)
    assert record.state == "timeout" and record.reason == "timeout after 5 s"
    assert outcomes(bench, job) == {"Load": "timeout", "Clean": expected}
    assert bench.assembled == [job]


def test_a_stuck_job_still_cleans_up() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(
        workflow("Load", duration_s=200),
        workflow("Clean", "Load", always=True, duration_s=2, is_test=False),
    )
    bench.run(2)
    for worker in bench.workers.values():
        worker.idle = True
    bench.until(lambda: bench.job(job).stop == "timeout", FAST.stuck_s + 10)
    for worker in bench.workers.values():
        worker.idle = False
    record = bench.finish(job, FAST.always_limit_s + 10)
    assert record.state == "timeout" and record.reason.startswith("stuck")
    assert outcomes(bench, job)["Clean"] == "completed"


def test_a_job_is_timed_out_from_its_creation_and_says_so() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=60), timeout_s=5)
    record = bench.finish(job, 10)
    assert record.state == "timeout" and record.reason == "timeout after 5 s"
    assert outcomes(bench, job) == {"Load": "timeout"}


def extend(bench: Bench, job: JobId, seconds: float) -> None:
    cap_ms = extension_cap_ms(bench.job(job))
    bench.apply(ExtendJob(job=job, by_ms=round(seconds * 1000), cap_ms=cap_ms))
    bench.settle()


def test_extensions_add_to_the_time_within_their_cap() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=900), timeout_s=300)
    bench.run(50, 0.5)
    extend(bench, job, 15)
    bench.run(50, 0.5)
    extend(bench, job, 7.5)
    bench.run(222, 0.5)
    assert not bench.job(job).stop
    bench.run(8, 0.5)
    assert bench.job(job).stop == "timeout"
    other = bench.submit(workflow("Load", vus=1, duration_s=900), timeout_s=300)
    for _ in range(10):
        extend(bench, other, 20)
        bench.run(1.5, 0.5)
    assert bench.job(other).extension_ms == 75_000


def test_load_that_executes_nothing_is_stuck_and_waiting_for_cores_is_not() -> None:
    bench = Bench(w1=1)
    first = bench.submit(workflow("Load", vus=1, duration_s=FAST.stuck_s + 10))
    second = bench.submit(workflow("Load", vus=1, duration_s=200))
    bench.finish(first, 60)
    assert bench.job(first).state == "completed"
    bench.run(2)
    bench.workers["w1"].idle = True
    record = bench.finish(second, FAST.stuck_s + 10)
    assert record.state == "timeout" and record.reason.startswith("stuck")


def test_a_job_that_waits_for_the_records_of_shares_that_made_all_iterations_is_not_stuck() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=200))
    bench.run(2)
    # The link over which the record is pulled does not come up.
    bench.hold = lambda effect: isinstance(effect, TakeRecord)
    for model in bench.workers["w1"].held.values():
        model.done = True
    bench.run(FAST.stuck_s + 5)
    assert bench.job(job).state == "running" and bench.held_effects
    bench.hold = lambda effect: False
    for effect in bench.held_effects:
        bench.do(effect)
    assert bench.finish(job, 10).state == "completed"


def test_a_paused_job_is_not_stuck_and_its_wish_reaches_the_workers() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=200))
    bench.run(2)
    bench.apply(AdjustLoad(job=job, workflows=("Load",), paused=True))
    bench.workers["w1"].idle = True
    answer = bench.session(bench.workers["w1"])
    assert answer is not None and answer.adjust[0].paused and answer.adjust[0].adjust_seq == 1
    facts = bench.director.state
    shown = job_view(facts.tables, bench.job(job), bench.group_ms, facts)
    assert [each.adjusted for each in shown.workflows] == ["paused"]
    assert any("changed by hand: paused" in line for line in why(facts, bench.job(job)))
    bench.run(FAST.stuck_s + 5)
    assert bench.job(job).state == "running"


def test_a_threshold_ends_the_job_gracefully_and_it_counts_as_completed() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=60))
    bench.run(3)
    bench.director.abort(job, "p99 < 1ms")
    record = bench.finish(job, 10)
    assert record.state == "completed" and record.reason == "p99 < 1ms"


def test_a_manager_that_is_away_for_longer_than_the_lease_refills_what_stopped() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=40))
    bench.run(3)
    bench.manager_up = False
    bench.run(FAST.execution_lease_s + 2)
    bench.manager_up = True
    bench.restart_manager()
    bench.run(3)
    assert attempts(bench, job, "Load") == ["ended", "live"]
    assert bench.finish(job).state == "completed"


def test_a_stranger_attempt_is_stopped_and_freed() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=20))
    bench.run(2)
    (key, model), *_ = bench.workers["w1"].held.items()
    other = AttemptKey(JobId("g-999"), key.workflow, 0, key.attempt)
    bench.workers["w1"].held[other] = model
    answer = bench.session(bench.workers["w1"])
    assert answer is not None
    assert [(order.key, order.drop, order.now) for order in answer.stop] == [(other, True, True)]
    assert answer.granted == [key]
    bench.finish(job)


def test_a_phase_is_placed_again_only_when_what_had_a_lease_has_stopped() -> None:
    bench = Bench(w1=1, w2=1, w3=1)
    bench.workers["w2"].prepare_s = 3.0
    job = bench.submit(workflow("Load", vus=2, duration_s=5))
    bench.run(1)
    nodes = [facts.node for _, facts in bench.machine.tables.live_of(job)]
    assert nodes == ["w1", "w2"]
    # One share is ready under a lease and cut off; the other is refused by its worker.
    bench.workers["w1"].connected = False
    refuse_for_good(bench.workers["w2"], "disk full", retryable=True)
    bench.run(3.5)
    assert bench.wf(job, "Load").returning
    assert attempts(bench, job, "Load", 0) == ["live"]
    assert attempts(bench, job, "Load", 1) == ["returned"]
    bench.run(FAST.lost_after_s)
    assert attempts(bench, job, "Load", 0)[:2] == ["lost", "live"]
