"""The primary gate logs and counts what its committed commands changed, once each."""

from __future__ import annotations

from typing import Any, cast

from squall.cluster.assignments.commands import (
    AssignParts,
    GateCommand,
    LosePart,
    PartChoice,
    PartFacts,
    ReportParts,
    encode,
)
from squall.cluster.gate.command_log import GateCommandLog
from squall.cluster.protocol.command_outcomes import (
    Accepted,
    CommandOutcome,
    Rejected,
    encode_outcome,
)
from squall.cluster.protocol.gates.handover_keys import HandoverNumber
from squall.cluster.protocol.job_keys import JobId
from squall.runtime.log import Log, MemorySink
from squall.runtime.metrics import Registry
from tests.unit.runtime.lab.manual_clock import ManualClock

JOB = JobId("g7a1-5")


def logged(command: GateCommand, outcome: CommandOutcome | None = None) -> tuple[list[str], str]:
    sink, registry = MemorySink(), Registry()
    log = GateCommandLog(Log(sink, cast(Any, ManualClock())), registry)
    log.applied(encode(command), encode_outcome(outcome or Accepted(job=JOB)))
    return [each.event for each in sink.records], registry.exposition()


def test_every_move_of_a_part_is_one_line() -> None:
    choices = tuple(
        PartChoice(part=index, datacenter=name, handover=HandoverNumber(1))
        for index, name in enumerate(("eu", "us"))
    )
    names, text = logged(AssignParts(job=JOB, choices=choices))
    assert names == ["part_assigned", "part_assigned"]
    assert 'squall_job_events_total{event="part_assigned"} 2' in text


def test_refusals_and_losses_are_warned_of() -> None:
    facts = PartFacts(
        job=JOB,
        datacenter="eu",
        handover=HandoverNumber(1),
        state="refused",
        revision=1,
        reason="the queue is full",
    )
    assert logged(ReportParts(reports=(facts,)))[0] == ["part_refused"]
    lost = LosePart(job=JOB, part=0, handover=HandoverNumber(1), reason="eu is unreachable")
    assert logged(lost)[0] == ["part_lost"]


def test_a_command_that_changed_nothing_is_no_event() -> None:
    lost = LosePart(job=JOB, part=0, handover=HandoverNumber(1), reason="eu is unreachable")
    assert logged(lost, Rejected(text="it is over"))[0] == []
    assert logged(lost, Accepted(job=JOB, changed=False))[0] == []
