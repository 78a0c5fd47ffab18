"""Parts of a job: who has them, when they start, when their number rises (R15)."""

from __future__ import annotations

import pytest

from squall.cluster.assignments.commands import (
    AssignParts,
    ForgetTries,
    LosePart,
    PartFacts,
    QueueAgain,
    ReportParts,
)
from squall.cluster.protocol.command_outcomes import Accepted, Rejected
from squall.cluster.protocol.gates.handover_keys import HandoverNumber
from squall.cluster.protocol.job_commands import FinishJob, StopJob
from tests.fakes.gates_log import GatesLog, choices


def test_the_parts_of_a_job_are_assigned_with_its_creation() -> None:
    log = GatesLog()
    job = log.create("eu", "us")
    assert [
        (p.current.datacenter, p.current.handover) for p in log.job(job).parts if p.current
    ] == [
        ("eu", 1),
        ("us", 1),
    ]
    assert log.job(job).state == "preparing"


def test_no_part_starts_before_all_parts_are_ready() -> None:
    log = GatesLog()
    job = log.create("eu", "us")
    log.report(job, "ready", 0)
    assert isinstance(log.start(job), Rejected)
    log.report(job, "ready", 1)
    assert isinstance(log.start(job), Accepted)
    assert [part.current.state for part in log.job(job).parts if part.current] == ["started"] * 2
    assert log.job(job).state == "running"


def test_a_part_that_lost_its_readiness_holds_up_the_start() -> None:
    log = GatesLog()
    job = log.create("eu")
    log.report(job, "ready")
    log.report(job, "accepted")
    assert isinstance(log.start(job), Rejected)


def test_a_late_report_does_not_undo_a_newer_one() -> None:
    log = GatesLog()
    job = log.create("eu")
    log.report(job, "ready", revision=3)
    assert not log.report(job, "accepted", revision=2).changed
    assert log.current(job).state == "ready"


def test_a_refused_part_moves_and_its_number_rises() -> None:
    log = GatesLog()
    job = log.create("eu", "us")
    log.report(job, "refused", 1)
    assert isinstance(log.move(job, 1, "ap"), Accepted)
    assert (log.current(job, 1).datacenter, log.current(job, 1).handover) == ("ap", 2)


def test_a_part_that_moves_before_its_start_is_cancelled_where_it_was() -> None:
    log = GatesLog()
    job = log.create("eu")
    log.report(job, "accepted")
    assert isinstance(log.move(job, 0, "us"), Accepted)
    before = log.job(job).parts[0].tries[0]
    assert (before.cancel, before.settled) == ("cancelled", False)


def test_a_started_part_does_not_move() -> None:
    log = GatesLog()
    job = log.started("eu")
    assert isinstance(log.move(job, 0, "us"), Rejected)


def test_the_number_rises_for_a_datacenter_that_had_another_part_of_the_job() -> None:
    log = GatesLog()
    job = log.create("eu", "us")
    log.report(job, "refused", 0)
    assert isinstance(log.move(job, 0, "ap"), Accepted)
    log.report(job, "refused", 1)
    assert isinstance(log.move(job, 1, "eu"), Accepted)
    # Number 1 of this job was in eu already.
    assert log.current(job, 1).handover == 2


def test_two_parts_of_a_job_are_never_in_one_datacenter() -> None:
    log = GatesLog()
    job = log.create("eu", "us")
    log.report(job, "refused", 1)
    assert isinstance(log.move(job, 1, "eu"), Rejected)


def test_a_job_gets_the_tickets_of_all_its_datacenters_or_none() -> None:
    log = GatesLog()
    first = log.create("eu", "us", key="1")
    second = log.create("us", "ap", key="2")
    assert log.job(second).state == "queued"
    assert log.machine.tables.tickets == {"eu": first, "us": first}
    assert isinstance(log.apply(AssignParts(job=second, choices=choices("us", "ap"))), Rejected)
    assert isinstance(log.apply(AssignParts(job=second, choices=choices("ap"))), Rejected)
    log.must(QueueAgain(job=first, reason="us is not ready"))
    assert isinstance(log.apply(AssignParts(job=second, choices=choices("us", "ap"))), Accepted)


def test_a_job_of_one_part_needs_no_ticket() -> None:
    log = GatesLog()
    log.create("eu", "us", key="1")
    assert log.job(log.create("eu", key="2")).state == "preparing"


def test_a_job_that_queues_again_gives_everything_back() -> None:
    log = GatesLog()
    job = log.create("eu", "us")
    log.report(job, "ready", 0)
    log.must(QueueAgain(job=job, reason="us is not ready"))
    assert log.job(job).state == "queued"
    assert [part.current.cancel for part in log.job(job).parts if part.current] == ["cancelled"] * 2
    assert not log.machine.tables.tickets
    # A report that was under way does not bring it back.
    log.report(job, "ready", 1)
    assert isinstance(log.start(job), Rejected)


def test_only_a_started_part_is_lost_and_its_later_result_is_information() -> None:
    log = GatesLog()
    job = log.create("eu")
    lost = LosePart(job=job, part=0, handover=HandoverNumber(1), reason="gone", result="cut")
    assert isinstance(log.apply(lost), Rejected)
    log.report(job, "ready")
    log.start(job)
    log.must(lost)
    assert log.current(job).cancel
    log.report(job, "ended", result="late")
    tried = log.current(job)
    assert (tried.state, tried.result, tried.late_result, tried.settled) == (
        "lost",
        "cut",
        "late",
        True,
    )


def test_a_report_about_an_unknown_try_changes_nothing() -> None:
    log = GatesLog()
    job = log.create("eu")
    facts = PartFacts(
        job=job, datacenter="us", handover=HandoverNumber(1), state="ended", revision=9
    )
    assert not log.must(ReportParts(reports=(facts,))).changed


@pytest.mark.parametrize("state", ["refused", "cancelled", "ended"])
def test_nothing_follows_the_reported_end(state: str) -> None:
    log = GatesLog()
    job = log.started("eu")
    log.report(job, state)  # type: ignore[arg-type]
    assert not log.report(job, "ready").changed
    assert log.current(job).state == "ended"


def test_a_job_is_forgotten_where_it_is_settled() -> None:
    log = GatesLog()
    job = log.create("eu", "us")
    log.must(StopJob(job=job, kind="cancelled", reason="cancelled by ann"))
    log.must(FinishJob(job=job, status="cancelled", keep_ms=1000))
    log.report(job, "cancelled", 0)
    log.must(ForgetTries(forgotten=((job, "eu"), (job, "us"))))
    assert [part.tries[0].forgotten for part in log.job(job).parts] == [True, False]
    assert job in log.machine.tables.open
