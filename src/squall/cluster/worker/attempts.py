"""Carries out what the session core decides and reports back what the host says.

In between it fetches what an attempt needs, keeps its record, and puts the record into the
outbox when the attempt is over. It decides nothing about leases, order or stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from squall.api.errors import ExitCode, SquallError
from squall.cluster.ledger.blobs.in_memory import MemoryBlobs
from squall.cluster.protocol.job_keys import AttemptKey
from squall.cluster.protocol.messages import JobBrief, Preparation, SpecValues
from squall.cluster.wire.blob_transfer import BlobFetcher, Holder
from squall.cluster.wire.errors import BlobError, BlobRefused
from squall.cluster.worker.attempt_records import AttemptRecorder
from squall.cluster.worker.data_directory import (
    LiveEntry,
    LiveFile,
    LiveJoin,
    WorkerDirectory,
    counters_path,
)
from squall.cluster.worker.effects import (
    AskNow,
    Begin,
    Change,
    Fetch,
    Forget,
    Halt,
    Kill,
    Register,
    SessionEffect,
    SetLease,
)
from squall.cluster.worker.session import WorkerSession
from squall.cluster.worker.share_host import ShareHost, ShareOrder
from squall.engine.core_protocol import Adjust, OutputLine
from squall.engine.process.attempt_events import HostReport, Refusal
from squall.runtime.backoff import Backoff, Retries
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log
from squall.runtime.tasks import TaskRunner, TaskToken
from squall.stats.attempt_record import RecordEnd, SurvivingCounters
from squall.stats.reports import WindowReport

TASKS = "attempts"
FETCH_RETRY = Backoff(first_s=0.3, factor=1.0, tries=5)
"""Fetching a bundle or values. Another manager answers after a fail-over within seconds; after
that the attempt is refused and the primary places it again."""
LAST_LINES_S = 0.5
"""How long the end of an attempt waits for its last printed lines to arrive."""
OVERLAPS = "it ran on without its manager, so its load may overlap with that of another attempt"


@dataclass(slots=True)
class WorkerAttempt:
    """What the worker has of one attempt, from its preparation (or the record that a former
    boot left) until the session forgets it."""

    # The task that fetches bundle and values. While it is set the host does not know the
    # attempt, so a stop cancels the task and refuses the attempt.
    fetching: TaskToken | None = None

    # The latest lease (deadlines in both clocks) and adjustment. Both may arrive while the
    # attempt is still fetching; the host gets them right after `prepare`.
    lease: tuple[float, float] | None = None
    load: Adjust | None = None

    # The cumulative record so far; set as long as there is something to send to the job's
    # leader: from `prepare` until the attempt is refused or forgotten.
    recorder: AttemptRecorder | None = None

    # The file with the reports so far, which survives a kill of this process. Open from
    # `prepare` until the final record is in the outbox.
    file: LiveFile | None = None
    # The task that appends to it.
    appending: asyncio.Task[Any] | None = None

    # Digest and size of the final record: it is in the outbox, and stays there until the
    # session frees it.
    record: tuple[str, int] | None = None


class Attempts:
    """Holds all attempts of this boot and connects the session with the host."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: TaskRunner,
        log: Log,
        session: WorkerSession,
        host: ShareHost,
        directory: WorkerDirectory,
        blobs: MemoryBlobs,
        fetcher: BlobFetcher,
        *,
        holders: Callable[[], Sequence[Holder]],
        wake: Callable[[], None],
        register: Callable[[], None],
        offer: Callable[[], None],
        send_part: Callable[[AttemptKey], Coroutine[Any, Any, None]],
    ) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._log = log
        self._session = session
        self._host = host
        self._directory = directory
        self._blobs = blobs
        self._fetcher = fetcher
        self._holders = holders
        self._wake = wake
        self._register = register
        self._offer = offer
        self._send_part = send_part
        self._attempts: dict[AttemptKey, WorkerAttempt] = {}
        # The shares of a job want the same bundle: the first one fetches it, the others wait.
        self._bundles = asyncio.Lock()

    # What deliveries and metrics read.

    def recorded(self) -> list[AttemptKey]:
        """The attempts that have a recorder."""
        return [key for key, each in self._attempts.items() if each.recorder is not None]

    def recorder(self, key: AttemptKey) -> AttemptRecorder | None:
        attempt = self._attempts.get(key)
        return attempt.recorder if attempt is not None else None

    def final_records(self) -> dict[str, int]:
        """Digest and size of the records in the outbox, which no manager has acknowledged."""
        return dict(each.record for each in self._attempts.values() if each.record is not None)

    def adopt(self, key: AttemptKey, digest: str, size: int) -> None:
        """A complete record that a former boot left."""
        self._attempts[key] = WorkerAttempt(record=(digest, size))

    # What the session decides.

    def perform(self, effects: Sequence[SessionEffect]) -> None:
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: SessionEffect) -> None:
        match effect:
            case Register():
                self._register()
            case AskNow():
                self._wake()
            case Fetch():
                self._fetch(effect)
            case SetLease(key, until, boot_until):
                self._attempts[key].lease = (until, boot_until)
                self._host.set_lease(key, until, boot_until)
            case Begin(key, elapsed_s, run_elapsed_s):
                self._begin(key, elapsed_s, run_elapsed_s)
            case Halt(key, now, cut):
                if not self._give_up(key, cut):
                    self._host.stop(key, now=now, cut=cut)
            case Kill(key, cut):
                if not self._give_up(key, cut):
                    self._log.warning("attempt_killed", attempt=str(key), why=cut)
                    self._host.kill(key, cut)
            case Change(key, load):
                self._attempts[key].load = load
                self._host.adjust(key, load)
            case Forget(key):
                self._forget(key)

    def _fetch(self, effect: Fetch) -> None:
        key = effect.preparation.key
        self._log.info("attempt_preparing", attempt=str(key))
        work = self._prepare(effect.preparation, effect.brief)
        token = self._tasks.start(f"prepare {key}", work, group=TASKS)
        self._attempts[key] = WorkerAttempt(fetching=token)

    async def _prepare(self, preparation: Preparation, brief: JobBrief) -> None:
        key = preparation.key
        try:
            async with self._bundles:
                if brief.bundle and not await self._host.has_bundle(brief.bundle):
                    content = await self._fetched(brief.bundle, brief.bundle_size)
                    await self._host.add_bundle(brief.bundle, content)
            self._session.on_step(key)
            spec = preparation.spec
            if preparation.values_blob:
                data = await self._fetched(preparation.values_blob, preparation.values_size)
                values = msgspec.msgpack.decode(data, type=SpecValues)
                spec = msgspec.structs.replace(spec, values=values.values, received=values.received)
        except OSError as error:
            text = f"worker {self._runtime.node}: the bundle cannot be stored: {error.strerror}"
            self._refuse(key, Refusal(text=text, exit_code=ExitCode.INTERNAL, retryable=True))
            return
        except (SquallError, msgspec.MsgspecError) as error:
            code = error.exit_code if isinstance(error, SquallError) else ExitCode.INTERNAL
            retryable = isinstance(error, BlobError) and not isinstance(error, BlobRefused)
            self._refuse(key, Refusal(text=str(error), exit_code=int(code), retryable=retryable))
            return
        attempt = self._attempts[key]
        attempt.fetching = None
        warmup_s = brief.options.warmup_s
        recorder = attempt.recorder = AttemptRecorder(key, str(self._runtime.node), warmup_s)
        attempt.file = self._directory.live(key, recorder.builder.record, warmup_s)
        self._host.prepare(
            ShareOrder(
                key=key,
                spec=spec,
                process=preparation.process,
                counters=counters_path(key),
                iterations_done=preparation.iterations_done,
                bundle=brief.bundle,
                entry=brief.entry,
                requirements=brief.requirements,
                python=brief.python,
                options=brief.options,
            )
        )
        self._session.on_step(key)
        if attempt.lease is not None:
            self._host.set_lease(key, *attempt.lease)
        if attempt.load is not None:
            self._host.adjust(key, attempt.load)

    async def _fetched(self, digest: str, size: int) -> bytes:
        retries = Retries(FETCH_RETRY)
        while True:
            try:
                await self._fetcher.fetch(digest, size, self._holders())
                return self._blobs.take(digest)
            except BlobRefused:
                raise
            except BlobError:
                delay_s = retries.next_delay_s()
                if delay_s is None:
                    raise
                await self._runtime.clock.sleep(delay_s)

    def _begin(self, key: AttemptKey, elapsed_s: float, run_elapsed_s: float) -> None:
        attempt = self._attempts.get(key)
        if attempt is None or attempt.recorder is None:
            return
        attempt.recorder.begin(self._runtime.clock.now(), elapsed_s)
        self._append(attempt, LiveJoin(attempt.recorder.builder.record.joined_s))
        self._log.info("attempt_begins", attempt=str(key), elapsed_s=round(elapsed_s, 3))
        self._host.go(key, elapsed_s, run_elapsed_s)

    def _give_up(self, key: AttemptKey, why: str) -> bool:
        """Refuses an attempt that the host does not know yet; False: the host knows it."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.fetching is None:
            return False
        self._tasks.cancel(attempt.fetching)
        self._refuse(key, Refusal(text=why, exit_code=int(ExitCode.INTERNAL), retryable=True))
        return True

    def _refuse(self, key: AttemptKey, refusal: Refusal) -> None:
        self._attempts[key].fetching = None
        self.on_refused(key, refusal)

    def _forget(self, key: AttemptKey) -> None:
        attempt = self._attempts.pop(key, None)
        if attempt is not None and attempt.record is not None:
            self._blobs.drop(attempt.record[0])
            self._tasks.start(f"forget {key}", self._directory.drop(key), group=TASKS)

    # What the host reports (`HostEvents`).

    def on_loaded(self, key: AttemptKey) -> None:
        self.perform(self._session.on_loaded(key))

    def on_ready(self, key: AttemptKey) -> None:
        self.perform(self._session.on_ready(key))

    def on_refused(self, key: AttemptKey, refusal: Refusal) -> None:
        self._log.warning("attempt_refused", attempt=str(key), why=refusal.text)
        attempt = self._attempts.get(key)
        if attempt is not None:
            self._close_file(key, attempt)
            attempt.recorder = None
        self.perform(self._session.on_refused(key, refusal))

    def on_report(self, key: AttemptKey, report: HostReport) -> None:
        attempt = self._attempts.get(key)
        if attempt is None or attempt.recorder is None:
            return
        recorder = attempt.recorder
        recorder.add(report)
        if not isinstance(report, OutputLine | SurvivingCounters):
            self._append(attempt, report)
        if isinstance(report, WindowReport):
            elapsed_s = recorder.elapsed_s(self._runtime.clock.now())
            self._session.on_counted(key, recorder.counters, elapsed_s)

    def on_held(self, key: AttemptKey, why: str, silent_s: float) -> None:
        recorder = self.recorder(key)
        if recorder is not None and why:
            self._log.warning("attempt_held", attempt=str(key), why=why)
            recorder.add(OutputLine("", f"for {silent_s:.0f} s now {why}"))
        self._session.on_held(key, why)

    def on_ended(self, key: AttemptKey, end: RecordEnd) -> None:
        recorder = self.recorder(key)
        if recorder is None:
            return
        held = self._session.held.get(key)
        if held is not None and held.overlaps:
            end.notes = [*end.notes, ("DEGRADED", f"{key.workflow}: {OVERLAPS}")]
        data = recorder.close(end)
        self._log.info("attempt_ended", attempt=str(key), cut=end.cut, error=end.error)
        self._tasks.start(f"keep {key}", self._keep(key, end, data), group=TASKS)

    async def _keep(self, key: AttemptKey, end: RecordEnd, data: bytes) -> None:
        """Puts the final record into the outbox, then reports the end. A kill of this process
        between the two costs nothing: the next boot finds the record."""
        attempt = self._attempts.get(key)
        last_lines: TaskToken | None = None
        if attempt is not None and attempt.recorder is not None and attempt.recorder.has_lines:
            # The stream of the job closes when the job is over, so the lines go first.
            name = f"last lines of {key}"
            last_lines = self._tasks.start(name, self._send_part(key), group=TASKS)
        await self._directory.keep(key, data)
        if last_lines is not None and last_lines.task is not None:
            await asyncio.wait([last_lines.task], timeout=LAST_LINES_S)
        digest = self._blobs.put(data)
        if attempt is not None:
            attempt.record = (digest, len(data))
            self._close_file(key, attempt)
        self._offer()
        self.perform(self._session.on_ended(key, end.cut, digest, len(data), end.elapsed_s))

    def _close_file(self, key: AttemptKey, attempt: WorkerAttempt) -> None:
        if attempt.file is not None:
            work = _closed(attempt.file, attempt.appending)
            self._tasks.start(f"close {key}", work, group=TASKS)
            attempt.file = attempt.appending = None

    def _append(self, attempt: WorkerAttempt, entry: LiveEntry) -> None:
        """Appends to the attempt's file at once: what stands there survives a kill. Reports that
        arrive during a write go into the next one, so a slow disk has one write at a time."""
        file = attempt.file
        if file is None:
            return
        file.add(entry)
        if attempt.appending is None or attempt.appending.done():
            name = f"live record {file.key}"
            attempt.appending = self._tasks.start(name, file.flush(), group=TASKS).task


async def _closed(file: LiveFile, appending: asyncio.Task[Any] | None) -> None:
    """Closes the file after the write that is under way, which would create it again."""
    if appending is not None:
        await asyncio.wait([appending])
    await file.close()
