"""A job that makes load on a bench, and what its workers are answered."""

from __future__ import annotations

from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import SessionAnswer
from tests.fakes.datacenter import Bench, workflow


def running(bench: Bench, *, duration_s: float = 60.0, for_s: float = 1.0) -> JobId:
    """A job of two users that has been running for a while."""
    job = bench.submit(workflow("Load", vus=2, duration_s=duration_s))
    bench.until(lambda: bench.job(job).started_ms > 0)
    bench.run(for_s)
    return job


def answer_of(bench: Bench, node: str) -> SessionAnswer:
    answer = bench.session(bench.workers[node])
    assert answer is not None
    return answer
