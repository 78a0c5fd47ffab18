"""The policy of a datacenter's primary: which worker runs what, what is lost, when a job is over.

Pure: no clock, no I/O. It reads the committed state (`Datacenter`), keeps what sessions
report in `VolatileState`, and asks for effects. It never acts on anything that is not
committed, and holds nothing that a new primary could not learn again.

How to drive it, on the primary only, one new `Director` for each time of leading:

    director = Director(machine, timers, group=..., now=clock.now(), group_ms=ledger.group_ms())

    register:  outcome = director.register(request, held_facts, group_ms)   # blobs pulled before
               a str refuses; a command is submitted, then `Registered` is answered
    session:   arrived = clock.now(); fence = await ledger.confirm()
               answer = director.session(request, arrived=arrived, now=..., group_ms=...,
                                         fence=fence, committed=ledger.applied)
    always:    after each of these calls (a session: if `has_work`), after every applied entry
               (`on_applied`) and at `deadline()`:
               for effect in director.tick(now, group_ms): do it

    effect             do                                     then call
    Submit             ledger.submit(encode(command))         submitted(tag, outcome or None)
    StoreCut           store telemetry's last record          cut_stored(tag, key, facts or None)
    TakeRecord         pull the blob, read it                 record_arrived(tag, facts)
    CollectContext     read ends, contexts.collect            context_collected(tag, job, wf, ...)
    StoreValues        contexts.handed_over, store            values_stored(tag, job, wf, ...)
    AssembleResult     results.assemble(job_parts(...))       result_assembled(tag, job, facts)
    Push               SessionPush to that worker             nothing
    any that failed                                           failed(tag): asked for again in 1 s

Commands of clients (`CreateJob`, `StopJob`, `AdjustLoad`, `ExtendJob`, `DrainWorker`) go to
the ledger directly; the next `tick` sees what they changed. `abort` asks for its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from squall.cluster.datacenter.commands import (
    Accepted,
    AddWorker,
    CommandOutcome,
    Configure,
    DrainWorker,
    ForgetWorkers,
    LoseWorkers,
    StopJob,
)
from squall.cluster.datacenter.records import JobRecord, RecordFacts, WorkerRecord
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.datacenter.worker_rules import FORMER_MAX
from squall.cluster.group.primary.job_end import JobEndFacts
from squall.cluster.ledger.interface import Fence
from squall.cluster.manager.director.core_pool import check_queue
from squall.cluster.manager.director.drains import check_drains
from squall.cluster.manager.director.endings import check_end, check_workflows
from squall.cluster.manager.director.loss_decisions import (
    COALESCE_S,
    check_losses,
    flush_records,
    forget_records,
)
from squall.cluster.manager.director.phases import check_phase, return_unstarted
from squall.cluster.manager.director.retention import PURGE_MAX, next_gated_purge, next_purge
from squall.cluster.manager.primary.effects import (
    ContextFacts,
    DirectorEffect,
    Push,
    ValuesFacts,
)
from squall.cluster.manager.primary.volatile_state import VolatileState
from squall.cluster.manager.sessions.answers import OptionsOf, answer_session
from squall.cluster.manager.sessions.time_limits import check_limits
from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.protocol.messages import RegisterWorker, SessionAnswer, SessionRequest
from squall.cluster.protocol.timers import Timers
from squall.engine.run_options import RunOptions

STOOD_STILL_S = 3.0
"""The driver ticks every second; after a longer gap between two ticks this process did not run."""
SWEEP_S = 5.0
"""How often silent workers and expired jobs are searched for."""
SWEEP_AGAIN_S = 0.5
FORGET_WORKER_S = 3600.0
"""How long `squall nodes` shows a worker that is gone."""
HELD_MAX = 500
"""Records in one registration, because a command is bounded; sessions bring the others."""
CLOCKS_DIFFER = 1.05
"""By how much the clock of a worker may run faster than that of the group (docs/guarantees.md)."""
NAME_FREE_AFTER = 3.0
"""Session intervals of silence after which another boot may take a worker's name without proof."""
DRAIN_SLACK_MS = 2000
"""A worker repeats how long it has left; the way of its requests takes time."""


def stored_options(job: JobRecord) -> RunOptions:
    """The options of a job as the log has them, without secrets."""
    return job.submission.options


class Director:
    """Decides for one period of leading. A member that leads again makes a new one."""

    def __init__(
        self,
        machine: Datacenter,
        timers: Timers,
        *,
        group: str,
        now: float,
        group_ms: int,
        options_of: OptionsOf = stored_options,
        on_broken: Callable[[JobId, Exception], None] = lambda job, error: None,
    ) -> None:
        """`group` becomes the id of a group that has none yet. `options_of` adds the secrets.
        `on_broken` is called with a job that fails because its rules raised."""
        self.state = VolatileState(
            machine, timers, began=now, began_ms=group_ms, on_broken=on_broken
        )
        self.state.now, self.state.group_ms = now, group_ms
        self._group = group
        self._options_of = options_of
        self._sweep_at = now
        self._queue_at = now
        self._ticked_at = now
        # Whether the last tick was allowed to judge workers, see `_notice_own_lateness`.
        self._judged = not machine.tables.active
        if machine.tables.active:
            self.state.woke()
        machine.take_changed()
        self.state.dirty = dict.fromkeys(machine.tables.jobs)

    # Workers.

    def register(
        self, request: RegisterWorker, held: Sequence[RecordFacts], group_ms: int
    ) -> AddWorker | str:
        """Returns the command that registers a boot, or the reason for refusing it. `held` are
        the facts of the records in `request.held`, whose blobs are durable on this member;
        `group_ms` is when the request arrived."""
        worker = self.state.tables.workers.get(request.node)
        if worker is not None and request.boot in worker.former:
            return f"a newer boot of {request.node} is registered already"
        if request.cores < 1:
            return f"worker {request.node} offers no core"
        return AddWorker(
            node=request.node,
            boot=request.boot,
            cores=request.cores,
            pid=request.pid,
            host=request.host,
            address=request.address,
            python=request.python,
            version=request.version,
            descriptors=request.descriptors,
            dead_boots=request.dead_boots[:FORMER_MAX],
            dead_ms=_dead_ms(request.former_ended_ago_s, group_ms),
            held=tuple(held[:HELD_MAX]),
        )

    def name_in_use(self, request: RegisterWorker, now: float) -> str:
        """Returns why a live worker has the name of this one, or "". Two live workers under one
        name would each take the other for its former boot (R6)."""
        worker = self.state.tables.workers.get(request.node)
        known = self.state.workers.get(request.node)
        if worker is None or known is None or worker.gone or worker.boot == request.boot:
            return ""
        if known.boot != worker.boot or worker.boot in request.dead_boots:
            return ""
        silent_s = now - known.heard
        if silent_s >= NAME_FREE_AFTER * self.state.interval_s():
            return ""
        return (
            f"another worker calls itself {request.node}, heard {max(silent_s, 0.0):.1f} s ago"
            f" on {worker.host or 'an unknown host'}, pid {worker.pid}: give each worker its own"
            " --name, or stop that one"
        )

    def session(
        self,
        request: SessionRequest,
        *,
        arrived: float,
        now: float,
        group_ms: int,
        fence: Fence,
        committed: int,
    ) -> SessionAnswer:
        """`fence` was confirmed by a round that began after `arrived` (R5)."""
        self._time(now, group_ms)
        worker = self.state.tables.workers.get(request.node)
        known = worker is not None and worker.boot == request.boot
        if known and worker is not None and request.draining:
            self._drain(worker, request.drain_left_s)
        return answer_session(self.state, request, arrived, fence, committed, self._options_of)

    def _drain(self, worker: WorkerRecord, left_s: float) -> None:
        """A worker says that it drains. An operator may have given it longer before."""
        left_ms = round(max(left_s, 0.0) * 1000)
        by_ms = self.state.group_ms + left_ms + DRAIN_SLACK_MS
        if not worker.draining or not 0 < worker.drain_by_ms <= by_ms:
            drain = DrainWorker(node=worker.node, draining=True, within_ms=left_ms)
            self.state.submit(f"drain {worker.node}", drain)

    @property
    def has_work(self) -> bool:
        """Whether a session gave reason to tick before the last `deadline`. Most of the thousands
        per second repeat what is known."""
        state = self.state
        return bool(state.effects or state.dirty or state.queue_dirty or state.due_sooner)

    # Outcomes that the driver reports.

    def submitted(self, tag: str, outcome: CommandOutcome | None, now: float | None = None) -> None:
        self._back(tag, now, ok=isinstance(outcome, Accepted))
        if tag == "records":
            forget_records(self.state)

    def failed(self, tag: str, now: float | None = None) -> None:
        self._back(tag, now, ok=False)

    def cut_stored(self, tag: str, key: AttemptKey, facts: RecordFacts | None) -> None:
        self._back(tag, None, ok=True)
        attempt = self.state.attempt(key)
        attempt.cut, attempt.cut_stored = facts, True
        self.state.dirty[key.job] = None

    def record_arrived(self, tag: str, facts: RecordFacts) -> None:
        self._back(tag, None, ok=True)
        if not self.state.records:
            self.state.records_since = self.state.now
        self.state.records[facts.key] = facts

    def context_collected(
        self,
        tag: str,
        job: JobId,
        workflow: str,
        *,
        inline: bytes = b"",
        blob: str = "",
        size: int = 0,
    ) -> None:
        self._back(tag, None, ok=True)
        self.state.job(job).workflow(workflow).context = ContextFacts(inline, blob, size)
        self.state.dirty[job] = None

    def values_stored(self, tag: str, job: JobId, workflow: str, blob: str, size: int) -> None:
        self._back(tag, None, ok=True)
        self.state.job(job).workflow(workflow).values = ValuesFacts(blob, size)
        self.state.queue_dirty = True

    def result_assembled(self, tag: str, job: JobId, result: JobEndFacts) -> None:
        self._back(tag, None, ok=True)
        self.state.job(job).result = result
        self.state.dirty[job] = None

    # Requests.

    def abort(self, job: JobId, text: str) -> None:
        """A threshold ends the job."""
        command = StopJob(job=job, kind="aborted", reason=text)
        self.state.submit(f"stop {job}", command)

    def fail_job(self, job: JobId, error: Exception) -> None:
        """An effect of the job raised what it never should."""
        self.state.fail_job(job, error)

    # Time.

    def tick(self, now: float, group_ms: int) -> list[DirectorEffect]:
        """Checks every job that changed or is due; returns the effects."""
        state = self.state
        self._time(now, group_ms)
        self._notice_own_lateness()
        for job in state.machine.take_changed():
            state.dirty[job] = None
        for tag in [tag for tag, at in state.blocked.items() if at <= now]:
            del state.blocked[tag]
            self._touch(tag)
        self._configure()
        flush_records(state)
        state.due_sooner = False
        due = [job for job, at in state.due.items() if at <= now]
        for job in due:
            state.dirty[job] = None
        while state.dirty:
            jobs, state.dirty = list(state.dirty), {}
            for job in jobs:
                self._drive_alone(job)
            state.queue_dirty = True
        if state.queue_dirty or now >= self._queue_at:
            self._queue_at = check_queue(state)
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            self._sweep()
        return state.take_effects()

    def _notice_own_lateness(self) -> None:
        """A process that did not run received no session, so it judges no worker for a while. A
        process that is always late must still judge: it postpones again only after a tick that
        judged."""
        state = self.state
        if self._judged and state.now - self._ticked_at > STOOD_STILL_S:
            state.woke()
        self._ticked_at = state.now
        self._judged = state.now >= state.judges_from

    def deadline(self) -> float:
        """The latest moment for the next `tick`."""
        state = self.state
        if state.effects or state.dirty or state.queue_dirty:
            return state.now
        times = [self._queue_at, self._sweep_at, *state.due.values(), *state.blocked.values()]
        if state.records and "records" not in state.blocked:
            times.append(state.records_since + COALESCE_S)
        return min(times)

    def _time(self, now: float, group_ms: int) -> None:
        self.state.now = max(self.state.now, now)
        self.state.group_ms = max(self.state.group_ms, group_ms, self.state.tables.group_ms)

    def _back(self, tag: str, now: float | None, *, ok: bool) -> None:
        state = self.state
        state.now = max(state.now, now or state.now)
        state.returned(tag, ok=ok)
        self._touch(tag)

    def _touch(self, tag: str) -> None:
        """Schedules a check of the job that an effect belongs to."""
        words = tag.split(" ")
        if len(words) > 1 and JobId(words[1]) in self.state.tables.jobs:
            self.state.dirty[JobId(words[1])] = None
        elif words[0] == "place":
            self.state.queue_dirty = True

    def _configure(self) -> None:
        tables, timers = self.state.tables, self.state.timers
        lease_ms = round(timers.execution_lease_s * 1000)
        if not tables.group or tables.lease_ms != lease_ms:
            group = "" if tables.group else self._group
            self.state.submit("configure", Configure(group=group, lease_ms=lease_ms))

    def _drive_alone(self, name: JobId) -> None:
        """Drives one job so that nothing in it can stop the others (R3)."""
        try:
            self._drive(name)
        except Exception as error:
            self.state.fail_job(name, error)
            # Its command may be lost with the primary's lead of the moment; it is asked for again.
            self.state.due[name] = self.state.now + 1.0

    def _drive(self, name: JobId) -> None:
        state = self.state
        job = state.tables.jobs.get(name)
        if job is None:
            state.due.pop(name, None)
            return
        self._push(job)
        if job.over:
            state.forget(job.job)
            return
        return_unstarted(state, job)
        check_at = min(
            check_limits(state, job),
            check_losses(state, job),
            check_drains(state, job),
            check_phase(state, job),
            check_workflows(state, job),
            check_end(state, job),
        )
        if math.isfinite(check_at):
            state.due[name] = max(check_at, state.now + 0.01)
        else:
            state.due.pop(name, None)

    def _push(self, job: JobRecord) -> None:
        """Asks the workers of a job that changed for a session at once."""
        known = self.state.job(job.job)
        if job.touched > known.pushed:
            known.pushed = job.touched
            nodes = {attempt.node for _, attempt in self.state.tables.live_of(job.job)}
            for node in sorted(nodes):
                self.state.ask(Push(node))

    def _sweep(self) -> None:
        """Forgets expired jobs and idempotency keys, and facts about former jobs and workers."""
        state, tables = self.state, self.state.tables
        for job in [job for job in state.jobs if job not in tables.active]:
            # A worker whose record was not freed yet named it after the job had ended.
            del state.jobs[job]
        for known in state.jobs.values():
            known.avoided = {who: at for who, at in known.avoided.items() if at > state.now}
        for node in [node for node in state.workers if node not in tables.workers]:
            del state.workers[node]
        self._declare_gone()
        purge = next_purge(tables, state.timers, state.group_ms)
        if purge is not None:
            state.submit("purge", purge)
            if max(len(purge.jobs), len(purge.keys)) == PURGE_MAX:
                # There may be more than one command holds.
                self._sweep_at = state.now + SWEEP_AGAIN_S
        forgotten = next_gated_purge(tables, state.group_ms)
        if forgotten is not None:
            state.submit("purge gated", forgotten)

    def _declare_gone(self) -> None:
        """Declares workers gone that were silent for so long that none of their attempts can still
        run (R5), and forgets those that have been gone for long."""
        state, tables = self.state, self.state.tables
        gone: list[tuple[str, str]] = []
        old: list[str] = []
        for worker in tables.workers.values():
            known = state.workers.get(worker.node)
            same = known is not None and known.boot == worker.boot
            heard = known.heard if known is not None and same else state.at(worker.since_ms)
            silent_s = state.now - max(heard, state.began)
            judged = state.now >= state.judges_from
            if judged and not worker.gone and silent_s > state.timers.lost_after_s:
                gone.append((worker.node, worker.boot))
            if worker.gone and state.group_ms - worker.since_ms > FORGET_WORKER_S * 1000:
                old.append(worker.node)
        if gone:
            state.submit("gone", LoseWorkers(workers=tuple(sorted(gone))))
        if old:
            state.submit("forget", ForgetWorkers(nodes=tuple(sorted(old))))


def _dead_ms(ended_ago_s: float | None, group_ms: int) -> int:
    """The latest moment of the group's clock at which a boot can have lived that ended so long
    before its successor registered; 0: unknown. The time on the way and a slower group clock make
    it later than it was, never earlier."""
    if ended_ago_s is None or not 0.0 <= ended_ago_s < math.inf:
        return 0
    return max(group_ms - int(1000.0 * ended_ago_s / CLOCKS_DIFFER), 1)
