"""Any orders of any gates, in any order, leave a datacenter's handovers sound (R15)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from squall.cluster.datacenter.commands import (
    Accepted,
    AcceptJob,
    AdjustHeld,
    CancelHeld,
    Command,
    ConcludeWorkflows,
    Conclusion,
    Configure,
    DisownHeld,
    FinishJob,
    ForgetGated,
    KnowGates,
    MarkDelivered,
    Purge,
    PurgeGated,
    ReadyHeld,
    StartHeld,
    StopJob,
)
from squall.cluster.datacenter.gated_records import GatedRecord
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.protocol.gates.handover_keys import GateFence, HandoverNumber
from squall.cluster.protocol.job_keys import JobId
from tests.fakes.datacenter import Log, creation, submission, workflow

GATE_JOB = JobId("g1-7")
PLAN = creation(submission(workflow("A")))
numbers = st.integers(1, 3).map(HandoverNumber)
locals_ = st.integers(1, 3).map(lambda number: JobId(f"{GATE_JOB}.eu{number}"))
fences = st.sampled_from(
    [
        GateFence("g1", 0, 1),
        GateFence("g1", 0, 2),
        GateFence("g2", 1000, 1, ("g1",)),
        GateFence("g3", 1000, 1, ("g1",)),
        GateFence("g9", 0, 1),
    ]
)
groups = st.sampled_from(["g1", "g2"])
job = st.just(GATE_JOB)
commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        AcceptJob,
        gate_job=job,
        datacenter=st.just("eu"),
        handover=numbers,
        fence=fences,
        create=st.just(PLAN),
        refusal=st.sampled_from(["", "", "full"]),
    ),
    st.builds(StartHeld, gate_job=job, handover=numbers, fence=fences),
    st.builds(CancelHeld, gate_job=job, handover=numbers, fence=fences, now=st.booleans()),
    st.builds(AdjustHeld, gate_job=job, handover=numbers, fence=fences, adjust_seq=st.just(1)),
    st.builds(ForgetGated, gate_job=job, handover=numbers, fence=fences),
    st.builds(
        MarkDelivered, gate_job=job, handover=numbers, revision=st.integers(1, 4), group=groups
    ),
    st.builds(DisownHeld, gate_job=job, handover=numbers, group=groups, reason=st.just("x")),
    st.just(KnowGates(group="g1", addresses=("h:1",))),
    st.just(KnowGates(group="g2", former=("g1",), addresses=("h:2",))),
    st.builds(ReadyHeld, job=locals_, loaded=st.just(())),
    st.builds(StopJob, job=locals_, kind=st.just("failed"), reason=st.just("x")),
    locals_.map(
        lambda name: ConcludeWorkflows(
            job=name, conclusions=(Conclusion(workflow="A", outcome="skipped"),)
        )
    ),
    st.builds(FinishJob, job=locals_, status=st.sampled_from(["completed", "failed"])),
    st.builds(Purge, jobs=st.lists(locals_, max_size=2).map(tuple), early=st.just(True)),
    st.builds(PurgeGated, jobs=st.just((GATE_JOB,))),
)


def check_change(before: GatedRecord, after: GatedRecord) -> None:
    """What no command may ever undo."""
    assert after.highest >= before.highest
    assert after.closed or not before.closed
    for old in before.tries if not after.closed else ():
        new = after.find(old.handover)
        assert new is not None, "a handover is forgotten, and the job is open"
        assert new.revision >= old.revision
        if old.over:
            assert new.state == old.state, "the end of a handover changed"
        if old.state == "started":
            assert new.state in ("started", "ended")


@settings(max_examples=150, deadline=None)
@given(st.lists(commands, max_size=40))
def test_any_orders_leave_a_sound_state(sequence: list[Command]) -> None:
    log = Log()
    assert isinstance(log.apply(Configure(group="dc", lease_ms=5000)), Accepted)
    for command in sequence:
        before = dict(log.machine.tables.gated)
        jobs = dict(log.machine.tables.jobs)
        log.apply(command)
        tables = log.machine.tables
        assert not tables.alarms
        for name, record in before.items():
            if name in tables.gated:
                check_change(record, tables.gated[name])
        for name, local in jobs.items():
            # A result is removed only after its delivery, or when nobody waits for it.
            assert name in tables.jobs or not local.undelivered
        for name in set(tables.jobs) - set(jobs):
            assert isinstance(command, AcceptJob), "only an acceptance creates"
            assert tables.jobs[name].held
        running = [each for each in tables.jobs.values() if not each.held and not each.over]
        assert len([each for each in running if not each.stop]) <= 1, "two handovers run"
    loaded = Datacenter()
    loaded.load(log.machine.capture().slices())
    assert loaded.digest() == log.machine.digest()
