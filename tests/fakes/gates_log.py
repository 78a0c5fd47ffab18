"""The gates' state machine with a log of entries, on a clock that a test moves."""

from __future__ import annotations

from squall.cluster.assignments.commands import (
    AssignParts,
    ConfigureGates,
    CreateGateJob,
    GateCommand,
    KnowDatacenters,
    PartChoice,
    PartFacts,
    ReportParts,
    StartParts,
    encode,
)
from squall.cluster.assignments.records import GateJobRecord, PartTry
from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.ledger.interface import Entry, GroupMs, OpNumber
from squall.cluster.protocol.command_outcomes import Accepted, CommandOutcome, decode_outcome
from squall.cluster.protocol.gates.gate_messages import PartState
from squall.cluster.protocol.gates.handover_keys import HandoverNumber
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.submission import Submission
from tests.fakes.datacenter import submission, workflow


class GatesLog:
    """Applies commands one after the other; `eu`, `us` and `ap` are known."""

    def __init__(self) -> None:
        self.machine = Assignments()
        self.op = 0
        self.group_ms = 1000
        self.entries: list[Entry] = []
        self.must(ConfigureGates(group="g1"))
        names = ("eu", "us", "ap")
        self.must(KnowDatacenters(datacenters=tuple((name, (f"{name}:1",)) for name in names)))

    def apply(self, command: GateCommand) -> CommandOutcome:
        self.op += 1
        entry = Entry(OpNumber(self.op), GroupMs(self.group_ms), 1, encode(command))
        self.entries.append(entry)
        return decode_outcome(self.machine.apply(entry))

    def must(self, command: GateCommand) -> Accepted:
        outcome = self.apply(command)
        assert isinstance(outcome, Accepted), outcome
        return outcome

    def create(
        self, *datacenters: str, key: str = "k", plan: Submission | None = None, timeout_ms: int = 0
    ) -> JobId:
        """A job with one part for each datacenter, assigned if nothing is in the way."""
        count = len(datacenters)
        return self.must(
            CreateGateJob(
                principal="ann",
                key=key,
                fingerprint="f",
                submission=plan or submission(workflow("A")),
                weights=(1.0 / count,) * count,
                timeout_ms=timeout_ms,
                choices=choices(*datacenters),
            )
        ).job

    def job(self, job: JobId) -> GateJobRecord:
        return self.machine.tables.jobs[job]

    def current(self, job: JobId, part: int = 0) -> PartTry:
        found = self.job(job).parts[part].current
        assert found is not None
        return found

    def report(
        self, job: JobId, state: PartState, part: int = 0, revision: int = 0, result: str = ""
    ) -> Accepted:
        """Reports the current try of a part, with the next revision."""
        tried = self.current(job, part)
        return self.must(
            ReportParts(
                reports=(
                    PartFacts(
                        job=job,
                        datacenter=tried.datacenter,
                        handover=tried.handover,
                        state=state,
                        revision=revision or tried.revision + 1,
                        result=result,
                        outcome="completed" if state == "ended" else None,
                    ),
                )
            )
        )

    def start(self, job: JobId) -> CommandOutcome:
        parts = self.job(job).parts
        handovers = tuple(part.current.handover for part in parts if part.current is not None)
        return self.apply(StartParts(job=job, handovers=handovers, run_ms=60_000))

    def started(self, *datacenters: str, key: str = "k") -> JobId:
        """A job that runs in these datacenters."""
        job = self.create(*datacenters, key=key)
        for part in range(len(datacenters)):
            self.report(job, "ready", part)
        assert isinstance(self.start(job), Accepted)
        return job

    def move(self, job: JobId, part: int, datacenter: str) -> CommandOutcome:
        number = self.machine.tables.next_handover(self.job(job), part, datacenter)
        choice = PartChoice(part=part, datacenter=datacenter, handover=number)
        return self.apply(AssignParts(job=job, choices=(choice,)))


def choices(*datacenters: str) -> tuple[PartChoice, ...]:
    return tuple(
        PartChoice(part=index, datacenter=name, handover=HandoverNumber(1))
        for index, name in enumerate(datacenters)
    )
