"""Blocking waits: until a signal that matches, a limit, or the death of who should send it.

A wait is written down before it begins, so that a restarted caller can go on with it, and
taken out when it ends. A wait goes on while the store does not answer, and from one incarnation
of its member to the next. One that ends without its signal leaves it to a later one. It must never
end by a signal that is not verified, outlive its limit, nor cancel its caller.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from squall.coordination import events, keys
from squall.coordination.assembly import Assembly
from squall.coordination.errors import (
    BlockingTimeoutError,
    DeadCoordinatorError,
    StoreError,
    VersionConflict,
)
from squall.coordination.inbox import Entry, Wanted
from squall.coordination.mailbox import Mailbox
from squall.coordination.member_health import health_of
from squall.coordination.options import Options
from squall.coordination.records import Schema, WaitState, WaitStates
from squall.coordination.stores.interface import ABSENT, ANY, Put
from squall.coordination.timeouts import (
    SAMPLES_KEPT,
    adaptive_timeout,
    check_timeout,
    default_timeout,
    planned_timeout,
)
from squall.runtime.identity import variable

WRITE_DOWN_S = 0.05
REFRESH_S = keys.STATE_TTL_S / 2.0
CLAIM_RETRIES = 5


class Durations(Schema, frozen=True, kw_only=True):
    """The last finished waits of one kind of task."""

    samples: tuple[float, ...] = ()


@dataclass(frozen=True)
class Waited:
    """How one wait is counted."""

    task_type: str
    begun: float


class Waiter:
    """Of one member."""

    def __init__(self, parts: Assembly, mailbox: Mailbox, options: Options) -> None:
        self._parts = parts
        self._mailbox = mailbox
        self._options = options
        self._default_s = default_timeout(options.environment, variable("BLOCKING_TIMEOUT"))
        self._open: dict[str, WaitState] = {}
        self._dirty = asyncio.Event()
        self._next = 0

    @property
    def open_count(self) -> int:
        return len(self._open)

    async def limit_of(
        self,
        timeout_s: float | None,
        expected_duration: float | None,
        planned_duration: float | None,
        task_type: str,
    ) -> float:
        """Which limit applies; refuses one that cannot be right."""
        planned = planned_duration is not None
        if timeout_s is None:
            if planned_duration is not None:
                timeout_s = planned_timeout(planned_duration)
            elif expected_duration is not None:
                timeout_s = 2.0 * expected_duration
            elif task_type:
                timeout_s = adaptive_timeout(await self._samples(task_type), self._default_s)
            else:
                timeout_s = self._default_s
        if expected_duration is not None and timeout_s < 2.0 * expected_duration:
            self._parts.log.warning(
                "timeout_is_tight", timeout_s=timeout_s, expected_s=expected_duration
            )
        check_timeout(
            timeout_s,
            max_timeout=self._options.max_timeout,
            expected_duration=expected_duration,
            planned=planned,
        )
        return timeout_s

    async def wait(
        self,
        correlation_id: str | None,
        types: Collection[str],
        senders: Sequence[str],
        timeout_s: float,
        task_type: str,
        *,
        is_part: bool = False,
    ) -> Entry:
        """With `is_part` it is one of several waits of one call, whose limit is told by that."""
        waited = Waited(task_type, self._parts.clock.now())
        name = self._write_down(correlation_id, types, senders, timeout_s)
        me = asyncio.current_task()
        gone: list[str] = []
        unwatch = self._watch(senders, gone, me)
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                entry = await self._take(Wanted(correlation_id, types, senders))
            # It is acknowledged: from here on nothing may come between it and its taker.
            self._count(waited, "signal")
            return entry
        except TimeoutError:
            if not limit.expired():
                raise
            # Nothing but its caller may cancel what is left to do.
            unwatch()
            if is_part:
                me_id, what = self._parts.member_id, correlation_id or ""
                raise BlockingTimeoutError(me_id, what, timeout_s, {}) from None
            raise await self._timed_out(correlation_id, senders, waited) from None
        except asyncio.CancelledError:
            if gone and me is not None and me.uncancel() == 0:
                self._count(waited, "dead")
                raise DeadCoordinatorError(", ".join(senders), gone[0]) from None
            raise
        finally:
            unwatch()
            self._open.pop(name, None)
            self._dirty.set()

    async def _take(self, wanted: Wanted) -> Entry:
        """What could not be delivered before the wait ended is left to a later one."""
        mailbox = self._mailbox
        while True:
            entry = await mailbox.takers.take_one(wanted, delivers_first=True)
            try:
                if await mailbox.deliver(entry):
                    return entry
            except BaseException:
                self._mailbox.give_back(entry)
                raise

    async def _timed_out(
        self, correlation_id: str | None, senders: Sequence[str], waited: Waited
    ) -> BlockingTimeoutError:
        took_s = self.count_timeout(waited, correlation_id or "")
        try:
            health = await health_of(self._parts, senders)
        except StoreError:
            health = dict.fromkeys(senders, "unknown")
        return BlockingTimeoutError(self._parts.member_id, correlation_id or "", took_s, health)

    def count_timeout(self, waited: Waited, what: str) -> float:
        """Once for each call that ran out of time; how long it took."""
        took_s = self._parts.clock.now() - waited.begun
        self._count(waited, "timeout")
        metrics = self._parts.metrics
        metrics.counter(metrics.families.timeouts).add()
        self._parts.bus.emit(events.WaitTimedOut(correlation_id=what, waited=took_s))
        return took_s

    # Who should send it.

    def _watch(
        self, senders: Sequence[str], gone: list[str], waiting: asyncio.Task[object] | None
    ) -> Callable[[], None]:
        """The result ends it; then it cancels nothing any more."""
        if not senders or waiting is None:
            return lambda: None
        watching = self._watch_senders(senders, gone, waiting)
        token = self._parts.tasks.start("wait senders", watching)
        return lambda: self._parts.tasks.cancel(token)

    async def _watch_senders(
        self, senders: Sequence[str], gone: list[str], waiting: asyncio.Task[object]
    ) -> None:
        """Cancels the wait when all are dead or left and none came back in `dead_after`."""
        clock, timing = self._parts.clock, self._parts.timing
        since: float | None = None
        while True:
            try:
                health = await health_of(self._parts, senders)
            except StoreError:
                health = {}
            if health and all(state in ("dead", "left") for state in health.values()):
                since = since if since is not None else clock.now()
                if clock.now() - since >= timing.dead_after:
                    gone.append(f"{', '.join(set(health.values()))}, and no successor came")
                    waiting.cancel()
                    return
            else:
                since = None
            await clock.sleep(timing.monitor_interval)

    # What is written down.

    def _write_down(
        self,
        correlation_id: str | None,
        types: Collection[str],
        senders: Sequence[str],
        timeout_s: float,
    ) -> str:
        self._next += 1
        now = self._parts.store_time()
        name = correlation_id or f"any-{self._next}"
        if name in self._open:
            # Two waits for one thing: the end of the first must not hide the second.
            name = f"{name}.{self._next}"
        self._open[name] = WaitState(
            member_id=self._parts.member_id,
            correlation_id=correlation_id or "",
            awaiting=tuple(senders),
            signal_types=tuple(types),
            started_at=now,
            deadline=now + timeout_s,
        )
        self._dirty.set()
        return name

    async def keep(self) -> None:
        """Writes the open waits down, all at once and not more often than needed. Nobody comes
        back for those of a transient member."""
        if self._options.transient:
            return
        key = keys.state(self._parts.member_id)
        while True:
            try:
                async with asyncio.timeout(REFRESH_S):
                    await self._dirty.wait()
            except TimeoutError:
                if not self._open:
                    continue
            # Another process with this id may have waits of its own.
            await self._mailbox.patience.until_fit()
            self._dirty.clear()
            states = WaitStates(waits=dict(self._open))
            put = Put(
                key,
                self._parts.codec.encode(states),
                expect=ANY,
                ttl_s=keys.STATE_TTL_S,
                silent=True,
            )
            try:
                await self._parts.urgent.write(put)
            except StoreError:
                self._dirty.set()
                await self._parts.clock.sleep(1.0)
            await self._parts.clock.sleep(WRITE_DOWN_S)

    async def written_down(self) -> tuple[WaitState, ...]:
        """What this id waited for when it was last alive."""
        (found,) = await self._parts.patient.get(keys.state(self._parts.member_id))
        states = (
            None
            if found is None
            else self._parts.codec.read(WaitStates, found.value, key=found.key)
        )
        return () if states is None else tuple(states.waits.values())

    # What is learnt.

    def _count(self, waited: Waited, outcome: str) -> None:
        took_s = self._parts.clock.now() - waited.begun
        metrics = self._parts.metrics
        metrics.histogram(metrics.families.blocking_s, waited.task_type or "none", outcome).observe(
            took_s
        )
        if waited.task_type and outcome != "dead":
            self._parts.tasks.start("wait learnt", self._learn(waited.task_type, took_s))

    async def _samples(self, task_type: str) -> tuple[float, ...]:
        (found,) = await self._parts.patient.get(keys.durations(task_type))
        known = (
            None if found is None else self._parts.codec.read(Durations, found.value, key=found.key)
        )
        return () if known is None else known.samples

    async def _learn(self, task_type: str, took_s: float) -> None:
        with contextlib.suppress(StoreError):
            await self._add_sample(task_type, took_s)

    async def _add_sample(self, task_type: str, took_s: float) -> None:
        key = keys.durations(task_type)
        for _ in range(CLAIM_RETRIES):
            (found,) = await self._parts.patient.get(key)
            known = (
                None
                if found is None
                else self._parts.codec.read(Durations, found.value, key=found.key)
            )
            samples = (*(() if known is None else known.samples), round(took_s, 3))
            durations = Durations(samples=samples[-SAMPLES_KEPT:])
            put = Put(
                key,
                self._parts.codec.encode(
                    durations, over=None if found is None or known is None else found.value
                ),
                expect=ABSENT if found is None else found.version,
                ttl_s=keys.TOMBSTONE_TTL_S,
                silent=True,
            )
            try:
                await self._parts.patient.write(put)
            except VersionConflict:
                continue
            return
