"""What a primary knows and the log does not: when each worker was heard, which leases were
granted, which effects are under way.

All of it is rebuilt from sessions after a change of primary, so nothing here may be needed
for safety across one. `VolatileState` holds one object per job, workflow, attempt and worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from squall.cluster.control.extensions import Extensions
from squall.cluster.control.health import Progress as WorkerProgress
from squall.cluster.datacenter.commands import Command, FailJob
from squall.cluster.datacenter.records import AttemptFacts, JobRecord, RecordFacts, WorkerRecord
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.datacenter.tables import Tables
from squall.cluster.group.primary.job_end import JobEndFacts
from squall.cluster.manager.primary.effects import (
    ContextFacts,
    DirectorEffect,
    Push,
    Submit,
    ValuesFacts,
)
from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.protocol.messages import AttemptStatus, WorkerLoad
from squall.cluster.protocol.timers import Timers
from squall.engine.core_protocol import ShareSpec
from squall.runtime.backoff import Backoff
from squall.stats.manifest import WorkflowManifest

SMALL_JOB_SHARES = 32
"""A job with at most this many shares is checked on every session that mentions it."""
CHECK_COST_S = 0.000_1
"""Ten times what one share costs to check. A large job is checked once per this many seconds times
its shares, so that checks take at most a tenth of a core however many sessions come in."""

LOADED_CPU = 0.8
LOADED_MEMORY = 0.9
LOADED_LAG_S = 0.1
"""A worker counts as loaded from any of these on. Steps instead of a scale: two workers that differ
by a few percent get work in the order of their free cores."""

ERROR_MAX = 500
"""Characters of an exception that a job's reason repeats."""

EFFECT_RETRY = Backoff(first_s=1.0, factor=1.0)
"""An effect fails when the disk, a worker or another member does not answer. One second is
the session interval: by then the cause may be gone, and a longer wait would delay a job."""


@dataclass(slots=True)
class VolatileAttempt:
    """What the primary knows of one attempt beyond the log. Dropped with its job, or once its
    final record is committed."""

    # Arrival of the last session request for which this primary granted a lease; never moves
    # back. `lost_after` counts from it (R5). None: this primary granted nothing. If the
    # attempt was also created after `began`, it never had a lease and makes no load.
    granted: float | None = None

    # Why the primary is declaring it lost, "" while it is not. Never cleared: a round either
    # grants an attempt or declares it lost (R5), so no session grants it any more.
    losing: str = ""

    # It is being returned to the queue because it never had a lease. It must not get one
    # while that command is on its way.
    withheld: bool = False

    # It ends so that another worker continues its share, because its own worker drains.
    hands_over: bool = False

    # The last cumulative record that telemetry brought. Only valid once `cut_stored` is set;
    # None then means that no report reached any manager. Set before the loss is submitted.
    cut: RecordFacts | None = None
    cut_stored: bool = False

    # Actions that it has executed, by its counters: never falls.
    actions: int = 0

    # When `actions` last grew; None until then.
    moved: float | None = None

    # The extensions that its preparation got; None: it asked for none. A new primary counts from
    # zero.
    extensions: Extensions | None = None

    @property
    def is_given_up(self) -> bool:
        """No session may grant it again."""
        return bool(self.losing) or self.withheld

    def grant(self, arrived: float) -> None:
        self.granted = arrived if self.granted is None else max(self.granted, arrived)


@dataclass(slots=True)
class VolatileWorkflow:
    # What its workflow exports; None until it is collected. Stays valid: it is collected
    # when no attempt of the workflow may run any more.
    context: ContextFacts | None = None

    # The blob of the values handed over to it; None while it is not stored, or if they fit inline.
    values: ValuesFacts | None = None

    # The shares of one placement, with `placed_ms` of that placement. Stale as soon as the
    # workflow has another `placed_ms` or number of shares.
    specs: tuple[int, list[ShareSpec]] | None = None


@dataclass(slots=True)
class VolatileJob:
    """What the primary knows of one job beyond the log. Dropped when the job is over."""

    # Only attempts that a session, a grant or a loss has touched are here.
    attempts: dict[AttemptKey, VolatileAttempt] = field(
        default_factory=dict[AttemptKey, VolatileAttempt]
    )
    workflows: dict[str, VolatileWorkflow] = field(default_factory=dict[str, VolatileWorkflow])

    # When any attempt of the job last executed something. None while no load is planned: a
    # job that waits for cores is not stuck.
    executed_at: float | None = None

    # (node, boot) of workers that refused the job, and until when they are not tried again.
    avoided: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])

    # The durable blobs of its end; None until they are stored.
    result: JobEndFacts | None = None

    # The phase to run next, and the record it was derived from. Valid only while the tables hold
    # that record.
    phase: tuple[JobRecord, list[WorkflowManifest]] | None = None

    # `JobRecord.touched` at the last push to its workers; never falls.
    pushed: int = 0

    def workflow(self, name: str) -> VolatileWorkflow:
        return self.workflows.setdefault(name, VolatileWorkflow())


@dataclass(slots=True)
class VolatileWorker:
    """One boot of a worker, by its last session. A later boot of the node replaces it."""

    boot: str

    # Arrival of the latest session request; never moves back.
    heard: float

    # What that request said about the attempts of this boot: all of them, not changes.
    statuses: dict[AttemptKey, AttemptStatus] = field(
        default_factory=dict[AttemptKey, AttemptStatus]
    )

    # How long its last exchange took, by that request.
    round_trip_s: float = 0.0

    # How busy its machine is, by that request; None: it did not say.
    load: WorkerLoad | None = None

    # The op up to which the log was applied when the answer granted everything that the
    # worker runs and ordered nothing else. While the log stays there and the worker repeats
    # itself, the next answer is the same.
    settled_op: int = -1


@dataclass
class VolatileState:
    """Everything the primary knows beyond the log, and the queues of jobs and records to
    process."""

    machine: Datacenter
    timers: Timers

    # When this member became primary, on its own clock and on the group's. A former primary
    # may have granted leases until then.
    began: float
    began_ms: int

    # The time of the current call; never moves back.
    now: float = 0.0
    group_ms: int = 0

    # When this member took over the jobs of another primary, or found that its own process
    # had stood still. Anything overdue then is due to its own delay, so it judges no worker before
    # `judges_from`.
    awake_since: float = -math.inf

    workers: dict[str, VolatileWorker] = field(default_factory=dict[str, VolatileWorker])
    jobs: dict[JobId, VolatileJob] = field(default_factory=dict[JobId, VolatileJob])

    # Final records that are durable and not yet in the log, waiting to be committed in one
    # command; and since when the oldest of them waits (infinity: none does).
    records: dict[AttemptKey, RecordFacts] = field(default_factory=dict[AttemptKey, RecordFacts])
    records_since: float = math.inf

    # The workers that stand still, as computed at `standing_at`.
    standing: dict[str, WorkerProgress] = field(default_factory=dict[str, WorkerProgress])
    standing_at: float = -math.inf

    # Tags of effects that must not be asked for: infinity while an effect is under way, else
    # the moment at which one that failed may be tried again.
    blocked: dict[str, float] = field(default_factory=dict[str, float])

    # Jobs to check in the next tick, and the moment at which each other job must be checked.
    # Kept apart from `jobs` because every tick scans them and most jobs of a long queue have
    # no such moment.
    dirty: dict[JobId, None] = field(default_factory=dict[JobId, None])
    due: dict[JobId, float] = field(default_factory=dict[JobId, float])

    # A session brought one of the moments in `due` nearer: `deadline` must be asked again.
    due_sooner: bool = False

    queue_dirty: bool = True

    # Positions in the queue at one (now, op), for clients that ask.
    queue_seen: tuple[tuple[float, int], dict[JobId, int]] | None = None

    # How many times longer than usual workers wait between two reports: overload control.
    pace: float = 1.0

    # Since when membership suspects this boot of a worker, on this member's clock; None: it does
    # not. Advice for placement only: leases and losses never read it (R5).
    suspected_since: Callable[[str, str], float | None] = lambda node, boot: None

    # When jobs began to wait without a usable worker; infinity if none waits.
    no_workers_since: float = math.inf

    # Called once for each job whose rules raised: the log line.
    on_broken: Callable[[JobId, Exception], None] = lambda job, error: None

    # The effects for the driver, and the nodes for which they already include a `Push`.
    effects: list[DirectorEffect] = field(default_factory=list[DirectorEffect])
    pushing: dict[str, None] = field(default_factory=dict[str, None])

    @property
    def tables(self) -> Tables:
        return self.machine.tables

    def job(self, job: JobId) -> VolatileJob:
        """Made at its first use."""
        found = self.jobs.get(job)
        if found is None:
            found = self.jobs[job] = VolatileJob()
        return found

    def attempt(self, key: AttemptKey) -> VolatileAttempt:
        """Made at its first use."""
        attempts = self.job(key.job).attempts
        found = attempts.get(key)
        if found is None:
            found = attempts[key] = VolatileAttempt()
        return found

    def known_attempt(self, key: AttemptKey) -> VolatileAttempt | None:
        job = self.jobs.get(key.job)
        return job.attempts.get(key) if job is not None else None

    def ask(self, effect: DirectorEffect) -> bool:
        """Asks for an effect unless it is under way or failed a moment ago."""
        if isinstance(effect, Push):
            if effect.node not in self.pushing:
                self.pushing[effect.node] = None
                self.effects.append(effect)
            return True
        if self.blocked.get(effect.tag, -math.inf) > self.now:
            return False
        self.blocked[effect.tag] = math.inf
        self.effects.append(effect)
        return True

    def submit(self, tag: str, command: Command) -> bool:
        return self.ask(Submit(tag, command))

    def fail_job(self, job: JobId, error: Exception) -> None:
        """The rules of a job raised. Fails that job by a command, so that it ends the same on
        every member, and the jobs beside it go on (R3)."""
        text = f"{type(error).__name__}: {error}"[:ERROR_MAX]
        if self.submit(f"fail {job}", FailJob(job=job, error=text)):
            self.on_broken(job, error)

    def is_under_way(self, tag: str) -> bool:
        return self.blocked.get(tag) == math.inf

    def returned(self, tag: str, *, ok: bool) -> None:
        """The driver is done with an effect."""
        if ok:
            self.blocked.pop(tag, None)
        else:
            self.blocked[tag] = self.now + EFFECT_RETRY.delay_s(1)

    def take_effects(self) -> list[DirectorEffect]:
        effects, self.effects, self.pushing = self.effects, [], {}
        return effects

    def touch(self, job: JobId) -> None:
        """A session changed something about a job: check it, a large one after a moment in
        which more sessions may come in."""
        shares = len(self.tables.shares_of.get(job, ()))
        if shares <= SMALL_JOB_SHARES:
            self.dirty[job] = None
            return
        at = self.now + shares * CHECK_COST_S
        if at < self.due.get(job, math.inf):
            self.due[job] = at
            self.due_sooner = True

    def executed(self, key: AttemptKey, actions: int) -> None:
        """A worker reports how many actions an attempt has executed."""
        known = self.known_attempt(key)
        if actions > (known.actions if known is not None else 0):
            attempt = known or self.attempt(key)
            attempt.actions, attempt.moved = actions, self.now
            job = self.jobs[key.job]
            if job.executed_at is not None:
                job.executed_at = self.now

    def may_place(self, job: JobId) -> bool:
        """False: another group made the job and may have placed it after the copy from which this
        group was made. Its workers stop when their leases end (R5)."""
        tables, timers = self.tables, self.timers
        if not tables.is_copied(job):
            return True
        longest_ms = max(
            tables.lease_ms, *(facts.lease_ms for _, facts in tables.attempts_of(job)), 0
        )
        lost_after_s = timers.lost_factor * longest_ms / 1000.0 + timers.lost_margin_s
        return self.now >= self.began + lost_after_s

    def at(self, group_ms: int) -> float:
        """A moment of the group's clock on this member's clock."""
        return self.now + (group_ms - self.group_ms) / 1000.0

    def is_present(self, worker: WorkerRecord) -> bool:
        """A session or the registration was heard lately: the worker may be given work."""
        return not worker.gone and self.now - self._heard(worker) <= self.silence_allowed_s

    def is_doubted(self, worker: WorkerRecord) -> bool:
        """Membership suspects it, and no session since then shows that it lives: it gets no new
        work. A session clears it, so datagrams that a firewall drops keep no worker idle."""
        since = self.suspected_since(worker.node, worker.boot)
        return since is not None and self._heard(worker) <= since

    def _heard(self, worker: WorkerRecord) -> float:
        """When its last session or registration arrived."""
        heard = self.at(worker.since_ms)
        known = self.workers.get(worker.node)
        if known is not None and known.boot == worker.boot:
            heard = max(heard, known.heard)
        return heard

    def is_suspect(self, worker: WorkerRecord) -> bool:
        """Membership suspects it, whatever its sessions say: others come first."""
        return self.suspected_since(worker.node, worker.boot) is not None

    def is_loaded(self, worker: WorkerRecord) -> bool:
        """Its machine has little left, by its last session: others come first."""
        known = self.workers.get(worker.node)
        load = known.load if known is not None and known.boot == worker.boot else None
        if load is None:
            return False
        full = (load.cpu or 0.0) >= LOADED_CPU or (load.memory or 0.0) >= LOADED_MEMORY
        return full or load.lag_s >= LOADED_LAG_S

    @property
    def judges_from(self) -> float:
        """Before this moment no worker is called silent or late."""
        return self.awake_since + self.silence_allowed_s

    def woke(self) -> None:
        self.awake_since = self.now
        for job in self.jobs.values():
            if job.executed_at is not None:
                job.executed_at = self.now

    @property
    def silence_allowed_s(self) -> float:
        """A worker that is silent for longer is not present."""
        # Two sessions may be lost and the third one late by a second.
        return 3.0 * self.interval_s() + 1.0

    def interval_s(self) -> float:
        """The session interval for the present number of workers."""
        wanted = len(self.tables.workers) / self.timers.session_workers_per_s
        return min(max(wanted, self.timers.session_interval_s), self.timers.session_interval_max_s)

    def telemetry_interval_s(self) -> float:
        return self.timers.telemetry_interval_s(len(self.tables.workers)) * self.pace

    def shares_on(self, attempt: AttemptFacts) -> int:
        """How many shares of its job are on the same core."""
        use = self.tables.slots.get((attempt.node, attempt.slot))
        return len(use.attempts) if use is not None else 1

    def status(self, key: AttemptKey, node: str, boot: str) -> AttemptStatus | None:
        """What this boot reported about an attempt in its last session."""
        worker = self.workers.get(node)
        if worker is None or worker.boot != boot:
            return None
        return worker.statuses.get(key)

    def forget_attempt(self, key: AttemptKey) -> None:
        job = self.jobs.get(key.job)
        if job is not None:
            job.attempts.pop(key, None)

    def forget(self, job: JobId) -> None:
        """Drops everything about a job that is over."""
        self.jobs.pop(job, None)
        self.due.pop(job, None)
        for key in [key for key in self.records if key.job == job]:
            del self.records[key]
