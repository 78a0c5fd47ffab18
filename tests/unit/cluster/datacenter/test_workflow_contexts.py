"""What workflows hand over stays between managers and workers, and does not depend on the
order in which results arrive.
"""

from __future__ import annotations

import random

import msgspec
import pytest

from squall.cluster.datacenter.workflow_contexts import Context, encode_context
from squall.cluster.manager.clients.job_views import job_view, node_views, why
from squall.cluster.manager.primary.effects import CollectContext, DirectorEffect, TakeRecord
from squall.cluster.protocol.messages import JobStatus
from squall.cluster.results.assemble import assemble
from squall.engine.run_options import RunOptions
from squall.stats.manifest import WorkflowManifest
from tests.fakes.datacenter import Bench, texts, workflow
from tests.unit.cluster.results.lab.records import ended, manifest, parts, record, window

VALUE = b"sesame-4711"


def giver() -> WorkflowManifest:
    gives = workflow("Give", vus=4, duration_s=1.0)
    gives.provides = {"token": ["Take"]}
    return gives


def taker() -> WorkflowManifest:
    return workflow("Take", "Give", vus=2, duration_s=3.0, wants=["token"])


def test_workers_get_what_is_handed_over_and_clients_never_see_it() -> None:
    bench = Bench(w1=1, w2=1)
    context = encode_context(Context(provided={"token": VALUE}))

    def collected(effect: DirectorEffect) -> bool:
        if not isinstance(effect, CollectContext):
            return False
        bench.director.context_collected(effect.tag, effect.job, effect.workflow, inline=context)
        return True

    bench.hold = collected
    job = bench.submit(giver(), taker())
    bench.until(lambda: bench.wf(job, "Take").started_ms > 0)
    orders = [m.preparation for each in bench.workers.values() for m in each.held.values()]
    assert orders and all(order.spec.values == {"token": VALUE} for order in orders)
    facts = bench.director.state
    for _ in range(2):
        view = job_view(bench.machine.tables, bench.job(job), bench.group_ms, facts)
        shown = msgspec.msgpack.encode(
            [
                JobStatus(view, bench.job(job).submission.manifest),
                node_views(bench.machine.tables, facts),
                why(facts, bench.job(job)),
                list(texts(bench, job)),
            ]
        )
        assert VALUE not in shown
        bench.finish(job)


def test_the_result_of_a_job_holds_nothing_that_was_handed_over() -> None:
    made = record(0, [window(s, 0, [0.01] * 10, users=5, busy=5) for s in range(10)])
    assert made.end is not None
    made.end.values, made.end.provided = {"token": VALUE}, {"door": VALUE}
    result = assemble(manifest(), RunOptions(file="shop.py"), parts([ended(made, shares=1)]))
    assert result.workflows[0].status == "completed"
    assert VALUE not in msgspec.msgpack.encode(result)


@pytest.mark.parametrize("seed", range(20))
def test_the_order_in_which_results_arrive_does_not_choose_the_value(seed: int) -> None:
    draw = random.Random(seed)
    bench = Bench(w1=1, w2=1, w3=1, w4=1)
    asked: list[tuple[str, ...]] = []

    def held(effect: DirectorEffect) -> bool:
        if isinstance(effect, CollectContext):
            asked.append(effect.records)
        return isinstance(effect, TakeRecord)

    bench.hold = held
    job = bench.submit(giver(), taker())
    waiting: list[TakeRecord] = []
    while not asked:
        bench.run(0.2)
        waiting += [each for each in bench.held_effects if isinstance(each, TakeRecord)]
        bench.held_effects = []
        if waiting and (len(waiting) == 4 or draw.random() < 0.3):
            take = waiting.pop(draw.randrange(len(waiting)))
            bench.do(take)
            bench.settle()
        assert bench.group_ms < 60_000
    assert [digest.rstrip(".") for digest in asked[0]] == [f"{job}/Give/{n}#1" for n in range(4)]
