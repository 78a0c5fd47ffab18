"""Drives the election core: reads, writes and watches the lease record, and runs terms.

The core decides; the driver performs its effects and reports the results. At most one read and one
write are in flight, each with a timeout, and neither waits for the store's circuit breaker. Every
call ends with an event for the core: an unexpected error is logged and counts as no answer. An
error of the core itself ends `run`. Nothing here may delay the tick at the end of a lease.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from squall.coordination.election import messages
from squall.coordination.election.core import HOLDING, Election, Role
from squall.coordination.election.term import END_TIMEOUT_S, Term, TermRunner
from squall.coordination.errors import StaleEpochError, StoreError, VersionConflict
from squall.coordination.events import OnFailure
from squall.coordination.records import keys
from squall.coordination.records.schemas import Codec, HeartbeatPace, LeaseRecord
from squall.coordination.stores.call_timeout import within
from squall.coordination.stores.interface import ABSENT, Changed, Check, Fence, Put, Record, Store
from squall.runtime.interfaces import Clock
from squall.runtime.tasks import TaskGroup, TaskState, TaskToken

# One wait on the store; long, because a change ends it at once.
WATCH_SLICE_S = 60.0
# So many members in the order of succession watch every renewal. The others poll, so that a
# renewal does not wake a thousand members.
CLOSE_WATCHERS = 5


class Leadership:
    """Runs the election of one boot of a member against the store.

    `report(effect)` receives every effect, for events, metrics and logs.
    """

    def __init__(
        self,
        election: Election,
        urgent: Store,
        patient: Store,
        codec: Codec,
        clock: Clock,
        tasks: TaskGroup,
        *,
        alive: Callable[[], Check],
        rank: Callable[[], Awaitable[int]],
        runner: TermRunner,
        report: Callable[[messages.Effect], None],
        standbys: Callable[[], tuple[str, ...]],
        live: Callable[[], int],
        signing_key: Callable[[], str],
        pace: Callable[[], HeartbeatPace | None],
        healthy: Callable[[], bool],
        on_lease: Callable[[Record, LeaseRecord], None],
        on_renewed: Callable[[float], None],
        on_failure: OnFailure,
        watches: bool,
    ) -> None:
        self.election = election
        self.term: Term | None = None
        self._urgent = urgent
        self._patient = patient
        self._codec = codec
        self._clock = clock
        self._tasks = tasks
        self._alive = alive
        self._rank = rank
        self._runner = runner
        self._report = report
        self._standbys = standbys
        self._live = live
        self._signing_key = signing_key
        self._pace = pace
        self._healthy = healthy
        self._on_lease = on_lease
        self._on_renewed = on_renewed
        self._on_failure = on_failure
        self._watches = watches
        self._watching: TaskToken | None = None
        self._sleeper: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        # When `run` wakes by itself. An event that moves the deadline to before it must wake it.
        self._sleeps_until = 0.0
        # Set after every batch of effects: a term began or ended, or a read arrived.
        self._changed = asyncio.Event()
        self._terms: set[asyncio.Task[None]] = set()
        self._broken: Exception | None = None

    async def run(self) -> None:
        """Runs until this boot retires. Raises what broke the core or a term: its state is then
        unknown, and only another boot may go on."""
        while self.election.role is not Role.RETIRED:
            if self._broken is not None:
                raise self._broken
            self.election.standbys = self._standbys()
            self.election.live = self._live()
            self.election.signing_key = self._signing_key()
            self.election.pace = self._pace()
            self.election.healthy = self._healthy()
            self._perform(self.election.tick(self._clock.boot_time()))
            self._sleeps_until = self.election.deadline()
            await self._sleep(self._sleeps_until - self._clock.boot_time())

    def handle(self, event: messages.Event) -> None:
        election = self.election
        try:
            election.healthy = self._healthy()
            self._perform(election.handle(event, self._clock.boot_time()))
        except Exception as error:
            self._break(error)
            raise
        if election.deadline() < self._sleeps_until or election.role is Role.RETIRED:
            self._wake()

    def begin_lease_read(self) -> bool:
        """Whether the next heartbeat shall read the lease too, in the same round trip."""
        return self._watches and self.election.begin_lease_read(self._clock.boot_time())

    def lease_was_read(self, record: Record | None) -> None:
        self.handle(messages.LeaseRead(self._seen(record)))

    def lease_read_failed(self) -> None:
        self.election.reading_failed(self._clock.boot_time())
        self._wake()

    @property
    def leads(self) -> bool:
        return self.election.leads(self._clock.boot_time())

    @property
    def is_led(self) -> bool:
        return self.election.is_led(self._clock.boot_time())

    async def next_term(self) -> Term | None:
        """The present term, or the next one; None when this boot has retired."""
        while self.term is None or not self.term.valid:
            if self.election.role is Role.RETIRED:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self.term

    async def resign(self, reason: str, successor: str = "") -> None:
        """Ends the term and returns when the lease is released or lost. Also withdraws a
        candidacy that is in flight."""
        self.handle(messages.Resign(reason, successor))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3.0 * END_TIMEOUT_S):
                while self.election.role in (*HOLDING, Role.STANDING):
                    self._changed.clear()
                    await self._changed.wait()

    def exempt(self, task: asyncio.Task[Any] | None) -> None:
        if self.term is not None:
            self.term.exempt(task)

    async def end(self) -> None:
        """Resigns and retires, because the member stops."""
        await self.resign("stopped")
        await self.retire()

    def cancel_scopes(self) -> None:
        if self.term is not None:
            self.term.cancel_scopes()

    async def retire(self) -> None:
        """Ends the election and waits until the work of the last term has stopped."""
        try:
            self.handle(messages.Retire())
        finally:
            # Also if the core raised before it could retire.
            self.election.role = Role.RETIRED
            if self.term is not None:
                self.term.end("fenced")
            self._changed.set()
        if self._terms:
            await asyncio.wait(set(self._terms))

    # Effects.

    def _perform(self, effects: list[messages.Effect]) -> None:
        for effect in effects:
            match effect:
                case messages.ReadLease():
                    self._start("lease read", self._read())
                case messages.WriteLease():
                    self._start(f"lease {effect.purpose.value}", self._write(effect))
                case messages.FindRank():
                    self._start("lease rank", self._find_rank())
                case messages.Promote(epoch):
                    self._begin(epoch)
                case messages.Demote(_, reason):
                    if self.term is not None:
                        self.term.end(reason)
                case _:
                    pass
            self._report(effect)
        self._changed.set()
        self._ensure_watch()

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> TaskToken:
        return self._tasks.start(name, work, on_error=self._break)

    def _break(self, error: Exception) -> None:
        self._broken = error
        self._wake()

    async def _sleep(self, seconds: float) -> None:
        """Sleeps until `_wake`, at most for so long."""
        if seconds <= 0.0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        self._sleeper = loop.create_future()
        self._timer = loop.call_later(seconds, self._due)
        try:
            await self._sleeper
        finally:
            self._timer.cancel()
            self._sleeper = None

    def _due(self) -> None:
        """The timer fired. Each read of the lease moves the deadline on, so sleep again if it is
        still ahead: that is cheaper than a new timer per read."""
        self._sleeps_until = self.election.deadline()
        left_s = self._sleeps_until - self._clock.boot_time()
        if left_s <= 0.0:
            self._wake()
        else:
            self._timer = asyncio.get_running_loop().call_later(left_s, self._due)

    def _wake(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def _read(self) -> None:
        try:
            (record,) = await within(self._call_timeout_s, self._urgent.get(keys.LEADER), "lease")
            seen = self._seen(record)
        except Exception as error:
            self._unanswered("lease_read_failed", error)
            self.lease_read_failed()
            return
        self.handle(messages.LeaseRead(seen))

    def _seen(self, record: Record | None) -> messages.SeenLease | None:
        if record is None:
            return None
        lease = self._codec.read_shared(LeaseRecord, record.value, key=record.key)
        # The store keeps the epoch beside the value, for fences. A value that contradicts it was
        # not written by this library.
        if lease is not None and lease.epoch != record.epoch:
            lease = None
        if lease is not None:
            offset = record.read_ms / 1000.0 - self._clock.boot_time()
            self.election.store_offset = offset
            self._sign_with(lease)
            self._on_lease(record, lease)
        return messages.SeenLease(record.version, record.epoch, lease)

    async def _write(self, request: messages.WriteLease) -> None:
        try:
            version = await self._written(request)
        except (VersionConflict, StaleEpochError):
            self.handle(messages.LeaseRefused(request))
        except Exception as error:
            self._unanswered("lease_write_failed", error)
            self.handle(messages.LeaseUnanswered(request))
        else:
            self.handle(messages.LeaseWritten(request, version))

    async def _written(self, request: messages.WriteLease) -> str:
        put = Put(
            keys.LEADER,
            self._codec.encode(request.lease),
            expect=ABSENT if request.expect is None else request.expect,
            ttl_s=None,
        )
        fence = Fence(keys.LEADER, request.lease.epoch)
        # The check makes the store refuse a boot that was declared dead: it must neither win nor
        # keep the lease.
        call = self._urgent.write(self._alive(), put, fence=fence)
        versions = await within(self._call_timeout_s, call, "lease")
        self._sign_with(request.lease)
        if request.purpose is messages.Purpose.RENEW and self.leads:
            left_s = self.election.limit - self._clock.boot_time()
            self._on_renewed(left_s / self.election.lease_ttl)
        return versions[-1]

    def _unanswered(self, what: str, error: Exception) -> None:
        """Heartbeats report a store that refuses or does not answer; other errors are logged."""
        if not isinstance(error, StoreError):
            self._on_failure(what, error)

    def _sign_with(self, lease: LeaseRecord) -> None:
        """All members sign with the key that the lease names."""
        if lease.signing_key and self._codec.keyring is not None:
            self._codec.keyring.sign_with(lease.signing_key)

    @property
    def _call_timeout_s(self) -> float:
        """A quarter of the lease: two more tries fit before the local limit."""
        return self.election.lease_ttl / 4.0

    async def _find_rank(self) -> None:
        try:
            rank = await within(self._call_timeout_s, self._rank(), "rank")
        except Exception as error:
            self._unanswered("rank_failed", error)
            # Without an answer assume a middle rank, which draws a random delay.
            rank = 1
        self.handle(messages.RankKnown(rank))

    # Terms.

    def _begin(self, epoch: int) -> None:
        def leads() -> bool:
            return self.leads and self.election.epoch == epoch

        term = Term(epoch, self._patient, leads, self._fenced)
        self.term = term
        token = self._start(f"term {epoch}", self._run_term(term))
        if token.task is not None:
            self._terms.add(token.task)
            token.task.add_done_callback(self._terms.discard)

    def _fenced(self, epoch: int) -> None:
        self._report(messages.WriteFenced(epoch))
        self.handle(messages.Fenced(epoch))

    async def _run_term(self, term: Term) -> None:
        if await self._runner.run(term):
            self.handle(messages.WorkEnded())

    # The watch of the lease record.

    def _ensure_watch(self) -> None:
        """Starts the watch once this member is among the next in line; it ends by itself."""
        running = self._watching is not None and self._watching.state is TaskState.RUNNING
        if self._watches and not running and self._should_watch():
            self._watching = self._tasks.start("lease watch", self._watch())

    def _should_watch(self) -> bool:
        role = self.election.role
        return role not in HOLDING and role is not Role.RETIRED and self._is_close()

    async def _watch(self) -> None:
        """Follows each change of the lease, so that a release is noticed without delay."""
        while self._should_watch():
            seen = self.election.seen
            watch = Changed(keys.LEADER, "" if seen is None else seen.version)
            try:
                changed = await self._urgent.wait(watch, timeout_s=WATCH_SLICE_S)
            except StoreError:
                await self._clock.sleep(self.election.timing.outage_retry.delay_s(1))
                continue
            if changed:
                await self._wait_for_read(seen)

    def _is_close(self) -> bool:
        election = self.election
        lease = election.seen_lease
        if lease is None or len(lease.standbys) < CLOSE_WATCHERS:
            return election.eligible
        return election.member_id in lease.standbys[:CLOSE_WATCHERS]

    async def _wait_for_read(self, before: Any) -> None:
        """Waits until the change has been read. Otherwise the watch would return at once, again
        and again, with the version that it already reported."""
        self.election.read_soon(self._clock.boot_time())
        self._wake()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.election.timing.heartbeat_interval):
                while self.election.seen is before:
                    self._changed.clear()
                    await self._changed.wait()
