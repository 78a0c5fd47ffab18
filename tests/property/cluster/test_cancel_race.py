"""A cancel and the end of a job race in a thousand ways: the order in the log decides, and
every replica that applies that log comes to the same state."""

from __future__ import annotations

from random import Random

import pytest

from squall.cluster.datacenter.commands import Accepted, FinishJob, StopJob, decode, decode_outcome
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.ledger.interface import Entry
from squall.cluster.manager.primary.effects import DirectorEffect
from squall.cluster.protocol.job_keys import JobId
from tests.fakes.datacenter import Bench, Submit, workflow

RUNS = 1000
CHUNKS = 10
ENDS_S = 2.4
"""When the load is over: cancels fall around it."""


def _play(seed: int) -> tuple[Bench, JobId]:
    draw = Random(seed)
    bench = Bench(w1=1)
    job = bench.submit(workflow("Load", vus=1, duration_s=1))

    def held(effect: DirectorEffect) -> bool:
        return isinstance(effect, Submit) and draw.random() < 0.3

    bench.hold = held
    bench.run(draw.uniform(0.0, ENDS_S), step_s=draw.choice([0.02, 0.05, 0.1]))
    bench.cancel(job)
    if draw.random() < 0.5:
        bench.run(draw.uniform(0.0, 0.5))
        bench.cancel(job)
    bench.hold = lambda _: False
    for effect in bench.held_effects:
        if isinstance(effect, Submit):
            # Its outcome is unknown to the director, which reads the state again.
            bench.director.submitted(effect.tag, None, bench.now)
    bench.finish(job)
    bench.cancel(job)
    return bench, job


def _expected(entries: list[Entry], job: JobId) -> str:
    """By nothing but the order of the log."""
    machine = Datacenter()
    stopped = False
    for entry in entries:
        outcome = decode_outcome(machine.apply(entry))
        command = decode(entry.body)
        if isinstance(command, StopJob) and command.job == job:
            assert isinstance(outcome, Accepted)
            over = machine.tables.jobs[job].over
            stopped = stopped or (outcome.changed and not over)
        if isinstance(command, FinishJob) and isinstance(outcome, Accepted) and outcome.changed:
            return "cancelled" if stopped else "completed"
    raise AssertionError("the job never ended")


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_order_in_the_log_decides_between_cancel_and_end(chunk: int) -> None:
    ends: set[str] = set()
    for seed in range(chunk * RUNS // CHUNKS, (chunk + 1) * RUNS // CHUNKS):
        bench, job = _play(seed)
        entries = bench.bodies
        state = bench.job(job).state
        assert state == _expected(entries, job), f"seed {seed}"
        ends.add(state)
        last = decode_outcome(_replayed(entries[:-1]).apply(entries[-1]))
        assert last == Accepted(job=job, changed=False), "a cancel after the end changes nothing"
        one, other = _replayed(entries), _replayed(entries)
        assert one.digest() == other.digest() == bench.machine.digest()
    assert ends == {"cancelled", "completed"}


def _replayed(entries: list[Entry]) -> Datacenter:
    machine = Datacenter()
    for entry in entries:
        machine.apply(entry)
    return machine
