"""A worker that stands still while others move gets no new work while there are others; a
worker is never taken for stuck because of what all have in common.
"""

from __future__ import annotations

from squall.cluster.control.health import Decision, Progress
from squall.cluster.manager.clients.job_views import node_views
from squall.cluster.manager.director.worker_health import standing, worker_decision
from squall.cluster.protocol.job_keys import JobId
from squall.stats.manifest import Profile
from tests.fakes.datacenter import FAST, Bench, workflow

STALLED_S = FAST.stuck_s / 4.0


def running(bench: Bench, duration_s: float = 600.0, vus: int = 4) -> JobId:
    job = bench.submit(workflow("Load", vus=vus, duration_s=duration_s))
    bench.until(lambda: bench.wf(job, "Load").started_ms > 0)
    return job


def still(bench: Bench) -> dict[str, str]:
    return {node: how.value for node, how in standing(bench.director.state).items()}


def nodes_of(bench: Bench, job: JobId) -> set[str]:
    return {attempt.node for _, attempt in bench.machine.tables.live_of(job)}


def test_one_share_that_executes_nothing_makes_its_worker_stalled_then_stuck() -> None:
    bench = Bench(w1=2, w2=2)
    running(bench)
    bench.workers["w2"].idle = True
    bench.run(STALLED_S - 1.0)
    assert still(bench) == {}
    bench.run(3.0)
    assert still(bench) == {"w2": "stalled"}
    bench.run(FAST.stuck_s)
    assert still(bench) == {"w2": "stuck"}
    views = node_views(bench.machine.tables, bench.director.state)
    assert [(view.name, view.state) for view in views] == [("w1", "busy"), ("w2", "stuck")]
    bench.workers["w2"].idle = False
    bench.run(3.0)
    assert still(bench) == {}


def test_where_nobody_executes_anything_it_is_not_the_workers() -> None:
    bench = Bench(w1=2, w2=2)
    running(bench)
    for worker in bench.workers.values():
        worker.idle = True
    bench.run(FAST.stuck_s - 2.0)
    assert still(bench) == {}


def test_most_workers_still_at_once_are_no_fault_of_each() -> None:
    bench = Bench(w1=1, w2=1, w3=1, w4=1)
    running(bench)
    for node in ("w1", "w2", "w3"):
        bench.workers[node].idle = True
    bench.run(STALLED_S + 3.0)
    assert still(bench) == {}
    bench.workers["w3"].idle = False
    bench.run(3.0)
    assert still(bench) == {"w1": "stalled", "w2": "stalled"}


def test_new_work_goes_to_those_that_move() -> None:
    bench = Bench(w1=3, w2=3)
    first = bench.submit(workflow("Load", vus=2, duration_s=600.0, priority="low"))
    bench.until(lambda: bench.wf(first, "Load").started_ms > 0)
    facts = bench.director.state
    busy = sorted(nodes_of(bench, first))
    assert busy
    facts.standing, facts.standing_at = {busy[0]: Progress.STUCK}, bench.now + 1e6
    other = bench.submit(workflow("More", vus=1, duration_s=5.0, priority="low"))
    bench.until(lambda: bench.wf(other, "More").started_ms > 0)
    assert busy[0] not in nodes_of(bench, other)


def test_with_nobody_else_a_worker_that_stands_still_is_given_work_all_the_same() -> None:
    bench = Bench(w1=2)
    facts = bench.director.state
    facts.standing, facts.standing_at = {"w1": Progress.STUCK}, bench.now + 1e6
    assert worker_decision(facts, bench.machine.tables.workers["w1"]) is Decision.DRAIN
    job = bench.submit(workflow("Load", vus=1, duration_s=3.0))
    assert bench.finish(job).state == "completed"


def test_a_share_that_has_little_to_do_is_not_still() -> None:
    """One start in a hundred seconds for each share: no share is expected to execute more."""
    bench = Bench(w1=1, w2=1)
    profile = Profile(model="open", rate_per_s=0.02, duration_s=600.0, max_vus=4, grace_s=1.0)
    job = bench.submit(workflow("Load", profile=profile))
    bench.until(lambda: bench.wf(job, "Load").started_ms > 0)
    if len(nodes_of(bench, job)) == 2:
        bench.workers["w2"].idle = True
    bench.run(FAST.stuck_s * 2)
    assert still(bench) == {}
