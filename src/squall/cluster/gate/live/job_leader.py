"""Merges the live numbers of the jobs that this gate leads, keeps their streams, and judges their
thresholds each second.

When a threshold ends a job, the leader calls `on_abort`, and the node commits the abort. The result
of a job is made from the results of its datacenters. Only for a lost datacenter does it use the
reports that arrived here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from squall.cluster.assignments.records import GateJobRecord, PartRecord, PartTry
from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.assignments.tables import AssignmentTables
from squall.cluster.gate.live.part_follower import AskPart, PartFollower
from squall.cluster.gate.outbox import PartOf
from squall.cluster.group.telemetry.job_stream import JobStream
from squall.cluster.protocol.gates.handover_keys import part_job_id
from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.protocol.messages import StreamEvent, StreamItem, StreamSnapshot
from squall.cluster.results.datacenter_totals import MergedTotals
from squall.cluster.results.job_result import encode_result
from squall.cluster.results.lost_datacenter import lost_result
from squall.runtime.interfaces import Clock
from squall.runtime.tasks import TaskRunner, TaskToken
from squall.stats.thresholds.judge import ThresholdResult

STREAMS_KEPT = 200
"""Streams of jobs that are over, for followers that come back."""
TASK_GROUP = "live"


class LedGateJob:
    """One job that this gate leads."""

    def __init__(self, job: GateJobRecord) -> None:
        self.stream = JobStream(job.created_ms - 1)
        self.events_shown = 0
        # None until the parts start: which datacenters run them is not settled before.
        self.totals: MergedTotals | None = None
        self.followers: dict[tuple[str, int], TaskToken] = {}
        # The last second that was shown; never falls.
        self.second = 0
        self.aborted = False
        # What shows it raised: it is shown no more, and the other jobs are.
        self.is_broken = False


class GateJobLeader:
    """Leads jobs of this gate. It only reads the committed state."""

    def __init__(
        self,
        machine: Assignments,
        tasks: TaskRunner,
        *,
        clock: Clock,
        group_ms: Callable[[], int],
        wall_s: Callable[[], float],
        part_of: PartOf,
        ask: AskPart,
        on_abort: Callable[[JobId, str], None],
        leads: Callable[[GateJobRecord], bool],
        settle_s: float,
        on_broken: Callable[[JobId, Exception], None],
    ) -> None:
        """`leads` says whether this gate leads a job. A second is shown `settle_s` after its end,
        when the reports of all datacenters have arrived."""
        self._machine = machine
        self._tasks = tasks
        self._clock = clock
        self._group_ms = group_ms
        self._wall_s = wall_s
        self._part_of = part_of
        self._ask = ask
        self._on_abort = on_abort
        self._leads = leads
        self._settle_s = settle_s
        self._on_broken = on_broken
        self._led: dict[JobId, LedGateJob] = {}

    @property
    def _tables(self) -> AssignmentTables:
        return self._machine.tables

    # What other parts read.

    def led(self, job: GateJobRecord) -> LedGateJob:
        """Begins to lead a job when it is first mentioned."""
        found = self._led.get(job.job)
        if found is None:
            found = self._led[job.job] = LedGateJob(job)
            # With their own time stamps: a follower that comes from another gate has seen them
            # under the same numbers.
            self._show_events(job, found)
            if job.over:
                found.stream.close()
            self._forget_old()
        return found

    def stream(self, job: GateJobRecord) -> JobStream:
        return self.led(job).stream

    def judged(self, job: JobId) -> list[ThresholdResult]:
        led = self._led.get(job)
        return led.totals.judged() if led is not None and led.totals is not None else []

    def lost_part(self, key: AttemptKey) -> bytes:
        """The result of a part so far, as this gate knows it; empty if there is no such part. The
        key names the part and its handover as share and attempt."""
        led, job = self._led.get(key.job), self._tables.jobs.get(key.job)
        if job is None or key.share >= len(job.parts):
            return b""
        part = job.parts[key.share]
        tried = part.current
        if tried is None or tried.handover != key.attempt:
            return b""
        # The gate that led the job may be gone with all that it heard. Then nothing of the part is
        # counted, and its whole plan is not known.
        totals = led.totals if led is not None and led.totals is not None else self._totals(job)
        totals.lose(key.share, f"{tried.datacenter} is unreachable")
        known = totals.parts[key.share]
        if known.began_at is not None:
            ago_s = self._clock.now() - known.began_at
        else:
            ago_s = (self._group_ms() - job.started_ms) / 1000.0
        submission = self._part_of(job, part)
        name = part_job_id(job.job, tried.datacenter, tried.handover)
        return encode_result(
            lost_result(
                name,
                submission.manifest,
                submission.options,
                known,
                started_at=self._wall_s() - ago_s,
            )
        )

    # Callbacks of the log and of time.

    def changed(self) -> None:
        """Commands were applied: shows new events, follows parts that started, closes jobs that
        are over, gives up jobs that another gate leads now."""
        tables = self._tables
        for name in tables.active:
            job = tables.jobs[name]
            if name not in self._led and job.started_ms and self._leads(job):
                self.led(job)
        for name, led in list(self._led.items()):
            job = tables.jobs.get(name)
            if job is None or job.over or not self._leads(job):
                if job is not None:
                    self._guarded(name, led, partial(self._show_events, job, led))
                self._close(led)
                if job is not None and not job.over:
                    # A follower that waits for the stream gets its end, and with the next request
                    # the address of the new leader.
                    del self._led[name]
            elif not led.is_broken:
                self._guarded(name, led, partial(self._update, job, led))

    def tick(self) -> None:
        """Called several times a second: shows each job whose next second is complete."""
        now = self._clock.now()
        for name, led in self._led.items():
            job, totals = self._tables.jobs.get(name), led.totals
            if totals is None or job is None or job.over or led.is_broken:
                continue
            elapsed_s = totals.elapsed_s(now)
            second = int(elapsed_s - self._settle_s)
            # After a failover of the gate, no total may be below what the follower saw.
            if second > led.second and totals.is_caught_up(now):
                led.second = second
                at = now - (elapsed_s - second)
                self._guarded(name, led, partial(self._show, name, led, totals, at))

    def _guarded(self, job: JobId, led: LedGateJob, show: Callable[[], None]) -> None:
        """Contains an error in the view of one job: the gate and the views of other jobs go on."""
        try:
            show()
        except Exception as error:
            led.is_broken = True
            self._on_broken(job, error)

    def _update(self, job: GateJobRecord, led: LedGateJob) -> None:
        self._show_events(job, led)
        if not job.started_ms:
            return
        if led.totals is None:
            led.totals = self._totals(job)
        for part in job.parts:
            tried = part.current
            if tried is None:
                continue
            key = (tried.datacenter, int(tried.handover))
            if tried.state == "started" and key not in led.followers:
                self._follow(job, led, led.totals, part, tried)
            elif tried.state == "lost":
                led.totals.lose(part.index, tried.reason)
                self._unfollow(led, key)

    def _totals(self, job: GateJobRecord) -> MergedTotals:
        submission = job.submission
        parts = [
            (part.current.datacenter, part.weight, self._part_of(job, part).manifest)
            for part in job.parts
            if part.current is not None
        ]
        totals = MergedTotals(submission.manifest, submission.options, parts)
        for part in job.parts:
            if part.current is not None:
                totals.parts[part.index].tries = int(part.current.handover)
        return totals

    def _follow(
        self,
        job: GateJobRecord,
        led: LedGateJob,
        totals: MergedTotals,
        part: PartRecord,
        tried: PartTry,
    ) -> None:
        def put(item: StreamItem) -> None:
            led.stream.put(item, self._group_ms())

        follower = PartFollower(
            job, part.index, tried, totals, ask=self._ask, clock=self._clock, put=put
        )
        name = f"follow {part_job_id(job.job, tried.datacenter, tried.handover)}"
        led.followers[tried.datacenter, int(tried.handover)] = self._tasks.start(
            name, follower.run(), group=TASK_GROUP
        )

    def _unfollow(self, led: LedGateJob, key: tuple[str, int]) -> None:
        token = led.followers.get(key)
        if token is not None:
            self._tasks.cancel(token)

    def _show(self, job: JobId, led: LedGateJob, totals: MergedTotals, at: float) -> None:
        """Shows one second of a job and judges its thresholds."""
        totals.stats.shows_histograms = led.stream.shows_histograms
        snapshot, abort = totals.second(at)
        led.stream.put(StreamSnapshot(snapshot), self._group_ms())
        if abort and not led.aborted:
            led.aborted = True
            self._on_abort(job, abort)

    def _show_events(self, job: GateJobRecord, led: LedGateJob) -> None:
        events = self._tables.events.get(job.job, ())
        for event in events[led.events_shown :]:
            shown = StreamEvent((event.at_ms - job.created_ms) / 1000.0, event.text)
            led.stream.put(shown, event.at_ms)
        led.events_shown = max(led.events_shown, len(events))

    def _close(self, led: LedGateJob) -> None:
        led.stream.close()
        for key in list(led.followers):
            self._unfollow(led, key)
        led.followers = {}

    def _forget_old(self) -> None:
        over = [job for job in self._led if self._is_over(job)]
        for job in over[: max(0, len(over) - STREAMS_KEPT)]:
            self._close(self._led.pop(job))

    def _is_over(self, job: JobId) -> bool:
        record = self._tables.jobs.get(job)
        return record is None or record.over
