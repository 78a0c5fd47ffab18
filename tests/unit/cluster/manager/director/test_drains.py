"""A worker that says that it drains, and what its time is."""

from __future__ import annotations

from squall.cluster.datacenter.commands import DrainWorker
from tests.fakes.datacenter import Bench, workflow


def bench_with_load() -> Bench:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=120.0))
    bench.until(lambda: bench.job(job).started_ms > 0)
    bench.run(1)
    return bench


def drain_left_ms(bench: Bench, node: str) -> int:
    return bench.machine.tables.workers[node].drain_by_ms - bench.group_ms


def test_a_worker_that_gets_a_signal_drains_within_its_own_time() -> None:
    bench = bench_with_load()
    worker = bench.workers["w1"]
    worker.draining, worker.drain_left_s = True, 30.0
    bench.run(1.0)
    assert bench.machine.tables.workers["w1"].draining
    assert 28_000 < drain_left_ms(bench, "w1") < 31_000
    # It repeats itself with each session; the time in the log stays.
    by_ms = bench.machine.tables.workers["w1"].drain_by_ms
    worker.drain_left_s = 29.0
    bench.run(1.0)
    assert bench.machine.tables.workers["w1"].drain_by_ms == by_ms


def test_a_signal_shortens_the_time_that_an_operator_gave() -> None:
    bench = bench_with_load()
    bench.apply(DrainWorker(node="w1", draining=True, by="bob", within_ms=3_600_000))
    bench.settle()
    worker = bench.workers["w1"]
    worker.draining, worker.drain_left_s = True, 5.0
    bench.run(1.0)
    assert drain_left_ms(bench, "w1") <= 5_000


def test_a_new_primary_continues_the_drain() -> None:
    bench = bench_with_load()
    bench.apply(DrainWorker(node="w1", draining=True, within_ms=4_000))
    bench.settle()
    bench.run(1.0)
    bench.restart_manager()
    bench.run(6.0)
    assert not bench.workers["w1"].held and bench.workers["w1"].drained
