"""A job whose rules raise fails alone: the others go on, and every worker gets its answers (R3)."""

from __future__ import annotations

from typing import Any

import pytest

from squall.cluster.datacenter.commands import Accepted, AdjustLoad, FailJob, Rejected
from squall.cluster.datacenter.records import JobRecord
from squall.cluster.manager.director import core_pool, policy
from squall.cluster.manager.primary import volatile_state
from squall.cluster.manager.sessions import answers
from squall.cluster.protocol.job_keys import JobId
from tests.fakes.datacenter import Bench, texts, workflow


def raising_for(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    """Makes a rule raise for every job that has a workflow `Bad`."""
    rule = getattr(module, name)

    def broken(*arguments: Any) -> Any:
        for argument in arguments:
            if isinstance(argument, JobRecord) and argument.workflow("Bad") is not None:
                raise ZeroDivisionError("a bug in a rule")
        return rule(*arguments)

    monkeypatch.setattr(module, name, broken)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (policy, "check_limits"),
        (policy, "check_workflows"),
        (policy, "check_end"),
        (core_pool, "wanted_phase"),
        (core_pool, "next_phase"),
        (answers, "stop_of"),
        (answers, "_preparation"),
    ],
)
def test_a_job_whose_rules_raise_fails_and_the_others_complete(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    raising_for(monkeypatch, module, name)
    bench = Bench(w1=2, w2=2)
    told: list[tuple[JobId, str]] = []
    bench.director.state.on_broken = lambda job, error: told.append((job, str(error)))
    first = bench.submit(workflow("Good", vus=2, duration_s=3.0))
    bad = bench.submit(workflow("Bad", vus=2, duration_s=3.0))
    last = bench.submit(workflow("Good", vus=2, duration_s=3.0))
    over = bench.finish(bad, 60.0)
    assert over.state == "failed" and over.reason.startswith("internal error: ")
    assert "a bug in a rule" in over.reason
    assert [job for job, _ in told] == [bad]
    assert any(text.startswith(f"{bad}: ") for text in bench.machine.tables.alarms)
    assert bench.finish(first, 60.0).state == bench.finish(last, 60.0).state == "completed"
    bench.run(1.0)
    assert not bench.machine.tables.slots


def test_a_repeated_failure_changes_nothing() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load"))
    assert bench.apply(FailJob(job=job, error="first")) == Accepted(job=job)
    assert bench.apply(FailJob(job=job, error="second")) == Accepted(job=job, changed=False)
    assert bench.job(job).reason == "internal error: first"
    assert sum("internal error" in text for text in texts(bench, job)) == 1
    assert isinstance(bench.apply(FailJob(job=JobId("none"), error="x")), Rejected)


def test_a_command_that_cannot_be_encoded_fails_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_pool, "longest_run_ms", lambda *_: 1 << 70)
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load"))
    monkeypatch.undo()
    other = bench.submit(workflow("Load", duration_s=1.0))
    assert bench.finish(job, 10.0).state == "failed"
    assert bench.finish(other, 10.0).state == "completed"


def test_the_text_of_an_error_is_bounded() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load"))
    bench.director.fail_job(job, ValueError("x" * 100_000))
    bench.settle()
    assert len(bench.job(job).reason) < volatile_state.ERROR_MAX + 100


def test_an_adjustment_out_of_range_is_rejected() -> None:
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load"))
    bad = AdjustLoad(job=job, workflows=("Load",), rate_per_s=float("inf"))
    outcome = bench.apply(bad)
    assert isinstance(outcome, Rejected) and "rate_per_s is inf" in outcome.text


def test_two_hundred_workflows_of_a_layer_run_on_two_cores() -> None:
    bench = Bench(w1=2)
    job = bench.submit(*(workflow(f"W{n}", vus=1, duration_s=2.0) for n in range(200)))
    assert bench.finish(job, 120.0).state == "completed"
    assert all(w.outcome == "completed" for w in bench.job(job).workflows)


def test_a_core_that_prepares_many_shares_gets_the_time_for_it() -> None:
    bench = Bench(w1=2)
    # A tenth of a second for each of 100 shares on a core.
    bench.workers["w1"].prepare_s = bench.director.state.timers.prepare_timeout_s + 8.0
    job = bench.submit(*(workflow(f"W{n}", vus=1, duration_s=2.0) for n in range(200)))
    bench.run(2.0)
    assert bench.finish(job, 120.0).state == "completed"
    assert not any("not ready in time" in text for text in texts(bench, job))
