"""What is shown of one job ends neither the manager nor what is shown of the others."""

from __future__ import annotations

from typing import Any, cast

import pytest

from squall.cluster.datacenter.commands import AdjustLoad
from squall.cluster.group.telemetry.job_leader import JobLeader
from squall.cluster.manager.clients.job_views import job_view
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import StreamSnapshot
from squall.stats.manifest import Profile
from tests.fakes.datacenter import Bench, workflow


class NoTasks:
    def start(self, name: str, coroutine: Any, **_: Any) -> None:
        coroutine.close()


@pytest.mark.parametrize("shown", ["events", "seconds"])
def test_a_job_that_cannot_be_shown_is_reported_once_and_the_others_are_shown(shown: str) -> None:
    bench = Bench(w1=2)
    jobs = [bench.submit(workflow("Load", vus=1, duration_s=60.0)) for _ in range(2)]
    bench.until(lambda: all(bench.job(job).started_ms for job in jobs))
    told: list[JobId] = []
    leader = JobLeader(
        bench.machine,
        cast("Any", NoTasks()),
        group_ms=lambda: bench.group_ms,
        read_record=cast("Any", None),
        options_of=lambda job: job.submission.options,
        on_abort=lambda job, text: None,
        on_broken=lambda job, error: told.append(job),
    )
    bad, good = (leader.led(bench.job(job)) for job in jobs)

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a bug in what shows a job")

    if shown == "seconds":
        cast("Any", bad.totals).second = broken
    else:
        cast("Any", bad.stream).put = broken
    for paused in (True, False, True):
        before = good.stream.last
        for job in jobs:
            bench.apply(AdjustLoad(job=job, workflows=("Load",), paused=paused))
        bench.run(1.0)
        leader.changed()
        leader.tick()
        assert good.stream.last > before
    assert told == [jobs[0]]
    items = good.stream.after(-1)[1]
    assert any(isinstance(item, StreamSnapshot) for item in items)


def test_an_adjusted_rate_and_an_ended_workflow_are_shown() -> None:
    bench = Bench(w1=2)
    plan = Profile(model="open", rate_per_s=20.0, vus=2, max_vus=10, duration_s=60.0)
    job = bench.submit(workflow("Load", profile=plan))
    bench.until(lambda: bool(bench.job(job).started_ms))
    leader = JobLeader(
        bench.machine,
        cast("Any", NoTasks()),
        group_ms=lambda: bench.group_ms,
        read_record=cast("Any", None),
        options_of=lambda job: job.submission.options,
        on_abort=lambda job, text: None,
    )
    led = leader.led(bench.job(job))
    stats = led.totals._live_stats.stats.workflows["Load"]
    targets: list[float | None] = []
    for change in ({"rate_per_s": 60.0}, {"paused": True}):
        bench.apply(AdjustLoad(job=job, workflows=("Load",), **change))
        bench.run(1.5)
        leader.tick()
        targets.append(stats.target_per_s(1.0))
    assert targets == [60.0, 0.0]
    view = job_view(bench.machine.tables, bench.job(job), bench.group_ms)
    assert view.exit_code is None
