"""Many jobs at once: each is seen to begin and to end, none is given out twice, and nothing
of them is left.
"""

from __future__ import annotations

import random

from squall.cluster.manager.director.policy import Director
from squall.cluster.manager.primary.effects import AssembleResult, DirectorEffect
from squall.cluster.protocol.job_keys import JobId
from squall.stats.manifest import WorkflowManifest
from tests.fakes.datacenter import FAST, Bench, texts, workflow


def short(count: int) -> list[WorkflowManifest]:
    return [workflow(f"W{number}", vus=1, duration_s=0.005) for number in range(count)]


def test_a_thousand_workflows_of_a_moment_are_all_seen_to_begin_and_to_end() -> None:
    bench = Bench(w1=16, w2=16)
    told: dict[JobId, list[str]] = {}

    def kept(effect: DirectorEffect) -> bool:
        """What happened is a blob once the job is over."""
        if isinstance(effect, AssembleResult):
            told[effect.job] = list(texts(bench, effect.job))
        return False

    bench.hold = kept
    jobs = [bench.submit(*short(25)) for _ in range(40)]
    bench.until(lambda: all(bench.job(job).over for job in jobs), 200)
    for job in jobs:
        assert bench.job(job).state == "completed"
        for each in bench.job(job).workflows:
            assert (each.attempts, each.lost) == (each.shares, 0)
            assert f"{each.name} completed" in told[job]
            assert any(line.startswith(each.name) for line in told[job] if "started" in line)
    assert sorted(bench.assembled) == sorted(jobs), "one result each"


def test_two_who_both_believe_to_lead_give_nothing_out_twice() -> None:
    """The state is checked after every command, and load at every step, by the bench."""
    draw = random.Random(7)
    bench = Bench(w1=3, w2=3)
    leads = [
        bench.director,
        Director(bench.machine, FAST, group="g", now=bench.now, group_ms=bench.group_ms),
    ]
    jobs: list[JobId] = []
    cancelled: set[JobId] = set()
    for turn in range(400):
        bench.director = draw.choice(leads)
        bench.director.state.dirty |= dict.fromkeys(bench.machine.tables.jobs)
        if len(jobs) < 40 and turn % 3 == 0:
            first = workflow("A", vus=2, duration_s=draw.choice([0.3, 1.0]))
            jobs.append(bench.submit(first, workflow("B", vus=1), workflow("C", "A", vus=2)))
        if turn % 11 == 0:
            job = draw.choice(jobs)
            if not bench.job(job).over:
                cancelled.add(job)
            bench.cancel(job, now=draw.random() < 0.5)
        bench.run(draw.choice([0.05, 0.2, 0.5]))
    bench.until(lambda: all(bench.job(job).over for job in jobs), 600)
    for job in jobs:
        record = bench.job(job)
        assert record.state == ("cancelled" if job in cancelled else "completed")
        for each in record.workflows:
            assert each.lost == 0
            assert each.outcome != "completed" or each.attempts >= each.shares > 0
    assert not bench.machine.tables.slots and not bench.machine.tables.alarms


def test_nothing_is_left_of_jobs_however_they_end() -> None:
    draw = random.Random(3)
    bench = Bench(w1=2, w2=2, w3=2)
    empty = sizes(bench)
    bench.errors["Fails"] = "boom"
    jobs: list[JobId] = []
    for number in range(120):
        name = ("Load", "Fails", "Load", "Load")[number % 4]
        length_s = 30.0 if number % 4 == 2 else 0.5
        timeout_s = 2.0 if number % 4 == 3 else None
        plan = workflow(name, vus=2, duration_s=60.0 if timeout_s else length_s)
        jobs.append(bench.submit(plan, workflow("After", name, vus=1), timeout_s=timeout_s))
        bench.run(0.5)
        if number % 4 == 2:
            bench.cancel(jobs[-1], now=True)
        worker = draw.choice(list(bench.workers.values()))
        if number % 10 == 5 and worker.alive:
            worker.kill()
        elif not worker.alive:
            worker.restart(proven=draw.random() < 0.5)
    for worker in bench.workers.values():
        if not worker.alive:
            worker.restart()
    bench.until(lambda: all(bench.job(job).over for job in jobs), 900)
    states = {bench.job(job).state for job in jobs}
    assert {"completed", "failed", "cancelled", "timeout"} <= states, states
    before = {job: bench.job(job).state for job in jobs}
    bench.run(5)
    assert {job: bench.job(job).state for job in jobs} == before
    after_s = max(FAST.retention_failed_s, FAST.retention_s) + FAST.key_retention_s
    bench.group_ms += round(after_s * 1000)
    for _ in range(4):
        bench.run(6, 1.0)
        bench.group_ms += round(after_s * 1000)
    assert sizes(bench) == empty


def sizes(bench: Bench) -> dict[str, int]:
    """The sizes of everything that the state and its director keep about jobs."""
    tables, facts = bench.machine.tables, bench.director.state
    kept = {
        name: len(value)
        for owner in (tables, facts)
        for name, value in vars(owner).items()
        if isinstance(value, dict | list | tuple) and name not in ("workers", "live")
    }
    live = sum(len(attempts) for attempts in tables.live.values())
    held = sum(len(worker.held) for worker in bench.workers.values())
    return kept | {"live": live, "held": held}
