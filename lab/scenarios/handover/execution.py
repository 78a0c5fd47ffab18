"""Models the execution of a datacenter's jobs: it places, loads, starts, ends and concludes them
with the commands that a director submits, on one worker and one workflow. A share runs from the
commit of its start to the commit of its end.
"""

from __future__ import annotations

from random import Random

from lab.scenarios.handover.group_model import Term
from lab.scenarios.handover.timeline import Timeline
from squall.cluster.datacenter.commands import (
    AddWorker,
    Assignment,
    Command,
    ConcludeWorkflows,
    Conclusion,
    Configure,
    EndAttempts,
    FinishJob,
    Placement,
    PlaceWorkflows,
    Purge,
    ReadyHeld,
    ReturnWorkflows,
    Started,
    StartWorkflows,
    StopJob,
)
from squall.cluster.datacenter.gated_rules import try_of
from squall.cluster.datacenter.records import JobRecord, RecordFacts, WorkflowRecord
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.protocol.command_outcomes import CommandOutcome
from squall.cluster.protocol.job_keys import AttemptKey, ShareKey
from squall.cluster.protocol.messages import JobState

WORKFLOW = "w"
KEEP_MS = 3_000


def result_of(job: str) -> str:
    """The digest of the result of a local job."""
    return f"result of {job}"


class Execution:
    """Drives all local jobs for one term of a primary."""

    def __init__(
        self,
        timeline: Timeline,
        random: Random,
        term: Term[Datacenter],
        name: str,
        cores: int,
        run_ms: int,
    ) -> None:
        """`run_ms` is the limit of a placed job without a timeout."""
        self._run_ms = run_ms
        self._timeline = timeline
        self._random = random
        self._term = term
        self._name = name
        self._cores = cores
        self._under_way: set[str] = set()
        self.trouble = True
        """Jobs lose their cores and fail by themselves now and then."""

    def tick(self) -> None:
        tables = self._term.machine.tables
        if not tables.group:
            self._submit("configure", Configure(group=self._name, lease_ms=1000))
            return
        if "w1" not in tables.workers:
            self._submit("worker", AddWorker(node="w1", boot="b1", cores=self._cores))
            return
        # In the order in which they came to this datacenter, which is another one elsewhere.
        for job in sorted((tables.jobs[name] for name in tables.active), key=lambda job: job.op):
            self._drive(job)
        if self._random.random() < 0.2:
            over = tuple(job.job for job in tables.jobs.values() if job.over)
            if over:
                self._submit("purge", Purge(jobs=over, early=True, key_keep_ms=86_400_000))

    def _drive(self, job: JobRecord) -> None:
        workflow = job.workflows[0]
        if workflow.over:
            self._finish(job, workflow)
        elif job.stop:
            self._stop(job, workflow)
        elif job.deadline_ms and self._group_ms >= job.deadline_ms + job.extension_ms:
            self._submit(
                f"stop {job.job}", StopJob(job=job.job, kind="timeout", reason="timeout", now=True)
            )
        elif workflow.started_ms:
            length_ms = 500 + Random(job.job).randrange(6000)
            if self._group_ms >= workflow.started_ms + length_ms:
                self._end(job, workflow, "")
        elif workflow.placed:
            self._prepare(job, workflow)
        else:
            self._place(job)

    def _place(self, job: JobRecord) -> None:
        tables = self._term.machine.tables
        free = tables.free_slots(tables.workers["w1"])
        if not free:
            return
        attempt = tables.next_attempt(ShareKey(job.job, WORKFLOW, 0))
        placement = Placement(
            workflow=WORKFLOW,
            shares=1,
            assignments=(Assignment(0, attempt, "w1", "b1", free[0], 0),),
        )
        self._submit(
            "place", PlaceWorkflows(job=job.job, placements=(placement,), run_ms=self._run_ms)
        )

    def _prepare(self, job: JobRecord, workflow: WorkflowRecord) -> None:
        """Loads the code; a held job waits there for the gates."""
        if workflow.returning:
            return
        if self._group_ms < workflow.placed_ms + 200 or self._random.random() < 0.3:
            return
        tables = self._term.machine.tables
        if self.trouble and self._random.random() < 0.03:
            keys = tuple(key for key, _ in tables.live_of(job.job))
            self._submit(
                f"return {job.job}",
                ReturnWorkflows(job=job.job, workflows=(WORKFLOW,), returned=keys, reason="lost"),
            )
            return
        if self.trouble and self._random.random() < 0.01:
            stop = StopJob(job=job.job, kind="failed", reason="cannot be loaded", now=True)
            self._submit(f"stop {job.job}", stop)
            return
        last = tables.last(ShareKey(job.job, WORKFLOW, 0))
        if last is None or last.state != "live":
            return
        started = (Started(WORKFLOW, (last.number,)),)
        if not job.held:
            self._submit(f"start {job.job}", StartWorkflows(job=job.job, started=started))
            return
        tried = try_of(tables, job)
        if tried is not None and tried.state == "accepted":
            self._submit(f"ready {job.job}", ReadyHeld(job=job.job, loaded=started))

    def _stop(self, job: JobRecord, workflow: WorkflowRecord) -> None:
        live = self._term.machine.tables.live_of(job.job)
        if live and workflow.started_ms:
            if self._random.random() < 0.3:
                self._end(job, workflow, "stopped")
        elif live:
            keys = tuple(key for key, _ in live)
            self._submit(f"return {job.job}", ReturnWorkflows(job=job.job, returned=keys))
        else:
            outcome = "interrupted" if workflow.started_ms else "skipped"
            self._conclude(job, Conclusion(workflow=WORKFLOW, outcome=outcome))

    def _end(self, job: JobRecord, workflow: WorkflowRecord, cut: str) -> None:
        live = self._term.machine.tables.live_of(job.job)
        if live:
            ended = tuple(_record(key, cut) for key, _ in live)
            self._submit(f"end {job.job}", EndAttempts(ended=ended))
        elif not job.stop:
            self._conclude(job, Conclusion(workflow=WORKFLOW, outcome="completed"))

    def _conclude(self, job: JobRecord, conclusion: Conclusion) -> None:
        command = ConcludeWorkflows(job=job.job, conclusions=(conclusion,))
        self._submit(f"conclude {job.job}", command)

    def _finish(self, job: JobRecord, workflow: WorkflowRecord) -> None:
        status: JobState = "completed"
        if job.stop:
            status = "completed" if job.stop == "aborted" else job.stop
        command = FinishJob(
            job=job.job,
            status=status,
            reason=job.reason,
            result=result_of(job.job) if workflow.started_ms else "",
            keep_ms=KEEP_MS,
        )
        self._submit(f"finish {job.job}", command)

    @property
    def _group_ms(self) -> int:
        return self._term.group.group_ms()

    def _submit(self, tag: str, command: Command) -> None:
        if tag in self._under_way:
            return
        self._under_way.add(tag)

        def done(outcome: CommandOutcome | None) -> None:
            self._under_way.discard(tag)

        self._term.submit(command, done)


def _record(key: AttemptKey, cut: str) -> RecordFacts:
    return RecordFacts(key=key, digest="d", cut=cut)
