"""The steward decides over whole jobs: group, deadlines, results, retention, isolation."""

from __future__ import annotations

from squall.cluster.assignments.commands import ForgetTries
from squall.cluster.gate.steward.effects import MergeResults
from squall.cluster.gate.steward.volatile_state import RouteAnswer, RouteQuestion
from squall.cluster.gate.timers import GateTimers
from squall.cluster.protocol.job_commands import StopJob
from squall.cluster.protocol.submission import Targets
from tests.unit.cluster.gate.lab.stewardship import GateBench

BOTH = (("eu", 0.6), ("us", 0.4))


def test_the_first_primary_names_the_group_and_its_datacenters() -> None:
    bench = GateBench()
    tables = bench.machine.tables
    assert tables.group == "g7a1"
    assert sorted(tables.datacenters) == ["ap", "eu", "sa", "us"]


def test_a_job_whose_parts_all_completed_is_completed_with_one_merged_result() -> None:
    bench = GateBench()
    job = bench.submit(*BOTH)
    bench.run(0.5)
    bench.ready(job, "eu", "us")
    bench.ended(job, "eu")
    assert not any(isinstance(each, MergeResults) for each in bench.asked)
    bench.ended(job, "us")
    bench.run(0.5)
    over = bench.job(job)
    assert (over.state, over.result) == ("completed", "merged")
    assert sum(isinstance(each, MergeResults) for each in bench.asked) == 1


def test_a_job_of_which_one_part_failed_is_partial_and_names_the_datacenter() -> None:
    bench = GateBench()
    job = bench.submit(*BOTH)
    bench.run(0.5)
    bench.ready(job, "eu", "us")
    bench.ended(job, "eu")
    bench.report(job, "us", "ended", outcome="failed", reason="Shop failed", result="r")
    bench.run(0.5)
    assert (bench.job(job).state, bench.job(job).reason) == ("partial", "us: Shop failed")


def test_the_deadline_stops_all_parts_and_the_job_ends_when_they_have_ended() -> None:
    bench = GateBench()
    job = bench.submit(*BOTH, timeout_s=5.0)
    bench.run(0.5)
    bench.ready(job, "eu", "us")
    bench.run(5.0)
    stopped = bench.job(job)
    assert (stopped.stop, stopped.reason) == ("timeout", "timeout after 5 s")
    assert all(bench.current(job, index).cancel for index in (0, 1))
    assert stopped.state == "stopping"
    bench.ended(job, "eu", "us", outcome="timeout")
    bench.run(0.5)
    assert bench.job(job).state == "timeout"


def test_a_job_that_is_cancelled_in_the_queue_ends_at_once() -> None:
    bench = GateBench()
    bench.closed = {"eu"}
    job = bench.submit(("eu", 1.0))
    bench.run(0.5)
    bench.apply(StopJob(job=job, kind="cancelled", reason="cancelled by ann"))
    bench.run(0.5)
    assert bench.job(job).state == "cancelled"


def test_a_threshold_that_aborts_ends_the_job_in_order() -> None:
    bench = GateBench()
    job = bench.submit(*BOTH)
    bench.run(0.5)
    bench.ready(job, "eu", "us")
    bench.steward.abort(job, "pay.p(99) < 800ms")
    bench.run(0.5)
    assert bench.job(job).stop == "aborted"
    bench.ended(job, "eu", "us", outcome="cancelled")
    bench.run(0.5)
    assert bench.job(job).state == "completed"


def test_a_job_whose_routing_raises_fails_and_the_others_go_on() -> None:
    bench = GateBench()
    named = bench.route

    def route(question: RouteQuestion) -> RouteAnswer:
        if question.job.key == "bad":
            raise ZeroDivisionError("no weights")
        return named(question)

    bench.route = route
    bad = bench.submit(("eu", 1.0), key="bad")
    good = bench.submit(("us", 1.0), key="good")
    bench.run(0.5)
    assert bench.job(bad).state == "failed"
    assert "internal error: ZeroDivisionError" in bench.job(bad).reason
    assert bench.broken == [bad]
    assert bench.where(good) == ["us"]


def test_a_new_primary_starts_what_the_former_one_prepared() -> None:
    bench = GateBench()
    job = bench.submit(*BOTH)
    bench.run(0.5)
    bench.report(job, "eu", "accepted")
    bench.report(job, "eu", "ready")
    bench.report(job, "us", "accepted")
    bench.lead()
    bench.report(job, "us", "ready")
    bench.run(0.5)
    assert bench.job(job).started_ms
    assert [bench.current(job, index).handover for index in (0, 1)] == [1, 1]


def test_an_ended_job_is_removed_after_its_retention_once_every_datacenter_forgot_it() -> None:
    bench = GateBench(GateTimers(retention_s=20.0, retention_failed_s=20.0))
    job = bench.submit(("eu", 1.0))
    bench.run(0.5)
    bench.ready(job, "eu")
    bench.ended(job, "eu")
    bench.run(30.0)
    assert job in bench.machine.tables.jobs, "eu has not forgotten its part yet"
    bench.apply(ForgetTries(forgotten=((job, "eu"),)))
    bench.run(10.0)
    assert job not in bench.machine.tables.jobs


def test_a_lost_datacenter_is_waited_for_after_its_plan_and_counts_by_its_cut_record() -> None:
    bench = GateBench(GateTimers(lost_wait_s=20.0))
    job = bench.submit(*BOTH)
    bench.run(0.5)
    bench.ready(job, "eu", "us")
    bench.unreachable = {"us"}
    bench.run(10.0)
    bench.ended(job, "eu")
    bench.run(18.0)
    assert bench.current(job, 1).state == "started", "its plan of 10 s is over for 18 s"
    bench.run(5.0)
    lost = bench.current(job, 1)
    assert (lost.state, lost.result) == ("lost", "cut")
    assert bench.job(job).state == "partial"
    assert not bench.job(job).stop, "long before the limit of the job"


def test_a_lost_datacenter_is_waited_for_after_the_stop_and_after_its_last_answer() -> None:
    bench = GateBench(GateTimers(lost_wait_s=20.0))
    job = bench.submit(*BOTH)
    bench.run(0.5)
    bench.ready(job, "eu", "us")
    bench.apply(StopJob(job=job, kind="cancelled", reason="cancelled by ann"))
    bench.ended(job, "eu", outcome="cancelled")
    bench.run(15.0)
    bench.unreachable = {"us"}
    bench.run(15.0)
    assert bench.current(job, 1).state == "started", "it answered 15 s ago"
    bench.run(6.0)
    assert bench.current(job, 1).state == "lost"
    assert bench.job(job).state == "cancelled"


def test_a_datacenter_that_comes_back_in_time_is_not_lost() -> None:
    bench = GateBench()
    job = bench.submit(*BOTH, timeout_s=60.0)
    bench.run(0.5)
    bench.ready(job, "eu", "us")
    bench.unreachable = {"us"}
    bench.run(20.0)
    bench.unreachable = set()
    bench.ended(job, "eu", "us")
    bench.run(0.5)
    assert bench.job(job).state == "completed"


def test_a_job_that_drops_lost_datacenters_goes_on_without_one() -> None:
    bench = GateBench()
    targets = Targets(weights=BOTH, on_loss="drop")
    job = bench.submit(*BOTH, targets=targets)
    bench.run(0.5)
    bench.ready(job, "eu", "us")
    bench.unreachable = {"us"}
    bench.run(2.0)
    assert bench.current(job, 1).state == "lost"
    assert bench.job(job).state == "running"
    bench.ended(job, "eu")
    bench.run(0.5)
    assert bench.job(job).state == "partial"
