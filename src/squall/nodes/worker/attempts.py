"""Does what the session core decides, and tells it what the host tells.

Between the two it fetches what an attempt needs, keeps its record, and puts that into the
outbox when it is over. It decides nothing about leases, order or stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from squall.api.errors import ExitCode, SquallError
from squall.engine.protocol import Adjust, Line
from squall.nodes.identity import AttemptKey
from squall.nodes.memory_blobs import MemoryBlobs
from squall.nodes.messages import JobBrief, Preparation, SpecValues
from squall.nodes.worker.books import AttemptBook
from squall.nodes.worker.directory import LiveFile, LiveJoin, WorkerDirectory
from squall.nodes.worker.effects import (
    AskNow,
    Begin,
    Change,
    Effect,
    Fetch,
    Forget,
    Halt,
    Kill,
    Register,
    SetLease,
)
from squall.nodes.worker.host import HostReport, Refusal, ShareHost, ShareOrder
from squall.nodes.worker.session import WorkerSession
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log
from squall.runtime.tasks import TaskRunner, TaskToken
from squall.stats.record import RecordEnd
from squall.stats.reports import ErrorSample, HealthReport, WindowReport
from squall.wire.blobs import BlobFetcher, Holder
from squall.wire.errors import BlobError, BlobRefused

TASKS = "attempts"
FETCH_TRIES = 5
FETCH_PAUSE_S = 0.3
LAST_WORDS_S = 0.5
"""How long the end of an attempt waits for its last printed lines to arrive."""
OVERLAPS = "it ran on without its manager, so its load may overlap with that of another attempt"


class Attempts:
    """All attempts of this boot, between session and host."""

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
        self.books: dict[AttemptKey, AttemptBook] = {}
        self.records: dict[AttemptKey, tuple[str, int]] = {}
        """Final records that nobody has acknowledged: digest and size."""
        self._files: dict[AttemptKey, LiveFile] = {}
        self._bundles = asyncio.Lock()
        """Shares of one job want the same bundle: it is fetched once."""
        self._fetching: dict[AttemptKey, TaskToken] = {}
        self._leases: dict[AttemptKey, tuple[float, float]] = {}
        self._loads: dict[AttemptKey, Adjust] = {}

    # What the session decides.

    def perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Register():
                self._register()
            case AskNow():
                self._wake()
            case Fetch():
                self._fetch(effect)
            case SetLease(key, until, boot_until):
                self._leases[key] = (until, boot_until)
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
                self._loads[key] = load
                self._host.adjust(key, load)
            case Forget(key):
                self._forget(key)

    def _fetch(self, effect: Fetch) -> None:
        key = effect.preparation.key
        self._log.info("attempt_preparing", attempt=str(key))
        work = self._prepare(effect.preparation, effect.brief)
        self._fetching[key] = self._tasks.start(f"prepare {key}", work, group=TASKS)

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
            self._refuse(key, Refusal(text=text, exit_code=1, retryable=True))
            return
        except (SquallError, msgspec.MsgspecError) as error:
            code = error.exit_code if isinstance(error, SquallError) else ExitCode.INTERNAL
            retryable = isinstance(error, BlobError) and not isinstance(error, BlobRefused)
            self._refuse(key, Refusal(text=str(error), exit_code=int(code), retryable=retryable))
            return
        del self._fetching[key]
        warmup_s = brief.options.warmup_s
        book = self.books[key] = AttemptBook(key, str(self._runtime.node), warmup_s)
        self._files[key] = self._directory.live(key, book.builder.record, warmup_s)
        self._host.prepare(
            ShareOrder(
                key=key,
                spec=spec,
                process=preparation.process,
                iterations_done=preparation.iterations_done,
                bundle=brief.bundle,
                entry=brief.entry,
                requirements=brief.requirements,
                python=brief.python,
                options=brief.options,
            )
        )
        self._session.on_step(key)
        if key in self._leases:
            self._host.set_lease(key, *self._leases[key])
        if key in self._loads:
            self._host.adjust(key, self._loads[key])

    async def _fetched(self, digest: str, size: int) -> bytes:
        for tries_left in reversed(range(FETCH_TRIES)):
            try:
                await self._fetcher.fetch(digest, size, self._holders())
                break
            except BlobRefused:
                raise
            except BlobError:
                if not tries_left:
                    raise
                await self._runtime.clock.sleep(FETCH_PAUSE_S)
        return self._blobs.take(digest)

    def _begin(self, key: AttemptKey, elapsed_s: float, run_elapsed_s: float) -> None:
        book = self.books.get(key)
        if book is None:
            return
        book.begin(self._runtime.clock.now(), elapsed_s)
        self._files[key].add(LiveJoin(book.builder.record.joined_s))
        self._log.info("attempt_begins", attempt=str(key), elapsed_s=round(elapsed_s, 3))
        self._host.go(key, elapsed_s, run_elapsed_s)

    def _give_up(self, key: AttemptKey, why: str) -> bool:
        """Of an attempt that the host does not know yet."""
        token = self._fetching.pop(key, None)
        if token is None:
            return False
        self._tasks.cancel(token)
        self._refuse(key, Refusal(text=why, exit_code=int(ExitCode.INTERNAL), retryable=True))
        return True

    def _refuse(self, key: AttemptKey, refusal: Refusal) -> None:
        self._fetching.pop(key, None)
        self.on_refused(key, refusal)

    def _forget(self, key: AttemptKey) -> None:
        self.books.pop(key, None)
        self._leases.pop(key, None)
        self._loads.pop(key, None)
        record = self.records.pop(key, None)
        if record is not None:
            self._blobs.drop(record[0])
            self._tasks.start(f"forget {key}", self._directory.drop(key), group=TASKS)

    # What the host tells.

    def on_ready(self, key: AttemptKey) -> None:
        self.perform(self._session.on_ready(key))

    def on_refused(self, key: AttemptKey, refusal: Refusal) -> None:
        self._log.warning("attempt_refused", attempt=str(key), why=refusal.text)
        self._close_file(key)
        self.books.pop(key, None)
        self.perform(self._session.on_refused(key, refusal))

    def on_report(self, key: AttemptKey, report: HostReport) -> None:
        book = self.books.get(key)
        if book is None:
            return
        book.add(report)
        if isinstance(report, WindowReport | HealthReport | ErrorSample):
            self._files[key].add(report)
        if isinstance(report, WindowReport):
            elapsed_s = book.elapsed_s(self._runtime.clock.now())
            self._session.on_counted(key, book.counters, elapsed_s)

    def on_held(self, key: AttemptKey, why: str, silent_s: float) -> None:
        book = self.books.get(key)
        if book is not None and why:
            self._log.warning("attempt_held", attempt=str(key), why=why)
            book.add(Line("", f"for {silent_s:.0f} s now {why}"))
        self._session.on_held(key, why)

    def on_ended(self, key: AttemptKey, end: RecordEnd) -> None:
        book = self.books.get(key)
        if book is None:
            return
        held = self._session.held.get(key)
        if held is not None and held.overlaps:
            end.notes = [*end.notes, ("DEGRADED", f"{key.workflow}: {OVERLAPS}")]
        data = book.close(end)
        self._log.info("attempt_ended", attempt=str(key), cut=end.cut, error=end.error)
        self._tasks.start(f"keep {key}", self._keep(key, end, data), group=TASKS)

    async def _keep(self, key: AttemptKey, end: RecordEnd, data: bytes) -> None:
        """In the outbox before anyone is told that it is over. What the author printed last
        goes ahead: nobody listens any more once the job is over."""
        book = self.books.get(key)
        last_words: TaskToken | None = None
        if book is not None and book.has_lines:
            name = f"last words of {key}"
            last_words = self._tasks.start(name, self._send_part(key), group=TASKS)
        await self._directory.keep(key, data)
        if last_words is not None and last_words.task is not None:
            await asyncio.wait([last_words.task], timeout=LAST_WORDS_S)
        digest = self._blobs.put(data)
        self.records[key] = (digest, len(data))
        self._close_file(key)
        self._offer()
        self.perform(self._session.on_ended(key, end.cut, digest, len(data), end.elapsed_s))

    def _close_file(self, key: AttemptKey) -> None:
        file = self._files.pop(key, None)
        if file is not None:
            self._tasks.start(f"close {key}", file.close(), group=TASKS)

    async def flush(self) -> None:
        """Reports of running attempts to their files."""
        for file in list(self._files.values()):
            await file.flush()
