"""Commands about jobs: creation, keys, stop, end, purge."""

from __future__ import annotations

import msgspec
import pytest

from squall.api.errors import SquallError
from squall.cluster.datacenter.commands import (
    Accepted,
    AdjustLoad,
    CommandOutcome,
    ConcludeWorkflows,
    Conclusion,
    Configure,
    ExtendJob,
    FinishJob,
    LeadJobs,
    Purge,
    Rejected,
    StopJob,
    decode_outcome,
    encode,
)
from squall.cluster.datacenter.workflow_states import WorkflowState
from squall.cluster.ledger.interface import Entry, GroupMs, OpNumber
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.job_rules import COMMAND_MAX_BYTES
from tests.fakes.datacenter import Log, creation, submission, workflow


def log() -> Log:
    made = Log()
    assert isinstance(made.apply(Configure(group="g", lease_ms=5000)), Accepted)
    return made


def job_of(outcome: CommandOutcome) -> JobId:
    assert isinstance(outcome, Accepted), outcome
    return outcome.job


def over(log: Log, job: JobId, outcome: str = "skipped") -> None:
    names = [each.name for each in log.machine.tables.jobs[job].workflows]
    conclusions = tuple(Conclusion(workflow=name, outcome=outcome) for name in names)
    assert isinstance(log.apply(ConcludeWorkflows(job=job, conclusions=conclusions)), Accepted)


def test_a_job_is_named_by_its_group_and_the_op_of_its_creation() -> None:
    first = log()
    assert job_of(first.apply(creation(submission(workflow("A"))))) == "g-2"


def test_the_time_of_creation_never_goes_back_over_primaries_and_checkpoints() -> None:
    made = log()

    def created_at(key: str, wall_s: float) -> float:
        command = creation(submission(workflow("A")), key)
        job = job_of(made.apply(msgspec.structs.replace(command, created_at=wall_s)))
        return made.machine.tables.jobs[job].created_at

    assert created_at("k1", 100.0) == 100.0
    assert created_at("k2", 40.0) == 100.0
    made.machine.load(list(made.machine.capture().slices()))
    assert created_at("k3", 99.0) == 100.0
    assert created_at("k4", 101.0) == 101.0


def test_before_the_group_has_a_name_no_job_is_created() -> None:
    assert isinstance(Log().apply(creation(submission(workflow("A")))), Rejected)


def test_the_same_key_gives_the_same_job_and_another_content_a_conflict() -> None:
    first = log()
    job = job_of(first.apply(creation(submission(workflow("A")), "k")))
    again = first.apply(creation(submission(workflow("A")), "k"))
    assert again == Accepted(job=job, changed=False)
    other = first.apply(creation(submission(workflow("B")), "k"))
    assert isinstance(other, Rejected) and "another job" in other.text
    theirs = first.apply(creation(submission(workflow("B")), "k", principal="bob"))
    assert job_of(theirs) != job
    assert len(first.machine.tables.jobs) == 2


@pytest.mark.parametrize(
    "layers", [(), (("A",),), (("A", "B"),), (("B",), ("A",)), (("A", "A"), ("B",))]
)
def test_layers_that_do_not_fit_the_workflows_are_rejected(layers: tuple[object, ...]) -> None:
    command = creation(submission(workflow("A"), workflow("B", "A")))
    bad = msgspec.structs.replace(command, layers=layers)
    assert isinstance(log().apply(bad), Rejected)


def test_a_stop_keeps_its_first_reason_and_may_be_hastened_once() -> None:
    first = log()
    job = job_of(first.apply(creation(submission(workflow("A")))))
    first.apply(StopJob(job=job, kind="cancelled", reason="by ann"))
    late = first.apply(StopJob(job=job, kind="timeout", reason="late"))
    assert late == Accepted(job=job, changed=False)
    assert first.apply(StopJob(job=job, kind="cancelled", reason="by bob", now=True)).changed
    record = first.machine.tables.jobs[job]
    assert (record.stop, record.reason, record.stop_now) == ("cancelled", "by ann", True)
    again = first.apply(StopJob(job=job, kind="cancelled", reason="x", now=True))
    assert again == Accepted(job=job, changed=False)


def test_a_job_has_one_terminal_state() -> None:
    first = log()
    job = job_of(first.apply(creation(submission(workflow("A")))))
    early = first.apply(FinishJob(job=job, status="completed"))
    assert isinstance(early, Rejected) and "not over" in early.text
    over(first, job)
    assert first.machine.tables.jobs[job].state == "completing"
    assert isinstance(first.apply(FinishJob(job=job, status="running")), Rejected)
    first.apply(FinishJob(job=job, status="failed", reason="because"))
    assert first.apply(FinishJob(job=job, status="completed")) == Accepted(job=job, changed=False)
    assert first.apply(StopJob(job=job, kind="timeout", reason="x")) == Accepted(
        job=job, changed=False
    )
    assert first.machine.tables.jobs[job].state == "failed"


def test_the_end_drops_secrets_contexts_and_events_that_became_a_blob() -> None:
    first = log()
    command = msgspec.structs.replace(creation(submission(workflow("A"))), sealed=b"secret")
    job = job_of(first.apply(command))
    over(first, job)
    first.apply(FinishJob(job=job, status="failed", result="r", history="h"))
    record = first.machine.tables.jobs[job]
    assert record.sealed == b"" and job not in first.machine.tables.events
    assert sorted(first.machine.referenced()) == ["h", "r"]


def test_a_job_is_purged_only_after_its_time_and_its_key_stays_a_day() -> None:
    first = log()
    job = job_of(first.apply(creation(submission(workflow("A")), "k")))
    over(first, job)
    first.apply(FinishJob(job=job, status="failed", keep_ms=1000))
    first.apply(Purge(jobs=(job,), key_keep_ms=5000))
    assert job in first.machine.tables.jobs
    first.group_ms += 1000
    first.apply(Purge(jobs=(job,), key_keep_ms=5000))
    assert job not in first.machine.tables.jobs
    same = first.apply(creation(submission(workflow("A")), "k"))
    assert same == Accepted(job=job, changed=False)
    first.apply(Purge(keys=(("ann", "k"),)))
    assert first.machine.tables.keys
    first.group_ms += 5000
    first.apply(Purge(keys=(("ann", "k"),)))
    assert not first.machine.tables.keys


def test_jobs_and_keys_beyond_the_number_that_is_kept_go_before_their_time() -> None:
    first = log()
    ended = job_of(first.apply(creation(submission(workflow("A")), "ended")))
    runs = job_of(first.apply(creation(submission(workflow("A")), "runs")))
    over(first, ended)
    first.apply(FinishJob(job=ended, status="failed", keep_ms=1000))
    keys = (("ann", "ended"), ("ann", "runs"))
    first.apply(Purge(jobs=(ended, runs), key_keep_ms=5000, early=True))
    assert list(first.machine.tables.jobs) == [runs]
    first.apply(Purge(keys=keys))
    assert set(first.machine.tables.keys) == set(keys)
    # A key of a job that exists stays, or its job could be created twice.
    first.apply(Purge(keys=keys, early=True))
    assert list(first.machine.tables.keys) == [("ann", "runs")]


def test_adjustments_count_up_and_keep_what_they_do_not_name() -> None:
    first = log()
    job = job_of(first.apply(creation(submission(workflow("A"), workflow("B")))))
    assert first.apply(AdjustLoad(job=job, workflows=("A",), rate_per_s=5.0)).value == 1
    assert first.apply(AdjustLoad(job=job, workflows=("A", "B"), paused=True, by="ann")).value == 2
    a = first.machine.tables.jobs[job].workflow("A")
    assert a is not None
    assert (a.adjustment.rate_per_s, a.adjustment.paused, a.adjustment.adjust_seq) == (5.0, True, 2)
    assert [e.by for e in first.machine.tables.jobs[job].adjustments] == ["", "ann", "ann"]
    assert isinstance(first.apply(AdjustLoad(job=job, workflows=("C",))), Rejected)
    assert isinstance(first.apply(AdjustLoad(job=job, workflows=())), Rejected)
    first.apply(StopJob(job=job, kind="cancelled", reason="x"))
    assert isinstance(first.apply(AdjustLoad(job=job, workflows=("A",))), Rejected)


def test_extensions_are_capped_in_their_sum() -> None:
    first = log()
    job = job_of(first.apply(creation(submission(workflow("A"), timeout_s=100))))
    sums = [first.apply(ExtendJob(job=job, by_ms=40, cap_ms=100)) for _ in range(4)]
    assert [(g.value, g.changed) for g in sums if isinstance(g, Accepted)] == [
        (40, True),
        (80, True),
        (100, True),
        (100, False),
    ]
    assert first.machine.tables.jobs[job].extension_ms == 100


def test_a_late_try_of_an_adjustment_changes_nothing() -> None:
    first = log()
    job = job_of(first.apply(creation(submission(workflow("A")))))
    pause = AdjustLoad(job=job, workflows=("A",), paused=True, request_id="one")
    resume = AdjustLoad(job=job, workflows=("A",), paused=False, request_id="two")
    first.apply(pause)
    first.apply(resume)
    late = first.apply(pause)
    assert (late.value, late.changed) == (1, False)
    record = first.machine.tables.jobs[job]
    assert record.adjust_seq == 2 and len(record.adjustments) == 2
    assert not record.workflows[0].adjustment.paused
    first.apply(StopJob(job=job, kind="cancelled", reason="x"))
    assert first.apply(resume).value == 2, "it took effect before the stop"


def test_a_request_id_is_bounded() -> None:
    first = log()
    job = job_of(first.apply(creation(submission(workflow("A")))))
    endless = AdjustLoad(job=job, workflows=("A",), paused=True, request_id="x" * 65)
    assert isinstance(first.apply(endless), Rejected)


def test_a_job_may_be_led_by_another_member() -> None:
    first = log()
    job = job_of(first.apply(creation(submission(workflow("A")))))
    assert first.apply(LeadJobs(leaders=((job, "m2"), (JobId("g-9"), "m3")))).changed
    assert first.machine.tables.jobs[job].leader == "m2"


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x80", encode(Configure(lease_ms=1))[:-1]])
def test_what_is_no_command_is_rejected_and_changes_nothing(body: bytes) -> None:
    first = log()
    before = first.machine.digest()
    result = first.machine.apply(Entry(OpNumber(1), GroupMs(0), 1, body))
    assert isinstance(decode_outcome(result), Rejected)
    assert first.machine.digest() == before


def test_a_command_of_a_newer_version_is_rejected() -> None:
    first = log()
    entry = Entry(OpNumber(5), GroupMs(0), 99, encode(Configure(lease_ms=1)))
    assert isinstance(decode_outcome(first.machine.apply(entry)), Rejected)
    assert first.machine.tables.lease_ms == 5000


def test_a_command_that_the_log_cannot_hold_is_refused_with_its_size() -> None:
    big = creation(submission(workflow("A")))
    big = msgspec.structs.replace(big, sealed=b"x" * COMMAND_MAX_BYTES)
    with pytest.raises(SquallError, match="at most 262,144 are allowed"):
        encode(big)


def test_a_broken_invariant_fails_its_job_alone() -> None:
    first = log()
    job = job_of(first.apply(creation(submission(workflow("A")), "1")))
    other = job_of(first.apply(creation(submission(workflow("A")), "2")))
    record = first.machine.tables.jobs[job]
    # No command can do this: a workflow that completed and has no outcome.
    odd = msgspec.structs.replace(record.workflows[0], state=WorkflowState.COMPLETED)
    first.machine.tables.put_job(msgspec.structs.replace(record, workflows=(odd,)))
    conclusion = Conclusion(workflow="A", outcome="skipped")
    outcome = first.apply(ConcludeWorkflows(job=job, conclusions=(conclusion,)))
    assert isinstance(outcome, Rejected) and "internal error" in outcome.text
    failed = first.machine.tables.jobs[job]
    assert failed.state == "failed" and failed.reason.startswith("internal error")
    assert first.machine.tables.alarms
    assert first.machine.tables.jobs[other].state == "queued"
