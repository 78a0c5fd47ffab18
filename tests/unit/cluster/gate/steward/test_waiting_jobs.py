"""Jobs that wait for their start: all parts or none, in order, and never for ever."""

from __future__ import annotations

from squall.cluster.gate.timers import GateTimers
from squall.cluster.protocol.submission import Targets
from tests.unit.cluster.gate.lab.stewardship import GateBench

BOTH = (("eu", 0.6), ("us", 0.4))


def test_a_job_starts_when_all_its_parts_are_ready_and_not_before() -> None:
    bench = GateBench()
    job = bench.submit(*BOTH)
    bench.run(0.5)
    assert bench.where(job) == ["eu", "us"]
    bench.ready(job, "eu")
    bench.report(job, "us", "accepted")
    bench.run(5.0)
    assert not bench.job(job).started_ms
    bench.report(job, "us", "ready")
    assert bench.job(job).started_ms
    assert [bench.current(job, index).state for index in (0, 1)] == ["started", "started"]
    assert bench.job(job).deadline_ms, "a started job always has a deadline"


def test_a_part_that_is_not_ready_in_time_makes_all_give_their_cores_back() -> None:
    bench = GateBench(GateTimers(hold_s=5.0))
    job = bench.submit(*BOTH)
    bench.run(0.5)
    bench.ready(job, "eu")
    bench.report(job, "us", "accepted")
    bench.run(5.0)
    assert bench.job(job).holds == 1
    assert bench.where(job) == ["", ""]
    assert bench.current(job, 0).cancel, "eu is told to give its cores back"
    bench.run(3.0)
    assert bench.where(job) == ["eu", "us"], "it is tried again after a while"
    assert bench.current(job, 0).handover == 2


def test_a_job_of_one_part_waits_in_its_datacenter_as_long_as_it_takes() -> None:
    bench = GateBench(GateTimers(hold_s=5.0))
    job = bench.submit(("eu", 1.0))
    bench.run(0.5)
    bench.report(job, "eu", "accepted")
    bench.run(60.0)
    assert bench.where(job) == ["eu"]
    assert bench.job(job).holds == 0


def test_a_part_whose_datacenter_is_gone_before_it_is_ready_moves() -> None:
    bench = GateBench()
    job = bench.submit(("eu", 1.0), targets=Targets(weights=(("eu", 1.0),), fallback=True))
    bench.run(0.5)
    bench.report(job, "eu", "accepted")
    bench.run(60.0)
    assert bench.where(job) == ["eu"], "it waits in the queue of eu"
    bench.unreachable = bench.closed = {"eu"}
    bench.run(5.0)
    assert bench.where(job) == ["ap"] and bench.current(job).handover == 2
    # eu may come back: it must hear that the part is no longer its own.
    tried = bench.job(job).parts[0].tries[0]
    assert tried.datacenter == "eu" and tried.cancel


def test_a_datacenter_that_never_answers_is_given_up() -> None:
    bench = GateBench(GateTimers(hold_s=5.0))
    job = bench.submit(("eu", 1.0))
    bench.run(5.5)
    assert bench.job(job).holds == 1
    bench.closed = {"eu"}
    bench.run(40.0)
    over = bench.job(job)
    assert (over.state, over.reason) == ("failed", "eu cannot run its part")


def test_a_refused_part_moves_to_another_datacenter_if_the_job_allows_it() -> None:
    bench = GateBench()
    job = bench.submit(("eu", 1.0), targets=Targets(weights=(("eu", 1.0),), fallback=True))
    bench.run(0.5)
    bench.report(job, "eu", "refused", reason="the queue is full")
    bench.run(0.5)
    assert bench.where(job) == ["ap"]
    assert bench.current(job).handover == 2


def test_a_datacenter_that_refused_is_asked_again_less_and_less_often() -> None:
    bench = GateBench()
    job = bench.submit(("eu", 1.0))
    bench.run(0.5)
    waits: list[float] = []
    for _ in range(4):
        bench.report(job, "eu", "refused", reason="the queue is full")
        refused_at = bench.now
        while not any(bench.where(job)):
            bench.run(0.5)
        waits.append(bench.now - refused_at)
    assert waits == sorted(waits)
    assert waits[0] < 4.0 < waits[-1]


def test_a_part_that_is_ready_does_not_hold_its_cores_for_one_that_is_asked_much_later() -> None:
    bench = GateBench()
    job = bench.submit(*BOTH)
    bench.run(0.5)
    bench.ready(job, "eu")
    held: list[bool] = []
    for _ in range(4):
        bench.report(job, "us", "refused", reason="the queue is full")
        bench.run(0.5)
        held.append(bench.where(job) == ["eu", ""])
        while bench.where(job)[1] != "us":
            bench.run(0.5)
    # After the fourth refusal `us` is asked 16 s later, when over half of the 30 s is gone.
    assert held == [True, True, True, False]
    assert bench.current(job, 0).state == "assigned", "eu reserves anew together with us"
    bench.ready(job, "eu", "us")
    bench.run(1.0)
    assert bench.job(job).started_ms


def test_a_refusal_for_good_fails_the_job_with_its_reason() -> None:
    bench = GateBench()
    job = bench.submit(*BOTH)
    bench.run(0.5)
    bench.report(job, "us", "refused", reason="needs Python 3.12", is_final=True)
    bench.run(1.0)
    over = bench.job(job)
    assert over.state == "failed"
    assert over.reason == "us refused its part: needs Python 3.12"
    assert bench.current(job, 0).cancel, "eu gives its cores back"


def test_a_job_fails_with_the_reason_when_no_datacenter_can_run_it_for_too_long() -> None:
    bench = GateBench()
    bench.closed = {"eu"}
    job = bench.submit(("eu", 1.0))
    bench.run(20.0)
    assert bench.job(job).state == "queued"
    assert bench.steward.waits_for(job) == "eu cannot run its part"
    bench.run(15.0)
    assert (bench.job(job).state, bench.job(job).reason) == ("failed", "eu cannot run its part")


def test_two_jobs_over_the_same_datacenters_are_prepared_one_after_the_other() -> None:
    bench = GateBench()
    first = bench.submit(*BOTH, key="first")
    second = bench.submit(("us", 0.5), ("eu", 0.5), key="second")
    bench.run(1.0)
    assert bench.where(first) == ["eu", "us"]
    assert bench.where(second) == ["", ""], "neither may hold what the other needs"
    assert "eu" in bench.steward.waits_for(second)
    bench.ready(first, "eu", "us")
    bench.run(1.0)
    assert bench.where(second) == ["us", "eu"]


def test_a_later_job_does_not_overtake_one_that_waits_for_the_same_datacenter() -> None:
    bench = GateBench()
    first = bench.submit(*BOTH, key="first")
    bench.run(0.5)
    waiting = bench.submit(("us", 0.5), ("ap", 0.5), key="waiting")
    later = bench.submit(("ap", 0.5), ("sa", 0.5), key="later")
    bench.run(1.0)
    assert bench.where(waiting) == ["", ""]
    assert bench.where(later) == ["", ""]
    alone = bench.submit(("ap", 1.0), key="alone")
    bench.run(0.5)
    assert bench.where(alone) == ["ap"], "a job of one part holds nothing that others wait for"
    bench.ready(first, "eu", "us")
    bench.run(1.0)
    assert bench.where(waiting) == ["us", "ap"]
