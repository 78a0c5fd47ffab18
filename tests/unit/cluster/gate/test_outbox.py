"""The orders of a gate follow from the committed state alone."""

from __future__ import annotations

from typing import Any

from squall.cluster.assignments.commands import ForgetTries, LosePart, ReportParts
from squall.cluster.assignments.records import GateJobRecord, PartRecord
from squall.cluster.gate.outbox import PART_MARGIN_S, REMIND_S, GateOutbox, PartOrder
from squall.cluster.protocol.gates.gate_messages import (
    AcceptPart,
    AdjustPart,
    AnnounceGates,
    CancelPart,
    ForgetPart,
    GatesKnown,
    PartAnswer,
    StartPart,
)
from squall.cluster.protocol.gates.handover_keys import GateFence, HandoverNumber
from squall.cluster.protocol.job_commands import ExtendJob, FinishJob, StopJob
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.submission import Submission
from tests.fakes.gates_log import GatesLog

FENCE = GateFence("g1", 0, 3)


def outbox(log: GatesLog) -> GateOutbox:
    """With nothing left to announce."""
    made = GateOutbox(
        lambda: log.machine.tables, lambda: FENCE, lambda job, part: job.submission, lambda: ["h:1"]
    )
    for order in made.due(0.0, log.group_ms):
        if isinstance(order.message, AnnounceGates):
            assert made.answered(order, GatesKnown(), 0.0) is None
        else:
            made.failed(order, -100.0)
    return made


def due(made: GateOutbox, log: GatesLog, now: float = 0.0) -> list[PartOrder]:
    return made.due(now, log.group_ms)


def kinds(orders: list[PartOrder]) -> list[tuple[type[Any], str]]:
    return [(type(each.message), each.datacenter) for each in orders]


def test_gates_announce_themselves_to_every_datacenter() -> None:
    log = GatesLog()
    made = GateOutbox(
        lambda: log.machine.tables, lambda: FENCE, lambda job, part: job.submission, lambda: ["h:1"]
    )
    assert kinds(due(made, log)) == [(AnnounceGates, name) for name in ("eu", "us", "ap")]


def test_assigned_parts_are_offered_until_they_are_answered() -> None:
    log = GatesLog()
    log.create("eu", "us")
    made = outbox(log)
    first = due(made, log)
    assert kinds(first) == [(AcceptPart, "eu"), (AcceptPart, "us")]
    assert not due(made, log, 100.0), "they are under way"
    made.failed(first[0], 100.0)
    made.answered(first[1], PartAnswer(state="accepted"), 100.0)
    assert kinds(due(made, log, 200.0)) == [(AcceptPart, "eu")]


def test_a_job_whose_part_cannot_be_made_does_not_keep_the_others_back() -> None:
    log = GatesLog()
    bad = log.create("eu", key="bad")
    good = log.create("us", key="good")
    broken: list[JobId] = []

    def part_of(job: GateJobRecord, part: PartRecord) -> Submission:
        if job.job == bad:
            raise ZeroDivisionError("no weights")
        return job.submission

    made = GateOutbox(
        lambda: log.machine.tables,
        lambda: FENCE,
        part_of,
        list,
        lambda job, error: broken.append(job),
    )
    (order,) = due(made, log)
    assert isinstance(order.message, AcceptPart) and order.message.job == good
    assert broken == [bad]


def test_a_start_is_sent_only_after_it_is_committed() -> None:
    log = GatesLog()
    job = log.create("eu")
    made = outbox(log)
    log.report(job, "ready")
    assert not due(made, log)
    log.start(job)
    (order,) = due(made, log)
    assert isinstance(order.message, StartPart)
    left_s = (log.job(job).deadline_ms - log.group_ms) / 1000.0
    assert order.message.timeout_s == left_s + PART_MARGIN_S


def test_a_new_primary_finds_the_same_orders() -> None:
    log = GatesLog()
    log.started("eu")
    first = outbox(log)
    (order,) = due(first, log)
    first.answered(order, PartAnswer(state="started"), 0.0)
    assert not due(first, log)
    assert kinds(due(outbox(log), log)) == [(StartPart, "eu")]


def test_a_cancellation_is_repeated_until_the_end_is_reported() -> None:
    log = GatesLog()
    job = log.create("eu")
    log.must(StopJob(job=job, kind="cancelled", reason="cancelled by ann"))
    made = outbox(log)
    (order,) = due(made, log)
    assert isinstance(order.message, CancelPart)
    made.answered(order, PartAnswer(state="accepted"), 0.0)
    assert not due(made, log, REMIND_S - 0.1)
    assert kinds(due(made, log, REMIND_S)) == [(CancelPart, "eu")]
    log.report(job, "cancelled")
    assert not due(made, log, 100.0)


def test_a_lost_part_is_cancelled_also_after_the_end_of_its_job() -> None:
    log = GatesLog()
    job = log.started("eu")
    log.must(LosePart(job=job, part=0, handover=HandoverNumber(1), reason="gone"))
    log.must(FinishJob(job=job, status="partial", keep_ms=1000))
    assert kinds(due(outbox(log), log)) == [(CancelPart, "eu")]


def test_a_job_is_forgotten_after_its_end() -> None:
    log = GatesLog()
    job = log.started("eu")
    log.report(job, "ended", result="r")
    made = outbox(log)
    assert not due(made, log)
    log.must(FinishJob(job=job, status="completed", keep_ms=1000))
    (order,) = due(made, log)
    assert isinstance(order.message, ForgetPart)
    assert made.answered(order, PartAnswer(state="ended"), 0.0) is None
    (order,) = due(made, log, REMIND_S)
    command = made.answered(order, PartAnswer(state="unknown", closed=True), REMIND_S)
    assert command == ForgetTries(forgotten=((job, "eu"),))


def test_a_part_that_its_datacenter_does_not_know_ends() -> None:
    log = GatesLog()
    job = log.started("eu")
    made = outbox(log)
    (order,) = due(made, log)
    command = made.answered(order, PartAnswer(state="unknown"), 0.0)
    assert isinstance(command, ReportParts)
    log.must(command)
    assert (log.current(job).state, log.current(job).outcome) == ("ended", "failed")


def test_an_extension_reaches_the_parts() -> None:
    log = GatesLog()
    job = log.started("eu")
    made = outbox(log)
    for order in due(made, log):
        made.answered(order, PartAnswer(state="started"), 0.0)
    log.must(ExtendJob(job=job, by_ms=5000, cap_ms=8000))
    (order,) = due(made, log)
    assert isinstance(order.message, AdjustPart) and order.message.extension_s == 5.0
