"""What a primary knows and the log does not: who was heard when, what was granted, what
is being done. All of it is rebuilt from sessions after a change of primary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from squall.control.extensions import Extensions
from squall.control.health import Progress as WorkerProgress
from squall.engine.protocol import ShareSpec
from squall.nodes.datacenter.commands import Command
from squall.nodes.datacenter.machine import Datacenter
from squall.nodes.datacenter.records import JobRecord, RecordFacts, WorkerRecord
from squall.nodes.datacenter.tables import Tables
from squall.nodes.identity import AttemptKey, JobId
from squall.nodes.manager.director_effects import (
    ContextFacts,
    Effect,
    Push,
    ResultFacts,
    Submit,
    ValuesFacts,
)
from squall.nodes.messages import AttemptStatus
from squall.nodes.timers import Timers
from squall.stats.manifest import WorkflowManifest

SMALL_JOB_SHARES = 32
LOOK_COST_S = 0.000_1
"""Per share: to look at a job takes about a tenth of it, so hearing takes a tenth of a core."""
MUTE_S = 1.0
"""How long an errand that failed is not tried again."""


@dataclass
class Presence:
    """A worker's boot as its last session told of it."""

    boot: str
    heard: float
    round_trip_s: float = 0.0
    statuses: dict[AttemptKey, AttemptStatus] = field(
        default_factory=dict[AttemptKey, AttemptStatus]
    )
    settled_op: int = -1
    """Where the log was when all that it runs was granted and nothing else was to be said."""


@dataclass
class Progress:
    """Executed actions of a job, and when they last grew."""

    actions: int
    since: float


@dataclass
class Facts:
    machine: Datacenter
    timers: Timers
    began: float
    """When this member became primary, on its own clock."""
    began_ms: int
    """The same on the group's clock."""
    now: float = 0.0
    group_ms: int = 0
    awake_since: float = -math.inf
    """When it took over jobs of others, or found that it had stood still: what is overdue
    then is its own lateness, until the workers had the time to tell."""
    present: dict[str, Presence] = field(default_factory=dict[str, Presence])
    granted: dict[AttemptKey, float] = field(default_factory=dict[AttemptKey, float])
    """Arrival of the last request that was granted for an attempt."""
    losing: dict[AttemptKey, str] = field(default_factory=dict[AttemptKey, str])
    """Never granted again by this primary, and why."""
    withheld: dict[AttemptKey, None] = field(default_factory=dict[AttemptKey, None])
    """Being returned because they were never granted: so they must not be granted now."""
    cuts: dict[AttemptKey, RecordFacts | None] = field(
        default_factory=dict[AttemptKey, RecordFacts | None]
    )
    records: dict[AttemptKey, RecordFacts] = field(default_factory=dict[AttemptKey, RecordFacts])
    """Final records that are durable and not yet in the log."""
    records_since: float = math.inf
    progress: dict[JobId, Progress] = field(default_factory=dict[JobId, Progress])
    actions: dict[AttemptKey, int] = field(default_factory=dict[AttemptKey, int])
    extensions: dict[AttemptKey, Extensions] = field(default_factory=dict[AttemptKey, Extensions])
    """Of preparations that asked for longer; a new primary begins to count anew."""
    moved: dict[AttemptKey, float] = field(default_factory=dict[AttemptKey, float])
    """When an attempt was last heard to have executed something new."""
    standing: dict[str, WorkerProgress] = field(default_factory=dict[str, WorkerProgress])
    """The workers that stand still, as of `standing_at`."""
    standing_at: float = -math.inf
    avoid: dict[tuple[JobId, str, str], float] = field(
        default_factory=dict[tuple[JobId, str, str], float]
    )
    """(job, node, boot) that refused: not to be tried before this moment."""
    contexts: dict[tuple[JobId, str], ContextFacts] = field(
        default_factory=dict[tuple[JobId, str], ContextFacts]
    )
    values: dict[tuple[JobId, str], ValuesFacts] = field(
        default_factory=dict[tuple[JobId, str], ValuesFacts]
    )
    results: dict[JobId, ResultFacts] = field(default_factory=dict[JobId, ResultFacts])
    specs: dict[tuple[JobId, str], tuple[int, list[ShareSpec]]] = field(
        default_factory=dict[tuple[JobId, str], tuple[int, list[ShareSpec]]]
    )
    """Of the present placement, by the moment of that placement."""
    phases: dict[JobId, tuple[JobRecord, list[WorkflowManifest]]] = field(
        default_factory=dict[JobId, tuple[JobRecord, list[WorkflowManifest]]]
    )
    """What each job wants to run next, as long as its record is the same."""
    out: dict[str, None] = field(default_factory=dict[str, None])
    """Tags of errands that are being done."""
    muted: dict[str, float] = field(default_factory=dict[str, float])
    pushed: dict[JobId, int] = field(default_factory=dict[JobId, int])
    due: dict[JobId, float] = field(default_factory=dict[JobId, float])
    """When a job must be looked at again."""
    due_sooner: bool = False
    """A session brought one of these moments nearer."""
    dirty: dict[JobId, None] = field(default_factory=dict[JobId, None])
    queue_dirty: bool = True
    queue_seen: tuple[tuple[float, int], dict[JobId, int]] | None = None
    """The places of all that wait, as of one moment: for people who ask."""
    pace: float = 1.0
    """How many times longer than usual workers wait between two reports."""
    no_workers_since: float = math.inf
    effects: list[Effect] = field(default_factory=list[Effect])
    pushing: dict[str, None] = field(default_factory=dict[str, None])
    """Nodes with a push among the effects."""

    @property
    def tables(self) -> Tables:
        return self.machine.tables

    def ask(self, effect: Effect) -> bool:
        """Asks for an errand unless it is out or failed a moment ago."""
        if isinstance(effect, Push):
            if effect.node not in self.pushing:
                self.pushing[effect.node] = None
                self.effects.append(effect)
            return True
        tag = effect.tag
        if tag in self.out or self.muted.get(tag, -math.inf) > self.now:
            return False
        self.muted.pop(tag, None)
        self.out[tag] = None
        self.effects.append(effect)
        return True

    def submit(self, tag: str, command: Command) -> bool:
        return self.ask(Submit(tag, command))

    def take_effects(self) -> list[Effect]:
        effects, self.effects, self.pushing = self.effects, [], {}
        return effects

    def touch(self, job: JobId) -> None:
        """Something was heard of a job: it is looked at again, a large one after a moment,
        in which more may be heard."""
        shares = len(self.tables.shares_of.get(job, ()))
        if shares <= SMALL_JOB_SHARES:
            self.dirty[job] = None
            return
        at = self.now + shares * LOOK_COST_S
        if at < self.due.get(job, math.inf):
            self.due[job] = at
            self.due_sooner = True

    def at(self, group_ms: int) -> float:
        """A moment of the group's clock on the own one."""
        return self.now + (group_ms - self.group_ms) / 1000.0

    def is_present(self, worker: WorkerRecord) -> bool:
        """Heard of lately, by a session or its registration: it may be given work."""
        if worker.gone:
            return False
        heard = self.at(worker.since_ms)
        presence = self.present.get(worker.node)
        if presence is not None and presence.boot == worker.boot:
            heard = max(heard, presence.heard)
        return self.now - heard <= self._patience_s()

    @property
    def judges_from(self) -> float:
        """Before this moment nobody is called silent or late."""
        return self.awake_since + self._patience_s()

    def woke(self) -> None:
        self.awake_since = self.now
        for progress in self.progress.values():
            progress.since = self.now

    def _patience_s(self) -> float:
        return 3.0 * self.interval_s() + 1.0

    def interval_s(self) -> float:
        """How often workers tell, by their number."""
        wanted = len(self.tables.workers) / self.timers.session_workers_per_s
        return min(max(wanted, self.timers.session_interval_s), self.timers.session_interval_max_s)

    def telemetry_interval_s(self) -> float:
        return self.timers.telemetry_interval_s(len(self.tables.workers)) * self.pace

    def status(self, key: AttemptKey, node: str, boot: str) -> AttemptStatus | None:
        presence = self.present.get(node)
        if presence is None or presence.boot != boot:
            return None
        return presence.statuses.get(key)

    def forget(self, job: JobRecord) -> None:
        """Drops everything volatile about a job that is over."""
        for table in (
            self.granted,
            self.losing,
            self.withheld,
            self.cuts,
            self.records,
            self.actions,
            self.moved,
            self.extensions,
        ):
            for key in [key for key in table if key.job == job.job]:
                del table[key]
        for pairs in (self.contexts, self.values, self.specs):
            for pair in [pair for pair in pairs if pair[0] == job.job]:
                del pairs[pair]
        for triple in [triple for triple in self.avoid if triple[0] == job.job]:
            del self.avoid[triple]
        self.results.pop(job.job, None)
        self.phases.pop(job.job, None)
        self.progress.pop(job.job, None)
        self.due.pop(job.job, None)
