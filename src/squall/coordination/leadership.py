"""Drives the election core: reads and writes the lease, watches it, runs terms.

The core decides; this file only does what it asks and tells it what came of it. One read
and one write are under way at a time, each with a limit on its time, and neither waits for
the circuit of the store. Whatever comes of a call, the core hears of it: an error that nobody
foresaw is logged and counts as no answer, and one of the core itself ends `run`. It must never
hold back the tick at the end of a lease.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from squall.coordination import election_messages as messages
from squall.coordination import keys
from squall.coordination.calls import within
from squall.coordination.election import HOLDING, Election, Role
from squall.coordination.errors import StaleEpochError, StoreError, VersionConflict
from squall.coordination.events import OnFailure
from squall.coordination.records import Codec, LeaseRecord, Pace
from squall.coordination.stores.interface import ABSENT, Changed, Check, Fence, Put, Record, Store
from squall.coordination.terms import PATIENCE_S, Term, TermRunner
from squall.runtime.interfaces import Clock
from squall.runtime.tasks import TaskGroup, TaskState, TaskToken

WATCH_SLICE_S = 60.0
CLOSE_WATCHERS = 5
"""So many members watch each renewal; the others look at their own pace."""


class Leadership:
    """Of one incarnation of one member. `tell(effect)` hears what people want to know."""

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
        tell: Callable[[messages.Effect], None],
        standbys: Callable[[], tuple[str, ...]],
        live: Callable[[], int],
        signing_key: Callable[[], str],
        pace: Callable[[], Pace | None],
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
        self._tell = tell
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
        self._sleeps_until = 0.0
        """When `run` looks by itself what is to be done."""
        self._changed = asyncio.Event()
        """Set whenever a term begins or ends."""
        self._terms: set[asyncio.Task[None]] = set()
        self._broken: Exception | None = None

    async def run(self) -> None:
        """Until this incarnation retires. It raises what broke the core or a term: then nothing
        is known to be done as it should be, and only another incarnation helps."""
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

    def begin_look(self) -> bool:
        """With a heartbeat: one round trip and one turn of the loop do both."""
        return self._watches and self.election.begin_look(self._clock.boot_time())

    def looked(self, record: Record | None) -> None:
        self.handle(messages.LeaseRead(self._seen(record)))

    def look_failed(self) -> None:
        self.election.reading_failed(self._clock.boot_time())
        self._wake()

    @property
    def leads(self) -> bool:
        return self.election.leads(self._clock.boot_time())

    @property
    def is_led(self) -> bool:
        return self.election.is_led(self._clock.boot_time())

    async def next_term(self) -> Term | None:
        """The present term, or the next one; None when this incarnation has no more."""
        while self.term is None or not self.term.valid:
            if self.election.role is Role.RETIRED:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self.term

    async def resign(self, reason: str, successor: str = "") -> None:
        """Ends the term and returns when the lease is given up, or is lost; also one that this
        member has just asked for."""
        self.handle(messages.Resign(reason, successor))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3.0 * PATIENCE_S):
                while self.election.role in (*HOLDING, Role.STANDING):
                    self._changed.clear()
                    await self._changed.wait()

    def excuse(self, task: asyncio.Task[Any] | None) -> None:
        if self.term is not None:
            self.term.excuse(task)

    async def end(self) -> None:
        """The member stops."""
        await self.resign("stopped")
        await self.retire()

    def cancel_scopes(self) -> None:
        if self.term is not None:
            self.term.cancel_scopes()

    async def retire(self) -> None:
        """Acts no more and waits for the end of what was done under the last term."""
        try:
            self.handle(messages.Retire())
        finally:
            # Also if the core broke before it could say so.
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
            self._tell(effect)
        self._changed.set()
        self._mind_watch()

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> TaskToken:
        return self._tasks.start(name, work, on_error=self._break)

    def _break(self, error: Exception) -> None:
        self._broken = error
        self._wake()

    async def _sleep(self, seconds: float) -> None:
        """Until `_wake`, or for so long."""
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
        """Each look at the lease moves the deadline on: then nothing is to be done yet."""
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
            (record,) = await within(self._patience_s, self._urgent.get(keys.LEADER), "lease")
            seen = self._seen(record)
        except Exception as error:
            self._unanswered("lease_read_failed", error)
            self.look_failed()
            return
        self.handle(messages.LeaseRead(seen))

    def _seen(self, record: Record | None) -> messages.Seen | None:
        if record is None:
            return None
        lease = self._codec.read_shared(LeaseRecord, record.value, key=record.key)
        if lease is not None and lease.epoch != record.epoch:
            lease = None
        if lease is not None:
            offset = record.read_ms / 1000.0 - self._clock.boot_time()
            self.election.store_offset = offset
            self._sign_with(lease)
            self._on_lease(record, lease)
        return messages.Seen(record.version, record.epoch, lease)

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
        call = self._urgent.write(self._alive(), put, fence=fence)
        versions = await within(self._patience_s, call, "lease")
        self._sign_with(request.lease)
        if request.purpose is messages.Purpose.RENEW and self.leads:
            left_s = self.election.limit - self._clock.boot_time()
            self._on_renewed(left_s / self.election.lease_ttl)
        return versions[-1]

    def _unanswered(self, what: str, error: Exception) -> None:
        """A store that refuses is told by the heartbeats, as one that is away."""
        if not isinstance(error, StoreError):
            self._on_failure(what, error)

    def _sign_with(self, lease: LeaseRecord) -> None:
        """What the lease says is what all members do."""
        if lease.signing_key and self._codec.keyring is not None:
            self._codec.keyring.sign_with(lease.signing_key)

    @property
    def _patience_s(self) -> float:
        """Two more tries fit into the lease."""
        return self.election.lease_ttl / 4.0

    async def _find_rank(self) -> None:
        try:
            rank = await within(self._patience_s, self._rank(), "rank")
        except Exception as error:
            self._unanswered("rank_failed", error)
            rank = 1  # Nobody knows its place: all of them draw when to try.
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
        self._tell(messages.WriteFenced(epoch))
        self.handle(messages.Fenced(epoch))

    async def _run_term(self, term: Term) -> None:
        await self._runner.run(term)
        self.handle(messages.WorkEnded())

    # Watching.

    def _mind_watch(self) -> None:
        """Starts the watch when this member came close to the lead; it ends by itself."""
        running = self._watching is not None and self._watching.state is TaskState.RUNNING
        if self._watches and not running and self._should_watch():
            self._watching = self._tasks.start("lease watch", self._watch())

    def _should_watch(self) -> bool:
        role = self.election.role
        return role not in HOLDING and role is not Role.RETIRED and self._is_close()

    async def _watch(self) -> None:
        """Sees each renewal when it happens, so that a lost lease is noticed without delay;
        only the first few in the order of succession do."""
        while self._should_watch():
            seen = self.election.seen
            watch = Changed(keys.LEADER, "" if seen is None else seen.version)
            try:
                changed = await self._urgent.wait(watch, timeout_s=WATCH_SLICE_S)
            except StoreError:
                await self._clock.sleep(min(1.0, self.election.timing.heartbeat_interval))
                continue
            if changed:
                await self._look(seen)

    def _is_close(self) -> bool:
        election = self.election
        lease = election.seen_lease
        if lease is None or len(lease.standbys) < CLOSE_WATCHERS:
            return election.eligible
        return election.member_id in lease.standbys[:CLOSE_WATCHERS]

    async def _look(self, before: Any) -> None:
        """Waits until the change has been read, lest the watch spins."""
        self.election.look_soon(self._clock.boot_time())
        self._wake()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.election.timing.heartbeat_interval):
                while self.election.seen is before:
                    self._changed.clear()
                    await self._changed.wait()
