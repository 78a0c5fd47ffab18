"""The reports of a datacenter follow from its committed state alone."""

from __future__ import annotations

from squall.cluster.datacenter.commands import (
    Accepted,
    AcceptJob,
    CancelHeld,
    Configure,
    DisownHeld,
    KnowGates,
    MarkDelivered,
    StartHeld,
)
from squall.cluster.manager.gates.report_outbox import ReportOutbox
from squall.cluster.protocol.gates.gate_messages import PartStored
from squall.cluster.protocol.gates.handover_keys import GateFence, HandoverNumber
from squall.cluster.protocol.job_keys import JobId
from tests.fakes.datacenter import Log, creation, submission, workflow

JOB = JobId("g1-7")
FENCE = GateFence("g1", 0, 1)
ONE = HandoverNumber(1)


def log(refusal: str = "") -> Log:
    made = Log()
    for command in (
        Configure(group="dc", lease_ms=5000),
        KnowGates(group="g1", addresses=("h:1",)),
        AcceptJob(
            gate_job=JOB,
            datacenter="eu",
            handover=ONE,
            fence=FENCE,
            create=creation(submission(workflow("A"))),
            refusal=refusal,
        ),
    ):
        assert isinstance(made.apply(command), Accepted)
    return made


def outbox(made: Log) -> ReportOutbox:
    return ReportOutbox(lambda: made.machine.tables, "eu")


def test_a_change_is_reported_until_a_gate_answers() -> None:
    made = log()
    box = outbox(made)
    (order,) = box.due(0.0)
    assert (order.report.state, order.report.datacenter, order.gates.group) == (
        "accepted",
        "eu",
        "g1",
    )
    assert not box.due(100.0), "it is under way"
    box.failed(order, 100.0)
    (order,) = box.due(200.0)
    assert box.answered(order, PartStored(), 200.0) is None
    assert not box.due(1e9)


def test_the_end_is_reported_until_it_is_marked_as_delivered() -> None:
    made = log("the queue is full")
    box = outbox(made)
    (order,) = box.due(0.0)
    command = box.answered(order, PartStored(), 0.0)
    assert command == MarkDelivered(gate_job=JOB, handover=ONE, revision=1, group="g1")
    # The command was lost with the primary of the moment.
    assert [each.tag for each in box.due(5.0)] == [order.tag]
    assert isinstance(made.apply(command), Accepted)
    assert not outbox(made).due(0.0)


def test_a_new_primary_reports_again_what_is_not_delivered() -> None:
    made = log()
    first = outbox(made)
    (order,) = first.due(0.0)
    first.answered(order, PartStored(), 0.0)
    assert [each.tag for each in outbox(made).due(0.0)] == [order.tag]


def test_a_started_part_asks_whether_the_gates_know_it() -> None:
    made = log()
    made.apply(StartHeld(gate_job=JOB, handover=ONE, fence=FENCE))
    box = outbox(made)
    (order,) = box.due(0.0)
    assert order.report.state == "started"
    command = box.answered(order, PartStored(known=False), 0.0)
    assert isinstance(command, DisownHeld)
    assert isinstance(made.apply(command), Accepted)
    assert not box.due(100.0)


def test_gates_that_order_something_about_a_delivered_part_are_told_again() -> None:
    made = log("the queue is full")
    box = outbox(made)
    made.apply(MarkDelivered(gate_job=JOB, handover=ONE, revision=1, group="g1"))
    assert not box.due(0.0)
    made.apply(CancelHeld(gate_job=JOB, handover=ONE, fence=FENCE))
    box.asked_again(JOB, 1)
    (order,) = box.due(0.0)
    assert order.report.state == "refused"
    box.answered(order, PartStored(), 0.0)
    assert not box.due(100.0)


def test_recovered_gates_get_what_the_former_ones_have_answered() -> None:
    made = log()
    box = outbox(made)
    (order,) = box.due(0.0)
    box.answered(order, PartStored(), 0.0)
    made.apply(KnowGates(group="g2", former=("g1",), addresses=("h:2",)))
    (order,) = box.due(0.0)
    assert order.gates.group == "g2"
