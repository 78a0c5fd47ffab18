"""Whole stories of a datacenter: repeated results, races at the deadline, cancels at every
moment, a queue that outlives a worker.
"""

from __future__ import annotations

import random

import msgspec
import pytest

from squall.cluster.datacenter.commands import StopJob
from squall.cluster.group.clients.submissions import check_room
from squall.cluster.manager.clients.job_views import job_view
from squall.cluster.manager.primary.effects import DirectorEffect, TakeRecord
from squall.cluster.protocol.job_keys import JobId, ShareKey
from squall.cluster.wire.errors import RemoteError
from squall.cluster.wire.messages import ErrorCode
from tests.fakes.datacenter import FAST, Bench, workflow

NIGHTLY_SEEDS = [pytest.param(seed, marks=pytest.mark.nightly) for seed in range(100, 1000)]
TERMINAL = ("completed", "partial", "failed", "cancelled", "timeout")


def cores_of(bench: Bench, job: JobId, name: str) -> int:
    return bench.wf(job, name).shares


def taken(bench: Bench) -> dict[str, int]:
    found: dict[str, int] = {}
    for node, _ in bench.machine.tables.slots:
        found[node] = found.get(node, 0) + 1
    return found


def test_tests_take_all_cores_and_actions_one() -> None:
    bench = Bench(w1=4, w2=4)
    alone = bench.submit(workflow("Test", vus=1000, duration_s=2))
    bench.finish(alone)
    assert cores_of(bench, alone, "Test") == 8
    counted = bench.submit(workflow("Values", vus=1000, duration_s=2, is_test=False))
    acting = bench.submit(workflow("Act", vus=1, duration_s=2, is_test=False))
    bench.finish(counted)
    bench.finish(acting)
    assert cores_of(bench, counted, "Values") == cores_of(bench, acting, "Act") == 1
    layered = bench.submit(
        workflow("First", is_test=False, duration_s=1), workflow("Second", "First", duration_s=2)
    )
    bench.finish(layered)
    assert cores_of(bench, layered, "Second") == 8


@pytest.mark.parametrize("seed", [*range(100), *NIGHTLY_SEEDS])
def test_results_that_come_several_times_and_in_any_order_count_once(seed: int) -> None:
    draw = random.Random(seed)
    bench = Bench(w1=2, w2=2)
    bench.hold = lambda effect: isinstance(effect, TakeRecord)
    job = bench.submit(
        workflow("One", duration_s=2), workflow("Other", duration_s=2), workflow("Next", "One")
    )
    brought: list[DirectorEffect] = []
    while not bench.job(job).over:
        bench.run(0.2)
        waiting, bench.held_effects = bench.held_effects, []
        draw.shuffle(waiting)
        for effect in waiting:
            brought += [effect] * draw.randint(1, 3)
        draw.shuffle(brought)
        for _ in range(draw.randint(0, len(brought))):
            effect = brought.pop()
            assert isinstance(effect, TakeRecord)
            model = bench.workers[effect.node].held.get(effect.key)
            if model is not None and model.record is not None:
                bench.director.record_arrived(effect.tag, model.record)
        bench.settle()
        assert bench.group_ms < 120_000, "it never ends"
    assert bench.job(job).state == "completed"
    assert bench.assembled == [job]
    starts = [line for line in bench.log if line.startswith("StartWorkflows") and "Acc" in line]
    assert len(starts) == 2
    for workflow_ in bench.job(job).workflows:
        assert workflow_.attempts == workflow_.shares


def test_a_layer_waits_until_the_records_of_the_one_before_are_stored() -> None:
    bench = Bench(w1=2, w2=2)
    bench.hold = lambda effect: isinstance(effect, TakeRecord)
    job = bench.submit(
        workflow("Validate", duration_s=2), workflow("Report", "Validate", is_test=False)
    )
    bench.run(10.0)
    assert bench.held_effects, "its users have ended, and nobody has their records"
    assert bench.wf(job, "Validate").outcome is None
    assert bench.wf(job, "Report").attempts == 0
    bench.hold = lambda _: False
    for effect in bench.held_effects:
        bench.do(effect)
    assert bench.finish(job).state == "completed"
    assert bench.wf(job, "Report").attempts == 1


def test_a_queued_exclusive_job_runs_on_what_is_left_when_a_worker_dies() -> None:
    bench = Bench(w1=4, w2=4)
    first = bench.submit(workflow("Load", vus=100, duration_s=6))
    bench.run(1)
    second = bench.submit(workflow("Load", vus=4, duration_s=2))
    exclusive = bench.submit(workflow("Alone", vus=8, duration_s=2, priority="exclusive"))
    small = [bench.submit(workflow("Small", vus=1, duration_s=1)) for _ in range(6)]
    bench.run(1)
    facts = bench.director.state
    views = [
        job_view(bench.machine.tables, bench.job(job), bench.group_ms, facts)
        for job in (exclusive, second)
    ]
    assert [(view.state, view.position) for view in views] == [("queued", 1), ("queued", 2)]
    bench.workers["w2"].kill()
    for _ in range(2000):
        bench.run(0.05)
        assert all(count <= 4 for count in taken(bench).values())
        if bench.job(exclusive).over:
            break
    assert bench.job(exclusive).state == "completed"
    assert cores_of(bench, exclusive, "Alone") == 4
    for job in (first, second, *small):
        bench.finish(job)


def test_of_a_completion_and_a_timeout_the_first_in_the_log_holds() -> None:
    seen: set[str] = set()
    for tenths in range(-12, 13):
        bench = Bench(w1=1)
        job = bench.submit(workflow("Load", vus=1, duration_s=5), timeout_s=5.2 + tenths / 10)
        ended: list[str] = []
        while len(ended) < 40:
            bench.run(0.05)
            state = bench.job(job).state
            if state in TERMINAL:
                ended.append(state)
            assert bench.group_ms < 60_000
        assert len(set(ended)) == 1, ended
        assert bench.assembled == [job]
        seen.add(ended[0])
    assert seen == {"completed", "timeout"}


def test_a_cancel_at_any_moment_ends_the_job_as_cancelled_and_nothing_runs_after_it() -> None:
    for step in range(0, 120, 3):
        bench = Bench(w1=2, w2=2)
        job = bench.submit(workflow("First", duration_s=1.5), workflow("Second", "First"))
        for tick in range(step):
            if tick == 20:
                bench.workers["w2"].kill()
            bench.run(0.05)
        over = bench.job(job).over
        bench.cancel(job)
        record = bench.finish(job, FAST.lost_after_s + 20)
        assert over or record.state == "cancelled", (step, record.state)
        before = {share: spans[-1][1] for share, spans in bench.loads.items()}
        bench.run(5)
        assert {share: spans[-1][1] for share, spans in bench.loads.items()} == before
        assert not bench.machine.tables.slots


def test_who_kills_every_worker_that_gets_a_share_fails_the_workflow_and_frees_the_rest() -> None:
    bench = Bench(w1=1, w2=1, w3=1, w4=1, w5=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=120))
    used: list[str] = []
    while not bench.job(job).over:
        bench.run(0.5)
        for attempt in bench.machine.tables.attempts.get(ShareKey(job, "Load", 0), ()):
            worker = bench.workers[attempt.node]
            if worker.alive and attempt.state == "live":
                used.append(attempt.node)
                worker.kill()
        assert bench.group_ms < 200_000
    assert bench.job(job).state == "failed"
    assert len(used) == len(set(used)) == FAST.retries_max + 1 == 4
    error = bench.wf(job, "Load").error
    assert error.startswith("share 0 was lost in all 4 attempts: no sign of life of"), error
    assert not bench.machine.tables.slots


def test_a_cancel_after_the_end_changes_nothing() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=1))
    before = bench.finish(job)
    bench.apply(StopJob(job=job, kind="cancelled", reason="cancelled by ann"))
    assert bench.job(job).state == before.state == "completed"


def test_a_dispatch_is_as_small_for_fifty_thousand_users_as_for_eight() -> None:
    sizes: list[int] = []
    for users in (8, 50_000):
        bench = Bench(w1=4, w2=4)
        for worker in bench.workers.values():
            worker.descriptors = 30_000
            bench.register(worker)
        job = bench.submit(workflow("Load", vus=users, duration_s=2))
        orders = [
            model.preparation for each in bench.workers.values() for model in each.held.values()
        ]
        while not orders:
            bench.run(0.05)
            orders = [m.preparation for each in bench.workers.values() for m in each.held.values()]
        assert sum(order.spec.users for order in orders) == users
        sizes.append(max(len(msgspec.msgpack.encode(order)) for order in orders))
        assert bench.finish(job).state == "completed"
        assert not bench.machine.tables.slots
    assert sizes[1] - sizes[0] < 100, sizes


def test_a_full_queue_turns_new_jobs_away_and_answers_known_ones() -> None:
    bench = Bench(w1=1)
    tables = bench.machine.tables
    running = bench.submit(workflow("Load", vus=1, duration_s=60), key="first")
    bench.until(lambda: bench.job(running).state == "running")
    for number in range(3):
        check_room(tables, "ann", f"waits {number}", 3)
        bench.submit(workflow("Load", vus=1, duration_s=1), key=f"waits {number}")
    with pytest.raises(RemoteError, match="the queue is full: 3 jobs wait") as refused:
        check_room(tables, "ann", "one more", 3)
    assert refused.value.code == ErrorCode.OVERLOADED and refused.value.retry_after_s > 0
    check_room(tables, "ann", "waits 1", 3)
    bench.cancel(running, now=True)
    bench.until(lambda: sum(j.state == "queued" for j in tables.jobs.values()) < 3)
    check_room(tables, "ann", "one more", 3)
