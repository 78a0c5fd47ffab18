"""A worker that goes on as before is granted its leases again without another check of each
attempt; whatever changes on either side is noticed with the next session."""

from __future__ import annotations

from squall.cluster.datacenter.commands import DrainWorker
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.datacenter.tables import Tables
from squall.cluster.protocol.job_keys import AttemptKey
from tests.fakes.datacenter import Bench, status_of
from tests.unit.cluster.manager.lab.running_load import answer_of, running


def looked_up(bench: Bench, node: str) -> int:
    """How many attempts of the log one session of a worker reads."""
    looks: list[AttemptKey] = []
    tables = bench.machine.tables

    def attempt(key: AttemptKey) -> object:
        looks.append(key)
        return Tables.attempt(tables, key)

    tables.attempt = attempt  # pyright: ignore[reportAttributeAccessIssue]
    try:
        answer_of(bench, node)
    finally:
        del tables.attempt
    return len(looks)


def test_a_settled_worker_is_granted_without_a_look_at_the_log() -> None:
    bench = Bench(w1=1, w2=1)
    running(bench, for_s=3.0)
    assert isinstance(bench.machine, Datacenter)
    before = answer_of(bench, "w1")
    assert looked_up(bench, "w1") == 0
    again = answer_of(bench, "w1")
    assert again.granted == before.granted != []
    (key,) = again.granted
    assert bench.director.state.attempt(key).granted == bench.now
    assert again.interval_s == before.interval_s
    assert again.telemetry_interval_s == before.telemetry_interval_s
    assert again.lease_s == before.lease_s > 0.0


def test_a_command_of_anybody_is_heard_of_with_the_next_session() -> None:
    bench = Bench(w1=1, w2=1)
    job = running(bench, for_s=3.0)
    answer_of(bench, "w1")
    bench.cancel(job)
    answer = answer_of(bench, "w1")
    assert [order.now for order in answer.stop] == [False]


def test_what_this_primary_gives_up_is_not_granted_to_one_that_goes_on() -> None:
    for given_up in ("losing", "withheld"):
        bench = Bench(w1=1, w2=1)
        running(bench, for_s=3.0)
        (key,) = answer_of(bench, "w1").granted
        setattr(bench.director.state.attempt(key), given_up, "silent")
        assert answer_of(bench, "w1").granted == []
        assert answer_of(bench, "w2").granted != []


def test_an_idle_worker_that_drains_hears_each_time_that_it_is_drained() -> None:
    bench = Bench(w1=1, w2=1)
    bench.run(3)
    bench.apply(DrainWorker(node="w1", draining=True))
    for _ in range(3):
        assert answer_of(bench, "w1").drained
    assert not answer_of(bench, "w2").drained


def test_another_phase_of_an_attempt_is_looked_at() -> None:
    bench = Bench(w1=1, w2=1)
    running(bench, for_s=3.0)
    answer_of(bench, "w1")
    worker = bench.workers["w1"]
    ((key, model),) = worker.held.items()
    assert status_of(key, model).phase == "running"
    worker.held.clear()
    assert looked_up(bench, "w1") > 0
