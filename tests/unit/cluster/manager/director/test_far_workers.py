"""A worker far away starts its share with the others."""

from __future__ import annotations

from tests.fakes.datacenter import Bench, workflow


def test_the_start_waits_until_the_order_can_have_reached_the_slowest_worker() -> None:
    bench = Bench(w1=1, w2=1)
    bench.workers["w2"].round_trip_s = 0.6
    bench.run(3.0)
    job = bench.submit(workflow("Load", vus=2, duration_s=20.0))
    bench.until(
        lambda: all(
            [model.phase for model in worker.held.values()] == ["running"]
            for worker in bench.workers.values()
        )
    )
    joined = [model.joined_s for worker in bench.workers.values() for model in worker.held.values()]
    assert len(joined) == 2 and max(joined) <= 0.0, joined
    assert bench.finish(job).state == "completed"


def test_a_worker_that_stood_still_once_does_not_delay_a_start_for_long() -> None:
    bench = Bench(w1=1)
    bench.run(1.0)
    job = bench.submit(workflow("Load", vus=1, duration_s=20.0))
    bench.director.state.workers["w1"].round_trip_s = 500.0
    bench.until(lambda: bench.job(job).started_ms > 0)
    assert bench.job(job).started_ms - bench.group_ms <= 10_000
