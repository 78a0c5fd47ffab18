"""Workers whose machines have little left get work after the others."""

from __future__ import annotations

import pytest

from squall.cluster.manager.clients.job_views import node_views
from squall.cluster.protocol.messages import WorkerLoad
from tests.fakes.datacenter import Bench, workflow


@pytest.mark.parametrize(
    ("load", "chosen"),
    [
        (None, "w1"),
        (WorkerLoad(cpu=0.5, memory=0.5, lag_s=0.01), "w1"),
        (WorkerLoad(cpu=0.9), "w2"),
        (WorkerLoad(memory=0.95), "w2"),
        (WorkerLoad(lag_s=0.2), "w2"),
    ],
)
def test_a_loaded_worker_gets_new_work_last(load: WorkerLoad | None, chosen: str) -> None:
    bench = Bench(w1=2, w2=1)
    bench.workers["w1"].load = load
    bench.run(1.0)
    job = bench.submit(workflow("Load", vus=1))
    bench.until(lambda: bench.job(job).started_ms > 0)
    assert [node for node, worker in bench.workers.items() if worker.held] == [chosen]
    views = {
        view.name: view.load for view in node_views(bench.machine.tables, bench.director.state)
    }
    assert views == {"w1": load, "w2": None}


def test_a_loaded_worker_gets_work_if_there_is_no_other() -> None:
    bench = Bench(w1=1)
    bench.workers["w1"].load = WorkerLoad(cpu=1.0, memory=1.0, lag_s=3.0)
    job = bench.submit(workflow("Load", vus=1, duration_s=3.0))
    assert bench.finish(job).state == "completed"


def test_a_refill_goes_to_a_worker_that_is_not_loaded() -> None:
    bench = Bench(w1=3, w2=2, w3=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=60.0))
    bench.until(lambda: bool(bench.workers["w1"].held) and bench.job(job).started_ms > 0)
    bench.workers["w2"].load = WorkerLoad(cpu=0.99)
    bench.run(1.0)
    bench.workers["w1"].kill()
    bench.until(lambda: bool(bench.workers["w3"].held))
    assert not bench.workers["w2"].held
