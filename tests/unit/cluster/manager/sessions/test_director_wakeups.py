"""Which sessions make the driver tick: those that report a change."""

from __future__ import annotations

from tests.fakes.datacenter import Bench, workflow


def quiet(bench: Bench) -> None:
    """Every scheduled check was made."""
    bench.director.tick(bench.now, bench.group_ms)
    assert not bench.director.has_work


def test_a_session_that_says_what_is_known_stirs_nobody() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=60.0))
    bench.until(lambda: bench.job(job).started_ms > 0)
    bench.run(2)
    quiet(bench)
    assert bench.session(bench.workers["w1"]) is not None
    assert not bench.director.has_work


def test_a_phase_that_changed_stirs() -> None:
    bench = Bench(w1=1, w2=1)
    job = bench.submit(workflow("Load", vus=2, duration_s=60.0))
    bench.until(lambda: bench.job(job).started_ms > 0)
    bench.run(2)
    quiet(bench)
    worker = bench.workers["w1"]
    (key,) = worker.held
    worker.unknown[key] = None
    del worker.held[key]
    assert bench.session(worker) is not None
    assert bench.director.has_work


def test_a_worker_that_drains_stirs() -> None:
    bench = Bench(w1=1)
    bench.run(1)
    quiet(bench)
    bench.workers["w1"].draining = True
    assert bench.session(bench.workers["w1"]) is not None
    assert bench.director.has_work


def test_a_phase_of_a_large_job_is_looked_at_after_a_moment() -> None:
    bench = Bench(w1=40, w2=1)
    job = bench.submit(workflow("Load", vus=40, duration_s=60.0))
    bench.until(lambda: bench.job(job).started_ms > 0)
    bench.run(2)
    quiet(bench)
    before = bench.director.deadline()
    worker = bench.workers["w1"]
    key = next(iter(worker.held))
    worker.unknown[key] = None
    del worker.held[key]
    assert bench.session(worker) is not None
    assert bench.director.has_work
    assert bench.now < bench.director.deadline() < before
