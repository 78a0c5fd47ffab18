"""The answer to a worker's session: what it should do, against what it says it does.

The driver has waited for a heartbeat round that began after the request arrived. A live
attempt is granted its lease unless this primary is declaring it lost or its time to stop
is over. Whatever the log does not know as live is stopped or freed by name; absence never
means stop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from squall.api.errors import SquallError
from squall.engine.options import RunOptions
from squall.engine.protocol import ShareSpec
from squall.ledger.interface import Fence
from squall.nodes.datacenter.commands import StopJob
from squall.nodes.datacenter.contexts import Context, decode_context, handed_over
from squall.nodes.datacenter.records import AttemptFacts, JobRecord, WorkerRecord, WorkflowRecord
from squall.nodes.identity import AttemptKey
from squall.nodes.manager.director_effects import TakeRecord
from squall.nodes.manager.director_extensions import answered
from squall.nodes.manager.director_facts import Facts, Presence
from squall.nodes.manager.placement import profile_of, specs_of
from squall.nodes.manager.session_stops import grants_end_ms, stop_of
from squall.nodes.messages import (
    AdjustOrder,
    AttemptStatus,
    GoOrder,
    JobBrief,
    MoreTime,
    Preparation,
    SessionAnswer,
    SessionRequest,
    SpecValues,
    StopOrder,
)

PREPARATIONS_MAX = 48
"""In one answer, which is a control message; the next answer carries the rest."""

OptionsOf = Callable[[JobRecord], RunOptions]


class _Answer:
    """The lists of an answer while it is made."""

    def __init__(self) -> None:
        self.granted: list[AttemptKey] = []
        self.jobs: dict[str, JobBrief] = {}
        self.prepare: list[Preparation] = []
        self.go: list[GoOrder] = []
        self.stop: list[StopOrder] = []
        self.adjust: dict[tuple[str, str], AdjustOrder] = {}
        self.free: list[AttemptKey] = []
        self.more_time: list[MoreTime] = []

    def only_grants(self, wanted: Collection[AttemptKey]) -> bool:
        """Of exactly these."""
        orders = (self.prepare, self.go, self.stop, self.adjust, self.free, self.more_time)
        return set(self.granted) == set(wanted) and not any(orders)


def answer_session(
    facts: Facts,
    request: SessionRequest,
    arrived: float,
    fence: Fence,
    committed: int,
    options_of: OptionsOf,
) -> SessionAnswer:
    tables = facts.tables
    worker = tables.workers.get(request.node)
    registered = worker is not None and worker.boot == request.boot and not worker.gone
    drained = False
    if worker is not None and registered:
        presence, goes_on = _hear(facts, request, arrived)
        if (
            goes_on
            and presence.settled_op == tables.op
            and _granted_again(facts, presence, arrived)
        ):
            return SessionAnswer(
                epoch=fence.epoch,
                view=fence.view,
                committed=committed,
                sequence=request.sequence,
                lease_s=tables.lease_ms / 1000.0,
                granted=list(presence.statuses),
                interval_s=facts.interval_s(),
                telemetry_interval_s=facts.telemetry_interval_s(),
            )
        answer = _Answer()
        _live(facts, worker, request, arrived, answer, options_of)
        _rest(facts, request, answer)
        drained = worker.draining and not tables.live.get(worker.node) and not request.attempts
        if goes_on and not worker.draining and answer.only_grants(presence.statuses):
            presence.settled_op = tables.op
    else:
        answer = _Answer()
    return SessionAnswer(
        epoch=fence.epoch,
        view=fence.view,
        committed=committed,
        sequence=request.sequence,
        register=not registered,
        lease_s=tables.lease_ms / 1000.0,
        granted=answer.granted,
        jobs=list(answer.jobs.values()),
        prepare=answer.prepare,
        go=answer.go,
        stop=answer.stop,
        adjust=list(answer.adjust.values()),
        free=answer.free,
        more_time=answer.more_time,
        interval_s=facts.interval_s(),
        telemetry_interval_s=facts.telemetry_interval_s(),
        drained=drained,
    )


def _hear(facts: Facts, request: SessionRequest, arrived: float) -> tuple[Presence, bool]:
    """Keeps what the worker says; jobs are looked at again where a phase changed. And whether
    it runs what it ran before, as before: thousands say so each second."""
    before = facts.present.get(request.node)
    statuses = {status.key: status for status in request.attempts}
    if before is None or before.boot != request.boot:
        facts.queue_dirty = True
        before = facts.present[request.node] = Presence(request.boot, arrived)
    goes_on = len(statuses) == len(before.statuses)
    for key, status in statuses.items():
        known = before.statuses.get(key)
        if known is None or known.phase != status.phase:
            facts.touch(key.job)
            goes_on = False
        elif status.phase != "running" or status.adjust_seq != known.adjust_seq:
            goes_on = False
        if status.counters.actions > facts.actions.get(key, 0):
            facts.actions[key] = status.counters.actions
            facts.moved[key] = facts.now
            progress = facts.progress.get(key.job)
            if progress is not None:
                progress.since = facts.now
    before.heard = max(arrived, before.heard)
    before.round_trip_s = request.round_trip_s
    before.statuses = statuses
    return before, goes_on


def _granted_again(facts: Facts, presence: Presence, arrived: float) -> bool:
    """Everything that it runs, unless this primary has begun to give something of it up."""
    for key in presence.statuses:
        if key in facts.losing or key in facts.withheld:
            return False
    for key in presence.statuses:
        facts.granted[key] = max(facts.granted.get(key, -math.inf), arrived)
    return True


def _live(
    facts: Facts,
    worker: WorkerRecord,
    request: SessionRequest,
    arrived: float,
    answer: _Answer,
    options_of: OptionsOf,
) -> None:
    """What the log wants this boot to run."""
    statuses = facts.present[worker.node].statuses
    tables = facts.tables
    for key in sorted(tables.live.get(worker.node, ())):
        attempt = tables.attempt(key)
        job = tables.jobs.get(key.job)
        workflow = job.workflow(key.workflow) if job is not None else None
        if attempt is None or job is None or workflow is None or attempt.boot != request.boot:
            continue
        if key in facts.withheld:
            continue
        status = statuses.get(key)
        stop = stop_of(facts, job, workflow)
        ends_ms = math.inf if stop is None else grants_end_ms(facts, job, workflow)
        if key not in facts.losing and facts.group_ms < ends_ms:
            facts.granted[key] = max(facts.granted.get(key, -math.inf), arrived)
            answer.granted.append(key)
        if status is not None and status.phase == "ended":
            _take(facts, request.node, status)
            continue
        if stop is not None:
            answer.stop.append(StopOrder(key=key, now=stop.now, why=stop.why))
            continue
        _wanted(facts, job, workflow, key, attempt, status, answer, options_of)


def _wanted(
    facts: Facts,
    job: JobRecord,
    workflow: WorkflowRecord,
    key: AttemptKey,
    attempt: AttemptFacts,
    status: AttemptStatus | None,
    answer: _Answer,
    options_of: OptionsOf,
) -> None:
    """Prepare what is not prepared, start what is ready, adjust what lags behind."""
    may_prepare = not workflow.running or attempt.refill
    if status is None:
        if may_prepare and len(answer.prepare) < PREPARATIONS_MAX:
            if job.job not in answer.jobs:
                brief = _brief(facts, job, options_of)
                if brief is None:
                    return
                answer.jobs[job.job] = brief
            answer.prepare.append(_preparation(facts, job, workflow, key, attempt))
        elif not may_prepare:
            # It was ready once; a boot that no longer has it says so when it is named.
            answer.stop.append(StopOrder(key=key, now=True, why="not known to its worker"))
        return
    if status.phase == "preparing" and status.wants_more_s and not workflow.running:
        answer.more_time.append(answered(facts, job, key, attempt, status))
    if workflow.running and status.phase == "ready":
        answer.go.append(
            GoOrder(
                key=key,
                elapsed_s=_go_elapsed_s(facts, job, workflow, attempt),
                run_elapsed_s=(facts.group_ms - job.started_ms) / 1000.0,
            )
        )
    wish = workflow.adjustment
    if wish.adjust_seq > status.adjust_seq and status.phase in ("preparing", "ready", "running"):
        answer.adjust[(job.job, workflow.name)] = AdjustOrder(
            job=job.job,
            workflow=workflow.name,
            adjust_seq=wish.adjust_seq,
            paused=wish.paused,
            rate_per_s=wish.rate_per_s,
            vus=wish.vus,
        )


def _rest(facts: Facts, request: SessionRequest, answer: _Answer) -> None:
    """What the worker has and the log does not want to run."""
    live = facts.tables.live.get(request.node, {})
    for status in request.attempts:
        key = status.key
        if key in live:
            continue
        job = facts.tables.jobs.get(key.job)
        attempt = facts.tables.attempt(key)
        active = status.phase in ("preparing", "ready", "running")
        if job is None or job.over or attempt is None or attempt.state == "returned":
            if active:
                why = "superseded" if attempt is not None else "of no job that runs here"
                answer.stop.append(StopOrder(key=key, now=True, drop=True, why=why))
            else:
                answer.free.append(key)
        elif attempt.state == "lost" and not (attempt.facts and attempt.facts.complete):
            if active:
                answer.stop.append(StopOrder(key=key, now=True, why="lost"))
            elif status.phase == "ended" and status.record:
                _take(facts, request.node, status)
            else:
                answer.free.append(key)
        elif active:
            answer.stop.append(StopOrder(key=key, now=True, drop=True, why="ended"))
        else:
            answer.free.append(key)


def _take(facts: Facts, node: str, status: AttemptStatus) -> None:
    if status.record and status.key not in facts.records:
        tag = f"record {status.key}"
        facts.ask(TakeRecord(tag, status.key, node, status.record, status.record_size))


def _go_elapsed_s(
    facts: Facts, job: JobRecord, workflow: WorkflowRecord, attempt: AttemptFacts
) -> float:
    if attempt.refill and profile_of(job, workflow.name).model == "once":
        # Set-up work that is done again has its whole time before it.
        return 0.0
    # Below zero before the start: who hears of it in time misses nothing of the plan.
    return (facts.group_ms - workflow.started_ms) / 1000.0


def _preparation(
    facts: Facts,
    job: JobRecord,
    workflow: WorkflowRecord,
    key: AttemptKey,
    attempt: AttemptFacts,
) -> Preparation:
    profile = profile_of(job, workflow.name)
    return Preparation(
        key=key,
        spec=specs(facts, job, workflow)[key.share],
        slot=attempt.slot,
        process=attempt.process,
        values_blob=workflow.values_blob,
        values_size=workflow.values_size,
        iterations_done=attempt.iterations_done,
        timeout_s=profile.duration_s + profile.grace_s + facts.timers.stop_grace_s,
        ready_within_s=0.0 if attempt.refill else facts.timers.prepare_timeout_s,
    )


def specs(facts: Facts, job: JobRecord, workflow: WorkflowRecord) -> list[ShareSpec]:
    """The shares of the present placement, made once per placement."""
    slot = (job.job, workflow.name)
    known = facts.specs.get(slot)
    if known is None or known[0] != workflow.placed_ms or len(known[1]) != workflow.shares:
        values = SpecValues() if workflow.values_blob else inline_values(job, workflow.name)
        known = facts.specs[slot] = (workflow.placed_ms, specs_of(job, workflow, values))
    return known[1]


def inline_values(job: JobRecord, name: str) -> SpecValues:
    """What is handed over, from the contexts that are in the log itself."""
    contexts: dict[str, Context] = {
        each.name: decode_context(each.context) for each in job.workflows if each.over
    }
    manifest = job.submission.manifest
    return handed_over(manifest, manifest.workflow(name), contexts)


def _brief(facts: Facts, job: JobRecord, options_of: OptionsOf) -> JobBrief | None:
    """None for a job whose secrets cannot be read: it fails."""
    submission = job.submission
    try:
        options = options_of(job)
    except SquallError as error:
        stop = StopJob(job=job.job, kind="failed", reason=str(error), exit_code=1, now=True)
        facts.submit(f"stop {job.job}", stop)
        return None
    return JobBrief(
        job=job.job,
        bundle=submission.bundle,
        bundle_size=submission.bundle_size,
        entry=submission.contents.entry,
        requirements=submission.contents.requirements,
        python=submission.contents.python,
        options=options,
        on_control_loss=submission.on_control_loss,
    )
