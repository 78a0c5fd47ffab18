"""The result of a part whose datacenter is given up."""

from __future__ import annotations

from typing import Any

from squall.cluster.gate.live.job_leader import GateJobLeader
from squall.cluster.protocol.job_keys import Attempt, AttemptKey
from squall.cluster.results.job_result import decode_result
from squall.runtime.tasks import TaskRunner
from tests.fakes.wire import FakeClock
from tests.unit.cluster.gate.lab.stewardship import GateBench


def never(*_: Any) -> Any:
    raise AssertionError("nothing is followed")


def test_a_gate_that_never_heard_of_a_started_part_counts_nothing_and_knows_nothing() -> None:
    """The gate that led the job died with the datacenter: another one is asked for its record."""
    bench = GateBench()
    job = bench.submit(("eu", 0.5), ("us", 0.5))
    bench.run(0.5)
    bench.ready(job, "eu", "us")
    clock = FakeClock()
    leader = GateJobLeader(
        bench.machine,
        TaskRunner(clock, never),
        clock=clock,
        group_ms=lambda: bench.ms,
        wall_s=lambda: 5000.0,
        part_of=lambda job, part: job.submission,
        ask=never,
        on_abort=never,
        leads=lambda job: True,
        settle_s=0.5,
        on_broken=never,
    )
    found = decode_result(leader.lost_part(AttemptKey(job, "", 1, Attempt(1))))
    assert (found.state, found.reports) == ("lost", [])
    (loss,) = found.losses
    assert loss.datacenter == "us" and loss.unknown_requests > 0
    assert abs(found.info.started_at - 5000.0) < 1.0
    assert leader.lost_part(AttemptKey(job, "", 1, Attempt(2))) == b"", "another try"
