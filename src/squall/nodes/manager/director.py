"""The policy of a datacenter's primary: who runs what, what is lost, when a job is over.

Pure: no clock, no I/O. It reads the committed state (`Datacenter`), keeps what sessions
tell, and asks for effects. It must never act on anything that is not committed, and holds
nothing that a new primary could not learn again.

How to drive it, on the primary only, one new `Director` for each time of leading:

    director = Director(machine, timers, group=..., now=clock.now(), group_ms=ledger.group_ms())

    register:  outcome = director.register(request, held_facts)   # blobs pulled before
               a str refuses; a command is submitted, then `Registered` is answered
    session:   arrived = clock.now(); fence = await ledger.confirm()
               answer = director.session(request, arrived=arrived, now=..., group_ms=...,
                                         fence=fence, committed=ledger.applied)
    always:    after each of these calls (a session: if `stirred`), after every applied entry
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
from collections.abc import Sequence

from squall.engine.options import RunOptions
from squall.ledger.interface import Fence
from squall.nodes.datacenter.commands import (
    Accepted,
    AddWorker,
    Configure,
    DrainWorker,
    ForgetWorkers,
    LoseWorkers,
    Outcome,
    Purge,
    StopJob,
)
from squall.nodes.datacenter.machine import Datacenter
from squall.nodes.datacenter.records import JobRecord, RecordFacts
from squall.nodes.identity import AttemptKey, JobId
from squall.nodes.manager.director_effects import (
    ContextFacts,
    Effect,
    Push,
    ResultFacts,
    ValuesFacts,
)
from squall.nodes.manager.director_ends import check_end, check_workflows
from squall.nodes.manager.director_facts import MUTE_S, Facts
from squall.nodes.manager.director_limits import check_limits
from squall.nodes.manager.director_losses import (
    COALESCE_S,
    check_losses,
    flush_records,
    forget_records,
)
from squall.nodes.manager.director_phases import check_phase, return_unstarted
from squall.nodes.manager.director_pool import check_queue
from squall.nodes.manager.session_answers import OptionsOf, answer_session
from squall.nodes.messages import RegisterWorker, SessionAnswer, SessionRequest
from squall.nodes.timers import Timers

STOOD_STILL_S = 3.0
"""Between two ticks: its driver ticks every second. Longer, and this process did not run."""
SWEEP_S = 5.0
"""How often workers and old jobs are looked through."""
FORGET_WORKER_S = 3600.0
HELD_MAX = 500
"""Records in one registration, which is a command; sessions bring those beyond it."""
PURGE_MAX = 500


def stored_options(job: JobRecord) -> RunOptions:
    """The options of a job as the log has them: without secrets."""
    return job.submission.options


class Director:
    def __init__(
        self,
        machine: Datacenter,
        timers: Timers,
        *,
        group: str,
        now: float,
        group_ms: int,
        options_of: OptionsOf = stored_options,
    ) -> None:
        """`group` names a group that has no name yet. `options_of` adds the secrets."""
        self.facts = Facts(machine, timers, began=now, began_ms=group_ms)
        self.facts.now, self.facts.group_ms = now, group_ms
        self._group = group
        self._options_of = options_of
        self._sweep_at = now
        self._queue_at = now
        self._ticked_at = now
        self._judged = not machine.tables.active
        if machine.tables.active:
            self.facts.woke()
        machine.take_changed()
        self.facts.dirty = dict.fromkeys(machine.tables.jobs)

    # Workers.

    def register(self, request: RegisterWorker, held: Sequence[RecordFacts]) -> AddWorker | str:
        """The command that registers a boot, or the line that refuses it. `held` are the
        facts of `request.held`, whose blobs are durable here."""
        worker = self.facts.tables.workers.get(request.node)
        if worker is not None and request.boot in worker.former:
            return f"a newer boot of {request.node} is registered"
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
            proven=request.proven,
            held=tuple(held[:HELD_MAX]),
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
        """`fence` is what a round that began after `arrived` confirmed."""
        self._time(now, group_ms)
        worker = self.facts.tables.workers.get(request.node)
        known = worker is not None and worker.boot == request.boot
        if known and worker is not None and request.draining and not worker.draining:
            drain = DrainWorker(node=request.node, draining=True)
            self.facts.submit(f"drain {request.node}", drain)
        return answer_session(self.facts, request, arrived, fence, committed, self._options_of)

    @property
    def stirred(self) -> bool:
        """A session brought something to look at before the deadline that was told last.
        Most of the thousands in a second say what is known, and nobody need look."""
        facts = self.facts
        return bool(facts.effects or facts.dirty or facts.queue_dirty or facts.due_sooner)

    # Answers of the driver.

    def submitted(self, tag: str, outcome: Outcome | None, now: float | None = None) -> None:
        self._back(tag, now, ok=isinstance(outcome, Accepted))
        if tag == "records":
            forget_records(self.facts)

    def failed(self, tag: str, now: float | None = None) -> None:
        self._back(tag, now, ok=False)

    def cut_stored(self, tag: str, key: AttemptKey, facts: RecordFacts | None) -> None:
        self._back(tag, None, ok=True)
        self.facts.cuts[key] = facts
        self.facts.dirty[key.job] = None

    def record_arrived(self, tag: str, facts: RecordFacts) -> None:
        self._back(tag, None, ok=True)
        if not self.facts.records:
            self.facts.records_since = self.facts.now
        self.facts.records[facts.key] = facts

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
        self.facts.contexts[(job, workflow)] = ContextFacts(inline, blob, size)
        self.facts.dirty[job] = None

    def values_stored(self, tag: str, job: JobId, workflow: str, blob: str, size: int) -> None:
        self._back(tag, None, ok=True)
        self.facts.values[(job, workflow)] = ValuesFacts(blob, size)
        self.facts.queue_dirty = True

    def result_assembled(self, tag: str, job: JobId, result: ResultFacts) -> None:
        self._back(tag, None, ok=True)
        self.facts.results[job] = result
        self.facts.dirty[job] = None

    # Wishes of others.

    def progress(self, key: AttemptKey, actions: int) -> None:
        """Telemetry saw steps being executed."""
        if actions > self.facts.actions.get(key, 0):
            self.facts.actions[key] = actions
            self.facts.moved[key] = self.facts.now
            known = self.facts.progress.get(key.job)
            if known is not None:
                known.since = self.facts.now

    def abort(self, job: JobId, text: str) -> None:
        """A threshold says that the job must end."""
        command = StopJob(job=job, kind="aborted", reason=text)
        self.facts.submit(f"stop {job}", command)

    # Time.

    def tick(self, now: float, group_ms: int) -> list[Effect]:
        """Looks at all that changed or is due; what is to be done."""
        facts = self.facts
        self._time(now, group_ms)
        self._notice_own_lateness()
        for job in facts.machine.take_changed():
            facts.dirty[job] = None
        for tag in [tag for tag, at in facts.muted.items() if at <= now]:
            del facts.muted[tag]
            self._touch(tag)
        self._configure()
        flush_records(facts)
        facts.due_sooner = False
        due = [job for job, at in facts.due.items() if at <= now]
        for job in due:
            facts.dirty[job] = None
        while facts.dirty:
            jobs, facts.dirty = list(facts.dirty), {}
            for job in jobs:
                self._drive(job)
            facts.queue_dirty = True
        if facts.queue_dirty or now >= self._queue_at:
            self._queue_at = check_queue(facts)
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_S
            self._sweep()
        return facts.take_effects()

    def _notice_own_lateness(self) -> None:
        """Who did not run heard nobody. One that is late all the time judges all the same:
        between two pardons there is a tick that judges."""
        facts = self.facts
        if self._judged and facts.now - self._ticked_at > STOOD_STILL_S:
            facts.woke()
        self._ticked_at = facts.now
        self._judged = facts.now >= facts.judges_from

    def deadline(self) -> float:
        """When `tick` must be called at the latest."""
        facts = self.facts
        if facts.effects or facts.dirty or facts.queue_dirty:
            return facts.now
        times = [self._queue_at, self._sweep_at, *facts.due.values(), *facts.muted.values()]
        if facts.records and "records" not in facts.out and "records" not in facts.muted:
            times.append(facts.records_since + COALESCE_S)
        return min(times)

    def _time(self, now: float, group_ms: int) -> None:
        self.facts.now = max(self.facts.now, now)
        self.facts.group_ms = max(self.facts.group_ms, group_ms, self.facts.tables.group_ms)

    def _back(self, tag: str, now: float | None, *, ok: bool) -> None:
        facts = self.facts
        facts.now = max(facts.now, now or facts.now)
        facts.out.pop(tag, None)
        if not ok:
            facts.muted[tag] = facts.now + MUTE_S
        self._touch(tag)

    def _touch(self, tag: str) -> None:
        """The job of an errand is looked at again."""
        words = tag.split(" ")
        if len(words) > 1 and JobId(words[1]) in self.facts.tables.jobs:
            self.facts.dirty[JobId(words[1])] = None
        elif words[0] == "place":
            self.facts.queue_dirty = True

    def _configure(self) -> None:
        tables, timers = self.facts.tables, self.facts.timers
        lease_ms = round(timers.execution_lease_s * 1000)
        if not tables.group or tables.lease_ms != lease_ms:
            group = "" if tables.group else self._group
            self.facts.submit("configure", Configure(group=group, lease_ms=lease_ms))

    def _drive(self, name: JobId) -> None:
        facts = self.facts
        job = facts.tables.jobs.get(name)
        if job is None:
            facts.due.pop(name, None)
            return
        self._push(job)
        if job.over:
            facts.forget(job)
            return
        return_unstarted(facts, job)
        look_at = min(
            check_limits(facts, job),
            check_losses(facts, job),
            check_phase(facts, job),
            check_workflows(facts, job),
            check_end(facts, job),
        )
        if math.isfinite(look_at):
            facts.due[name] = max(look_at, facts.now + 0.01)
        else:
            facts.due.pop(name, None)

    def _push(self, job: JobRecord) -> None:
        """Whoever runs a part of a job that changed should ask at once."""
        if job.touched > self.facts.pushed.get(job.job, 0):
            self.facts.pushed[job.job] = job.touched
            nodes = {attempt.node for _, attempt in self.facts.tables.live_of(job.job)}
            for node in sorted(nodes):
                self.facts.ask(Push(node))
        if job.over:
            self.facts.pushed.pop(job.job, None)

    def _sweep(self) -> None:
        """Workers that are gone, jobs and keys whose time is over."""
        facts, tables, timers = self.facts, self.facts.tables, self.facts.timers
        facts.avoid = {who: at for who, at in facts.avoid.items() if at > facts.now}
        for key in [key for key in facts.actions if key.job not in tables.active]:
            # Told once more by a worker whose record nobody had freed yet.
            del facts.actions[key]
            facts.moved.pop(key, None)
        for node in [node for node in facts.present if node not in tables.workers]:
            del facts.present[node]
        gone: list[tuple[str, str]] = []
        old: list[str] = []
        for worker in tables.workers.values():
            presence = facts.present.get(worker.node)
            same = presence is not None and presence.boot == worker.boot
            heard = presence.heard if presence is not None and same else facts.at(worker.since_ms)
            silent_s = facts.now - max(heard, facts.began)
            judged = facts.now >= facts.judges_from
            if judged and not worker.gone and silent_s > timers.lost_after_s:
                gone.append((worker.node, worker.boot))
            if worker.gone and facts.group_ms - worker.since_ms > FORGET_WORKER_S * 1000:
                old.append(worker.node)
        if gone:
            facts.submit("gone", LoseWorkers(workers=tuple(sorted(gone))))
        if old:
            facts.submit("forget", ForgetWorkers(nodes=tuple(sorted(old))))
        jobs = [j.job for j in tables.jobs.values() if j.over and j.purge_ms <= facts.group_ms]
        keys = [k for k, e in tables.keys.items() if 0 < e.expires_ms <= facts.group_ms]
        if jobs or keys:
            keep_ms = round(timers.key_retention_s * 1000)
            purge = Purge(
                jobs=tuple(jobs[:PURGE_MAX]), keys=tuple(keys[:PURGE_MAX]), key_keep_ms=keep_ms
            )
            facts.submit("purge", purge)
