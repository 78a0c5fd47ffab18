"""A primary gate without I/O: the state machine, its steward, and a clock that a test moves."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from squall.cluster.assignments.commands import CreateGateJob, GateCommand, PartFacts, ReportParts
from squall.cluster.assignments.commands import encode as encode_command
from squall.cluster.assignments.records import GateJobRecord, PartTry
from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.gate.steward.effects import (
    MergeResults,
    StewardEffect,
    StoreLostPart,
    SubmitCommand,
)
from squall.cluster.gate.steward.policy import Steward
from squall.cluster.gate.steward.volatile_state import RouteAnswer, RouteQuestion
from squall.cluster.gate.timers import GateTimers
from squall.cluster.group.primary.job_end import JobEndFacts
from squall.cluster.ledger.interface import Entry, GroupMs, OpNumber
from squall.cluster.protocol.command_outcomes import Accepted, CommandOutcome, decode_outcome
from squall.cluster.protocol.gates.gate_messages import PartState
from squall.cluster.protocol.gates.handover_keys import HandoverNumber
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import JobState
from squall.cluster.protocol.submission import Targets
from tests.fakes.datacenter import submission, workflow

STEP_S = 0.1
DATACENTERS = ("ap", "eu", "sa", "us")


class GateBench:
    """Applies what the steward asks for at once, and answers its questions for datacenters."""

    def __init__(self, timers: GateTimers | None = None) -> None:
        self.timers = timers or GateTimers()
        self.machine = Assignments()
        self.now = 100.0
        self.ms = 1_000
        self.op = 0
        # The datacenters that cannot be reached, and those that take no part.
        self.unreachable: set[str] = set()
        self.closed: set[str] = set()
        self.heard_at: dict[str, float] = {}
        self.asked: list[StewardEffect] = []
        self.broken: list[JobId] = []
        self.route: Callable[[RouteQuestion], RouteAnswer] = self.named
        self.steward = self.lead()
        self.run(0.5)

    def lead(self) -> Steward:
        """Another primary begins: it knows only what is committed."""
        self.steward = Steward(
            self.machine,
            self.timers,
            group="g7a1",
            datacenters={name: (f"{name}:7400",) for name in DATACENTERS},
            now=self.now,
            group_ms=self.ms,
            route=lambda question: self.route(question),
            is_unreachable=lambda name: name in self.unreachable,
            silent_s=lambda name: self.now - self.heard_at.get(name, self.now),
            on_broken=lambda job, error: self.broken.append(job),
        )
        return self.steward

    def named(self, question: RouteQuestion) -> RouteAnswer:
        """The datacenters that the job names; one that refused or is closed is replaced by any
        other if the job allows that."""
        targets = question.job.submission.targets or Targets()
        found: list[tuple[str, str]] = []
        taken = set(question.taken)
        for index in question.parts:
            name = targets.weights[index][0]
            if name in question.refused or name in self.closed:
                others = [
                    each
                    for each in DATACENTERS
                    if each not in (*taken, *self.closed, *question.refused)
                    and targets.fallback is True
                ]
                name = others[0] if others else name
            if name in self.closed:
                return RouteAnswer(reason=f"{name} cannot run its part")
            taken.add(name)
            found.append((name, "named by the job"))
        return RouteAnswer(datacenters=tuple(found))

    # What happens.

    def apply(self, command: GateCommand) -> CommandOutcome:
        self.op += 1
        entry = Entry(OpNumber(self.op), GroupMs(self.ms), 1, encode_command(command))
        return decode_outcome(self.machine.apply(entry))

    def submit(
        self,
        *weights: tuple[str, float],
        key: str = "k",
        timeout_s: float = 0.0,
        targets: Targets | None = None,
    ) -> JobId:
        load = submission(workflow("Shop", vus=8, duration_s=10.0))
        wanted = targets or Targets(weights=weights)
        load = msgspec.structs.replace(load, targets=wanted)
        outcome = self.apply(
            CreateGateJob(
                principal="ann",
                key=key,
                fingerprint=key,
                submission=load,
                leader="g1",
                timeout_ms=round(timeout_s * 1000),
                weights=tuple(weight for _, weight in weights),
            )
        )
        assert isinstance(outcome, Accepted), outcome
        return outcome.job

    def report(
        self,
        job: JobId,
        datacenter: str,
        state: PartState,
        *,
        outcome: JobState | None = None,
        result: str = "",
        reason: str = "",
        is_final: bool = False,
    ) -> None:
        """The datacenter reports about its latest try."""
        tries = [t for p in self.job(job).parts for t in p.tries if t.datacenter == datacenter]
        tried = tries[-1]
        facts = PartFacts(
            job=job,
            datacenter=datacenter,
            handover=HandoverNumber(tried.handover),
            state=state,
            revision=tried.revision + 1,
            outcome=outcome,
            result=result,
            result_size=len(result),
            reason=reason,
            is_final=is_final,
        )
        self.apply(ReportParts(reports=(facts,)))
        self.run(STEP_S)

    def ready(self, job: JobId, *datacenters: str) -> None:
        for name in datacenters:
            self.report(job, name, "accepted")
            self.report(job, name, "ready")

    def ended(self, job: JobId, *datacenters: str, outcome: JobState = "completed") -> None:
        for name in datacenters:
            self.report(job, name, "ended", outcome=outcome, result=f"result of {name}")

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until - 1e-9:
            self._tick()
            self.now += STEP_S
            self.ms += round(STEP_S * 1000)
        self._tick()

    def _tick(self) -> None:
        reached = [name for name in DATACENTERS if name not in self.unreachable]
        self.heard_at.update(dict.fromkeys(reached, self.now))
        for _ in range(10):
            effects = self.steward.tick(self.now, self.ms)
            if not effects:
                return
            for effect in effects:
                self._do(effect)

    def _do(self, effect: StewardEffect) -> None:
        self.asked.append(effect)
        match effect:
            case SubmitCommand():
                self.steward.submitted(effect.tag, self.apply(effect.command))
            case StoreLostPart():
                self.steward.lost_part_stored(effect.tag, effect.job, effect.part, "cut", 3)
            case MergeResults():
                facts = JobEndFacts(result="merged", size=6, history="h", history_size=1)
                self.steward.results_merged(effect.tag, effect.job, facts)

    # What is known.

    def job(self, job: JobId) -> GateJobRecord:
        return self.machine.tables.jobs[job]

    def current(self, job: JobId, index: int = 0) -> PartTry:
        tried = self.job(job).parts[index].current
        assert tried is not None
        return tried

    def where(self, job: JobId) -> list[str]:
        """The datacenters of its parts now; "": none."""
        parts = self.job(job).parts
        return [p.current.datacenter if p.current and p.current.waits else "" for p in parts]
