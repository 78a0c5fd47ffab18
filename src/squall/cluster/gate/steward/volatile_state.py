"""What a primary gate knows and the log does not: which effects are under way, which jobs to check.

A new primary starts with an empty one. Nothing here may be needed for safety across a change of
primary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from squall.cluster.assignments.commands import GateCommand
from squall.cluster.assignments.records import GateJobRecord
from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.assignments.tables import AssignmentTables
from squall.cluster.gate.steward.effects import (
    MergeResults,
    StewardEffect,
    StoreLostPart,
    SubmitCommand,
)
from squall.cluster.gate.timers import GateTimers
from squall.cluster.group.primary.job_end import JobEndFacts
from squall.cluster.protocol.job_commands import FailJob
from squall.cluster.protocol.job_keys import JobId
from squall.runtime.backoff import Backoff

ERROR_MAX = 500
"""Characters of an exception that a job's reason repeats."""
EFFECT_RETRY = Backoff(first_s=1.0, factor=1.0)
"""An effect fails when the disk or another gate does not answer: by then the cause may be gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteQuestion:
    """Asks for a datacenter for some parts of a job."""

    job: GateJobRecord
    parts: tuple[int, ...]
    """The indexes of the parts that need one."""
    refused: Mapping[str, str]
    """The datacenters that refused a part of this job, and why."""
    taken: frozenset[str]
    """The datacenters of its other parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteAnswer:
    """A datacenter for each part that was asked for, or none and the reason."""

    datacenters: tuple[tuple[str, str], ...] = ()
    """(datacenter, why it was chosen), in the order of the question."""
    reason: str = ""


Route = Callable[[RouteQuestion], RouteAnswer]


@dataclass(slots=True)
class VolatileGateJob:
    """What the primary knows of one job beyond the log."""

    # Set once the results of all parts are merged and durable.
    merged: JobEndFacts | None = None
    # The gates' own records of lost parts: part -> (blob, size).
    lost: dict[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])
    # Why the job waits in the queue of the gates, for `why`; and since when nothing can run it.
    waits_for: str = ""
    unroutable_since: float = math.inf


@dataclass
class StewardState:
    """The state of one term as primary."""

    machine: Assignments
    timers: GateTimers
    route: Route
    is_unreachable: Callable[[str], bool]
    silent_s: Callable[[str], float]
    on_broken: Callable[[JobId, Exception], None]
    # When this member began to lead, on its own clock and on the group's.
    began: float
    began_ms: int
    # The time of the current call; never moves back.
    now: float
    group_ms: int
    jobs: dict[JobId, VolatileGateJob] = field(default_factory=dict[JobId, VolatileGateJob])
    # Tags of effects that must not be asked for: infinity while an effect is under way, else
    # the moment at which one that failed may be tried again.
    blocked: dict[str, float] = field(default_factory=dict[str, float])
    # Jobs to check in the next tick, and the moment at which each other job must be checked.
    dirty: dict[JobId, None] = field(default_factory=dict[JobId, None])
    due: dict[JobId, float] = field(default_factory=dict[JobId, float])
    effects: list[StewardEffect] = field(default_factory=list[StewardEffect])

    @property
    def tables(self) -> AssignmentTables:
        return self.machine.tables

    def job(self, job: JobId) -> VolatileGateJob:
        """Made at its first use."""
        found = self.jobs.get(job)
        if found is None:
            found = self.jobs[job] = VolatileGateJob()
        return found

    def ask(self, effect: StewardEffect) -> bool:
        """Asks for an effect unless it is under way or waits for its retry."""
        if self.blocked.get(effect.tag, -math.inf) > self.now:
            return False
        self.blocked[effect.tag] = math.inf
        self.effects.append(effect)
        return True

    def submit(self, tag: str, command: GateCommand) -> bool:
        return self.ask(SubmitCommand(tag, command))

    def fail_job(self, job: JobId, error: Exception) -> None:
        """Fails a job whose rules raised. It does so by a command, so that the job ends alike on
        every member, and the other jobs go on (R3)."""
        text = f"{type(error).__name__}: {error}"[:ERROR_MAX]
        if self.submit(f"fail {job}", FailJob(job=job, error=text)):
            self.on_broken(job, error)

    def returned(self, tag: str, *, ok: bool) -> None:
        """Notes that the driver has finished an effect."""
        if ok:
            self.blocked.pop(tag, None)
        else:
            self.blocked[tag] = self.now + EFFECT_RETRY.delay_s(1)

    def take_effects(self) -> list[StewardEffect]:
        effects, self.effects = self.effects, []
        return effects

    def at(self, group_ms: int) -> float:
        """A moment of the group's clock on this member's clock."""
        return self.now + (group_ms - self.group_ms) / 1000.0

    def forget(self, job: JobId) -> None:
        """Drops everything about a job that is over."""
        self.jobs.pop(job, None)
        self.due.pop(job, None)


def job_of(effect: StewardEffect) -> JobId | None:
    """The job that an effect belongs to, if it is one."""
    match effect:
        case SubmitCommand():
            return getattr(effect.command, "job", None)
        case StoreLostPart() | MergeResults():
            return effect.job
