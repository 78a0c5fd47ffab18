"""Any sequence of commands leaves the gates' state sound, and the same everywhere (R3, R15)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from squall.cluster.assignments.commands import (
    AssignParts,
    ForgetTries,
    GateCommand,
    LosePart,
    PartChoice,
    PartFacts,
    QueueAgain,
    ReportParts,
    StartParts,
)
from squall.cluster.assignments.records import GateJobRecord
from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.protocol.gates.handover_keys import HandoverNumber
from squall.cluster.protocol.job_commands import FinishJob, Purge, StopJob
from squall.cluster.protocol.job_keys import JobId
from tests.fakes.gates_log import GatesLog

jobs = st.sampled_from([JobId("g1-3"), JobId("g1-4")])
names = st.sampled_from(["eu", "us", "ap", "xx"])
parts = st.integers(0, 2)
numbers = st.integers(1, 4).map(HandoverNumber)
choice = st.builds(PartChoice, part=parts, datacenter=names, handover=numbers)
facts = st.builds(
    PartFacts,
    job=jobs,
    datacenter=names,
    handover=numbers,
    state=st.sampled_from(["accepted", "ready", "started", "refused", "cancelled", "ended"]),
    revision=st.integers(1, 6),
    is_final=st.booleans(),
    result=st.sampled_from(["", "r1", "r2"]),
)
commands: st.SearchStrategy[GateCommand] = st.one_of(
    st.builds(AssignParts, job=jobs, choices=st.lists(choice, max_size=2).map(tuple)),
    st.builds(ReportParts, reports=st.lists(facts, max_size=3).map(tuple)),
    st.builds(StartParts, job=jobs, handovers=st.lists(numbers, max_size=2).map(tuple)),
    st.builds(QueueAgain, job=jobs, reason=st.just("late")),
    st.builds(LosePart, job=jobs, part=parts, handover=numbers, reason=st.just("gone")),
    st.builds(StopJob, job=jobs, kind=st.just("cancelled"), reason=st.just("x"), now=st.booleans()),
    st.builds(FinishJob, job=jobs, status=st.sampled_from(["completed", "failed", "queued"])),
    st.builds(ForgetTries, forgotten=st.lists(st.tuples(jobs, names), max_size=2).map(tuple)),
    st.builds(Purge, jobs=st.lists(jobs, max_size=2).map(tuple), early=st.booleans()),
)


def check(job: GateJobRecord, before: GateJobRecord | None) -> None:
    numbers_of: dict[str, list[int]] = {}
    for part in job.parts:
        tries = part.tries
        rising = [each.handover for each in tries]
        assert rising == sorted(set(rising)), "the number of a part rises"
        for each in tries:
            numbers_of.setdefault(each.datacenter, []).append(each.handover)
        for each in tries[:-1]:
            # A try that another one followed was never started, and its end is driven.
            assert each.state not in ("started", "lost")
            assert each.cancel or each.settled
    for where, given_ in numbers_of.items():
        assert len(given_) == len(set(given_)), f"two tries of {job.job} in {where} have one number"
    current = [part.current for part in job.parts if part.current is not None]
    running = [each.datacenter for each in current if each.state == "started"]
    assert len(running) == len(set(running))
    if before is not None and before.over:
        assert job.state == before.state, "a job has one terminal state"


@settings(max_examples=150, deadline=None)
@given(st.lists(commands, max_size=30))
def test_any_commands_leave_a_sound_state(sequence: list[GateCommand]) -> None:
    log = GatesLog()
    log.create("eu", "us", key="1")
    log.create("us", key="2")
    for command in sequence:
        before = dict(log.machine.tables.jobs)
        log.apply(command)
        tables = log.machine.tables
        assert not tables.alarms
        for job in tables.jobs.values():
            check(job, before.get(job.job))
        held = [
            dc
            for job in tables.jobs.values()
            if len(job.parts) > 1 and job.reserves
            for dc in [p.current.datacenter for p in job.parts if p.current and p.current.waits]
        ]
        assert sorted(held) == sorted(tables.tickets), "one ticket for each datacenter"
    replayed = Assignments()
    for entry in log.entries:
        replayed.apply(entry)
    assert replayed.digest() == log.machine.digest()
    loaded = Assignments()
    loaded.load(log.machine.capture().slices())
    assert loaded.digest() == log.machine.digest()
    assert (loaded.tables.tickets, set(loaded.tables.open)) == (
        log.machine.tables.tickets,
        set(log.machine.tables.open),
    )
