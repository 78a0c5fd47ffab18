"""A worker that membership suspects gets no new work until its next session, comes after the
others while it is suspected, and loses nothing that it runs.
"""

from __future__ import annotations

from squall.cluster.protocol.job_keys import JobId
from tests.fakes.datacenter import FAST, Bench, workflow


def suspect(bench: Bench, **since: float) -> None:
    bench.director.state.suspected_since = lambda node, boot: since.get(node)


def nodes_of(bench: Bench, job: JobId) -> set[str]:
    return {attempt.node for _, attempt in bench.machine.tables.live_of(job)}


def test_a_suspected_worker_without_a_session_since_gets_no_new_work() -> None:
    bench = Bench(w1=2, w2=4)
    bench.run(1.0)
    bench.workers["w2"].connected = False
    bench.run(0.3)
    suspect(bench, w2=bench.now)
    job = bench.submit(workflow("Load", vus=2, duration_s=30.0))
    assert nodes_of(bench, job) == {"w1"}


def test_without_the_suspicion_it_would_have_got_work() -> None:
    bench = Bench(w1=2, w2=4)
    bench.run(1.0)
    bench.workers["w2"].connected = False
    bench.run(0.3)
    job = bench.submit(workflow("Load", vus=2, duration_s=30.0))
    assert "w2" in nodes_of(bench, job)


def test_its_next_session_shows_that_it_lives_so_a_wrong_suspicion_keeps_no_worker_idle() -> None:
    bench = Bench(w1=2)
    bench.run(1.0)
    suspect(bench, w1=bench.now)
    job = bench.submit(workflow("Load", vus=2, duration_s=2.0))
    assert nodes_of(bench, job) == set()
    assert bench.finish(job).state == "completed"


def test_while_its_sessions_arrive_it_comes_after_the_others() -> None:
    bench = Bench(w1=2, w2=2)
    suspect(bench, w1=bench.now)
    bench.run(2.0)
    job = bench.submit(workflow("Load", vus=1, duration_s=5.0, priority="low"))
    assert nodes_of(bench, job) == {"w2"}


def test_what_a_suspected_worker_runs_ends_as_if_it_were_not_suspected() -> None:
    bench = Bench(w1=2, w2=2)
    job = bench.submit(workflow("Load", vus=4, duration_s=10.0))
    bench.until(lambda: bench.wf(job, "Load").started_ms > 0)
    assert nodes_of(bench, job) == {"w1", "w2"}
    suspect(bench, w1=bench.now, w2=bench.now)
    ended = bench.finish(job)
    assert (ended.state, bench.wf(job, "Load").lost) == ("completed", 0)


def test_a_suspicion_never_shortens_the_wait_for_a_lease() -> None:
    bench = Bench(w1=2, w2=2)
    job = bench.submit(workflow("Load", vus=4, duration_s=60.0))
    bench.until(lambda: bench.wf(job, "Load").started_ms > 0)
    bench.workers["w2"].connected = False
    suspect(bench, w2=bench.now)
    taken_s = bench.until(lambda: bench.wf(job, "Load").lost > 0)
    assert taken_s >= FAST.lost_after_s - FAST.session_interval_s - 0.1
