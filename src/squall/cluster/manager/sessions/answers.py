"""Answers a worker's session: compares what the log wants the worker to run with what it runs (R4).

The driver has waited for a heartbeat round that began after the request arrived. A live
attempt is granted its lease unless this primary is declaring it lost or its time to stop is
over. An attempt that is not live by the log is stopped or freed by name; absence never means
stop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import msgspec

from squall.api.errors import ExitCode, SquallError
from squall.cluster.datacenter.commands import StopJob
from squall.cluster.datacenter.records import AttemptFacts, JobRecord, WorkerRecord, WorkflowRecord
from squall.cluster.datacenter.workflow_contexts import Context, decode_context, handed_over
from squall.cluster.ledger.interface import Fence
from squall.cluster.manager.primary.effects import TakeRecord
from squall.cluster.manager.primary.placement import extra_prepare_s, profile_of, specs_of
from squall.cluster.manager.primary.volatile_state import VolatileState, VolatileWorker
from squall.cluster.manager.sessions.extensions import grant_extension
from squall.cluster.manager.sessions.stops import grants_end_ms, stop_of
from squall.cluster.protocol.job_keys import AttemptKey
from squall.cluster.protocol.messages import (
    DRAINED,
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
from squall.engine.core_protocol import ShareSpec
from squall.engine.run_options import RunOptions

PREPARATIONS_MAX = 48
"""Preparations in one answer, which is a control message of at most 256 kB; the next answer
carries the rest."""

OptionsOf = Callable[[JobRecord], RunOptions]


class _Answer:
    """Collects the parts of an answer."""

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
        """The answer grants exactly these and orders nothing."""
        orders = (self.prepare, self.go, self.stop, self.adjust, self.free, self.more_time)
        return set(self.granted) == set(wanted) and not any(orders)


def answer_session(
    state: VolatileState,
    request: SessionRequest,
    arrived: float,
    fence: Fence,
    committed: int,
    options_of: OptionsOf,
) -> SessionAnswer:
    tables = state.tables
    worker = tables.workers.get(request.node)
    registered = worker is not None and worker.boot == request.boot and not worker.gone
    drained = False
    if worker is not None and registered:
        known, goes_on = _store_report(state, request, arrived)
        if goes_on and known.settled_op == tables.op and _granted_again(state, known, arrived):
            return SessionAnswer(
                epoch=fence.epoch,
                view=fence.view,
                committed=committed,
                sequence=request.sequence,
                lease_s=tables.lease_ms / 1000.0,
                granted=list(known.statuses),
                interval_s=state.interval_s(),
                telemetry_interval_s=state.telemetry_interval_s(),
            )
        answer = _Answer()
        _live(state, worker, request, arrived, answer, options_of)
        _rest(state, request, answer)
        drained = worker.draining and not tables.live.get(worker.node) and not request.attempts
        if goes_on and not worker.draining and answer.only_grants(known.statuses):
            known.settled_op = tables.op
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
        interval_s=state.interval_s(),
        telemetry_interval_s=state.telemetry_interval_s(),
        drained=drained,
    )


def _store_report(
    state: VolatileState, request: SessionRequest, arrived: float
) -> tuple[VolatileWorker, bool]:
    """Stores what the worker reports and schedules a check of the jobs of which a phase changed.
    Also returns whether the worker runs what it ran before, which most of the thousands of
    sessions per second say."""
    before = state.workers.get(request.node)
    statuses = {status.key: status for status in request.attempts}
    if before is None or before.boot != request.boot:
        state.queue_dirty = True
        before = state.workers[request.node] = VolatileWorker(request.boot, arrived)
    goes_on = len(statuses) == len(before.statuses)
    for key, status in statuses.items():
        known = before.statuses.get(key)
        if known is None or known.phase != status.phase or known.loaded != status.loaded:
            state.touch(key.job)
            goes_on = False
        elif status.phase != "running" or status.adjust_seq != known.adjust_seq:
            goes_on = False
        state.executed(key, status.counters.actions)
    before.heard = max(arrived, before.heard)
    before.statuses = statuses
    before.load, before.round_trip_s = request.load, request.round_trip_s
    return before, goes_on


def _granted_again(state: VolatileState, known: VolatileWorker, arrived: float) -> bool:
    """Grants everything that the worker runs; False, and nothing is granted, if this primary has
    begun to give up any of it."""
    attempts = [state.attempt(key) for key in known.statuses]
    if any(attempt.is_given_up for attempt in attempts):
        return False
    for attempt in attempts:
        attempt.grant(arrived)
    return True


def _live(
    state: VolatileState,
    worker: WorkerRecord,
    request: SessionRequest,
    arrived: float,
    answer: _Answer,
    options_of: OptionsOf,
) -> None:
    """Grants and orders for the attempts that the log wants this boot to run. A job whose rules
    raise fails; the worker still gets its answer for the others (R3)."""
    for key in sorted(state.tables.live.get(worker.node, ())):
        try:
            _live_attempt(state, key, request, arrived, answer, options_of)
        except Exception as error:
            state.fail_job(key.job, error)


def _live_attempt(
    state: VolatileState,
    key: AttemptKey,
    request: SessionRequest,
    arrived: float,
    answer: _Answer,
    options_of: OptionsOf,
) -> None:
    tables = state.tables
    attempt = tables.attempt(key)
    job = tables.jobs.get(key.job)
    workflow = job.workflow(key.workflow) if job is not None else None
    if attempt is None or job is None or workflow is None or attempt.boot != request.boot:
        return
    known = state.attempt(key)
    if known.withheld:
        return
    status = state.workers[request.node].statuses.get(key)
    stop = stop_of(state, job, workflow)
    ends_ms = math.inf if stop is None else grants_end_ms(state, job, workflow)
    # One that is being declared lost never gets a lease again: its next attempt may begin as
    # soon as the loss is committed (R5). One of a held job gets none before the gates have started
    # the job: without a lease no user opens, and nothing is sent (R15).
    if not known.is_given_up and not job.held and state.group_ms < ends_ms:
        known.grant(arrived)
        answer.granted.append(key)
    if status is not None and status.phase == "ended":
        _take(state, request.node, status)
    elif stop is not None:
        answer.stop.append(StopOrder(key=key, now=stop.now, why=stop.why))
    elif known.hands_over and status is not None:
        answer.stop.append(StopOrder(key=key, why=DRAINED))
    else:
        _wanted(state, job, workflow, key, attempt, status, answer, options_of)


def _wanted(
    state: VolatileState,
    job: JobRecord,
    workflow: WorkflowRecord,
    key: AttemptKey,
    attempt: AttemptFacts,
    status: AttemptStatus | None,
    answer: _Answer,
    options_of: OptionsOf,
) -> None:
    """Prepares an attempt, starts it when it is ready, adjusts it when its load lags behind."""
    may_prepare = not workflow.running or attempt.refill
    if status is None:
        if may_prepare and len(answer.prepare) < PREPARATIONS_MAX:
            if job.job not in answer.jobs:
                brief = _brief(state, job, options_of)
                if brief is None:
                    return
                answer.jobs[job.job] = brief
            answer.prepare.append(_preparation(state, job, workflow, key, attempt))
        elif not may_prepare:
            # It was ready once, so this boot had it. A stop makes the worker answer "unknown",
            # after which the attempt is lost.
            answer.stop.append(StopOrder(key=key, now=True, why="not known to its worker"))
        return
    if status.phase == "preparing" and status.wants_more_s and not workflow.running:
        answer.more_time.append(grant_extension(state, job, key, attempt, status))
    if workflow.running and status.phase == "ready":
        answer.go.append(
            GoOrder(
                key=key,
                elapsed_s=_go_elapsed_s(state, job, workflow, attempt),
                run_elapsed_s=(state.group_ms - job.started_ms) / 1000.0,
            )
        )
    wanted = workflow.adjustment
    if wanted.adjust_seq > status.adjust_seq and status.phase in ("preparing", "ready", "running"):
        answer.adjust[(job.job, workflow.name)] = AdjustOrder(
            job=job.job,
            workflow=workflow.name,
            adjust_seq=wanted.adjust_seq,
            paused=wanted.paused,
            rate_per_s=wanted.rate_per_s,
            vus=wanted.vus,
        )


def _rest(state: VolatileState, request: SessionRequest, answer: _Answer) -> None:
    """Stops and frees the attempts that the worker has and the log does not want to run."""
    live = state.tables.live.get(request.node, {})
    for status in request.attempts:
        key = status.key
        if key in live:
            continue
        job = state.tables.jobs.get(key.job)
        attempt = state.tables.attempt(key)
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
                _take(state, request.node, status)
            else:
                answer.free.append(key)
        elif active:
            answer.stop.append(StopOrder(key=key, now=True, drop=True, why="ended"))
        else:
            answer.free.append(key)


def _take(state: VolatileState, node: str, status: AttemptStatus) -> None:
    if status.record and status.key not in state.records:
        tag = f"record {status.key}"
        state.ask(TakeRecord(tag, status.key, node, status.record, status.record_size))


def _go_elapsed_s(
    state: VolatileState, job: JobRecord, workflow: WorkflowRecord, attempt: AttemptFacts
) -> float:
    if attempt.refill and profile_of(job, workflow.name).model == "once":
        # Set-up work that is repeated has its whole time ahead.
        return 0.0
    # Negative before the start: a worker that receives the order early begins exactly on time.
    return (state.group_ms - workflow.started_ms) / 1000.0


def _preparation(
    state: VolatileState,
    job: JobRecord,
    workflow: WorkflowRecord,
    key: AttemptKey,
    attempt: AttemptFacts,
) -> Preparation:
    profile = profile_of(job, workflow.name)
    ready_within_s = state.timers.prepare_timeout_s + extra_prepare_s([state.shares_on(attempt)])
    spec = msgspec.structs.replace(
        specs(state, job, workflow)[key.share],
        refill=attempt.refill,
        # Its place among the attempts at the share, from which its rows and user ids follow. The
        # number of an attempt in a recovered group is far above it.
        attempt=len(state.tables.attempts[key.of]),
    )
    return Preparation(
        key=key,
        spec=spec,
        slot=attempt.slot,
        process=attempt.process,
        values_blob=workflow.values_blob,
        values_size=workflow.values_size,
        iterations_done=attempt.iterations_done,
        timeout_s=profile.duration_s + profile.grace_s + state.timers.stop_grace_s,
        # A held one waits for the other datacenters, for as long as the gates want.
        ready_within_s=0.0 if attempt.refill or job.held else ready_within_s,
        held=job.held,
    )


def specs(state: VolatileState, job: JobRecord, workflow: WorkflowRecord) -> list[ShareSpec]:
    """The shares of the present placement, computed once per placement."""
    known = state.job(job.job).workflow(workflow.name)
    made = known.specs
    if made is None or made[0] != workflow.placed_ms or len(made[1]) != workflow.shares:
        values = SpecValues() if workflow.values_blob else inline_values(job, workflow.name)
        made = known.specs = (workflow.placed_ms, specs_of(job, workflow, values))
    return made[1]


def inline_values(job: JobRecord, name: str) -> SpecValues:
    """The values for a workflow, from the contexts that are in the log itself."""
    contexts: dict[str, Context] = {
        each.name: decode_context(each.context) for each in job.workflows if each.over
    }
    manifest = job.submission.manifest
    return handed_over(manifest, manifest.workflow(name), contexts)


def _brief(state: VolatileState, job: JobRecord, options_of: OptionsOf) -> JobBrief | None:
    """Returns None, and fails the job, if its secrets cannot be decrypted."""
    submission = job.submission
    try:
        options = options_of(job)
    except SquallError as error:
        stop = StopJob(
            job=job.job, kind="failed", reason=str(error), exit_code=ExitCode.INTERNAL, now=True
        )
        state.submit(f"stop {job.job}", stop)
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
