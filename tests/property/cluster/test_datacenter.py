"""Any sequence of commands leaves a datacenter's state sound, and the same everywhere."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from squall.cluster.datacenter.commands import (
    AddWorker,
    AdjustLoad,
    Assignment,
    Command,
    ConcludeWorkflows,
    Conclusion,
    Configure,
    DrainWorker,
    EndAttempts,
    ExtendJob,
    FinishJob,
    ForgetWorkers,
    LoseAttempts,
    LoseWorkers,
    LostAttempt,
    Placement,
    PlaceWorkflows,
    Purge,
    RefillShares,
    Rejected,
    ReturnWorkflows,
    Started,
    StartWorkflows,
    StopJob,
    StopWorkflow,
    decode,
    decode_outcome,
    encode,
)
from squall.cluster.datacenter.records import TERMINAL, JobRecord, RecordFacts
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.ledger.interface import Entry, GroupMs, OpNumber
from squall.cluster.protocol.job_keys import Attempt, AttemptKey, JobId
from tests.fakes.datacenter import Log, creation, submission, workflow

nodes = st.sampled_from(["w1", "w2"])
boots = st.sampled_from(["b1", "b2"])
names = st.sampled_from(["A", "B", "C"])
jobs = st.sampled_from([JobId("g-2"), JobId("g-3"), JobId("g-5")])
shares = st.integers(0, 2)
numbers = st.integers(1, 3).map(Attempt)
keys = st.builds(AttemptKey, jobs, names, shares, numbers)
facts = st.builds(
    RecordFacts,
    key=keys,
    digest=st.sampled_from(["", "d1", "d2"]),
    complete=st.booleans(),
    error=st.sampled_from(["", "boom"]),
    cut=st.sampled_from(["", "stopped"]),
    silent_from_s=st.floats(0, 100),
)
PLAN = submission(workflow("A", vus=2), workflow("B", "A"), workflow("C", "A", always=True))


def placements(job: JobId, name: str, cores: list[tuple[str, str, int, Attempt]]) -> Command:
    assignments = tuple(
        Assignment(share, number, node, boot, slot, share)
        for share, (node, boot, slot, number) in enumerate(cores)
    )
    placement = Placement(workflow=name, shares=len(cores), assignments=assignments)
    return PlaceWorkflows(job=job, placements=(placement,), run_ms=60_000)


cores = st.tuples(nodes, boots, st.integers(0, 2), numbers)
some = st.integers(1, 3)
commands: st.SearchStrategy[Command] = st.one_of(
    st.just(Configure(group="g", lease_ms=5000)),
    st.builds(Configure, lease_ms=st.integers(-1, 9000)),
    st.builds(
        AddWorker,
        node=nodes,
        boot=boots,
        cores=st.integers(0, 2),
        dead_boots=st.lists(boots, max_size=2).map(tuple),
        held=st.lists(facts, max_size=2).map(tuple),
    ),
    st.builds(DrainWorker, node=nodes, draining=st.booleans()),
    st.builds(LoseWorkers, workers=st.lists(st.tuples(nodes, boots), max_size=2).map(tuple)),
    st.builds(ForgetWorkers, nodes=st.lists(nodes, max_size=2).map(tuple)),
    st.sampled_from(["k1", "k2", "k3"]).map(lambda key: creation(PLAN, key)),
    st.builds(placements, jobs, names, st.lists(cores, min_size=1, max_size=3)),
    st.builds(
        ReturnWorkflows,
        job=jobs,
        workflows=st.lists(names, max_size=2).map(tuple),
        returned=st.lists(keys, max_size=2).map(tuple),
    ),
    st.builds(
        StartWorkflows,
        job=jobs,
        started=st.lists(
            st.builds(Started, names, st.lists(numbers, max_size=3).map(tuple)), max_size=2
        ).map(tuple),
    ),
    st.builds(EndAttempts, ended=st.lists(facts, max_size=3).map(tuple)),
    st.builds(
        LoseAttempts,
        lost=st.lists(st.builds(LostAttempt, keys, st.just("gone"), facts), max_size=3).map(tuple),
    ),
    st.builds(
        RefillShares,
        job=jobs,
        workflow=names,
        assignments=st.lists(
            st.builds(Assignment, shares, numbers, nodes, boots, st.integers(0, 2), some),
            max_size=2,
        ).map(tuple),
    ),
    st.builds(StopWorkflow, job=jobs, workflow=names, error=st.just("x"), now=st.booleans()),
    st.builds(
        ConcludeWorkflows,
        job=jobs,
        conclusions=st.lists(
            st.builds(
                Conclusion,
                workflow=names,
                outcome=st.sampled_from(
                    ["completed", "failed", "skipped", "interrupted", "timeout"]
                ),
            ),
            max_size=3,
        ).map(tuple),
    ),
    st.builds(
        StopJob,
        job=jobs,
        kind=st.sampled_from(["cancelled", "timeout", "aborted", "failed"]),
        reason=st.just("x"),
        now=st.booleans(),
    ),
    st.builds(
        AdjustLoad,
        job=jobs,
        workflows=st.lists(names, max_size=2).map(tuple),
        paused=st.none() | st.booleans(),
    ),
    st.builds(ExtendJob, job=jobs, by_ms=st.integers(-5, 50), cap_ms=st.integers(0, 100)),
    st.builds(
        FinishJob, job=jobs, status=st.sampled_from([*TERMINAL, "running"]), keep_ms=st.just(10)
    ),
    st.builds(Purge, jobs=st.lists(jobs, max_size=2).map(tuple)),
)


def check_change(before: JobRecord | None, after: JobRecord | None) -> None:
    """What no command may ever undo."""
    if before is None or after is None:
        return
    if before.over:
        assert after.state == before.state, "a terminal state changed"
    if before.stop:
        assert after.stop == before.stop, "a stop was taken back"
    for old, new in zip(before.workflows, after.workflows, strict=True):
        if old.over:
            assert new.outcome == old.outcome, "an outcome changed"
        if before.stop and old.name != "C":
            assert old.started_ms or not new.started_ms, "a cancelled workflow started"
            assert old.state.value == "dispatched" or new.state.value != "dispatched"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(commands, st.integers(0, 20)), max_size=60), st.integers(0, 60))
def test_apply_is_total_and_keeps_the_state_sound(
    steps: list[tuple[Command, int]], captured_at: int
) -> None:
    log = Log()
    # Most sequences should get somewhere: the ground is there.
    ground: list[Command] = [
        Configure(group="g", lease_ms=5000),
        creation(PLAN, "k1"),
        creation(PLAN, "k2"),
        AddWorker(node="w1", boot="b1", cores=2),
    ]
    copy: Datacenter | None = None
    for index, (command, pause_ms) in enumerate([*((each, 0) for each in ground), *steps]):
        if index == captured_at:
            copy = Datacenter()
            copy.load(log.machine.capture().slices())
        before = dict(log.machine.tables.jobs)
        log.group_ms += pause_ms
        log.apply(command)
        for job in {*before, *log.machine.tables.jobs}:
            check_change(before.get(job), log.machine.tables.jobs.get(job))
        if copy is not None:
            copy.apply(log.bodies[-1])
    assert not log.machine.tables.alarms
    again = Datacenter()
    for entry in log.bodies:
        again.apply(entry)
    assert again.digest() == log.machine.digest()
    assert copy is None or copy.digest() == log.machine.digest()


@given(st.binary(max_size=200))
def test_apply_takes_any_bytes(body: bytes) -> None:
    machine, untouched = Datacenter(), Datacenter()
    outcome = decode_outcome(machine.apply(Entry(OpNumber(1), GroupMs(1), 1, body)))
    untouched.apply(Entry(OpNumber(1), GroupMs(1), 1, b""))
    assert isinstance(outcome, Rejected), outcome
    assert machine.digest() == untouched.digest()


@given(commands)
def test_a_command_survives_its_encoding(command: Command) -> None:
    assert decode(encode(command)) == command
