"""Blocking waits: until a matching signal, a time limit, or the death of the expected senders.

Open waits are stored, so that a caller that restarts can continue them, and removed when they end.
A wait continues while the store does not answer, and across boots of its member. A wait that ends
without its signal leaves the signal to a later wait. It must never end with a signal that was not
verified, exceed its limit, or cancel its caller.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from squall.coordination import events
from squall.coordination.errors import (
    BlockingTimeoutError,
    DeadCoordinatorError,
    StoreError,
    VersionConflict,
)
from squall.coordination.member_parts import MemberParts
from squall.coordination.members.health_lookup import health_of
from squall.coordination.options import Options
from squall.coordination.records import keys
from squall.coordination.records.schemas import Schema, WaitState, WaitStates
from squall.coordination.signals.matching import InboxEntry, SignalFilter
from squall.coordination.signals.receiver import Receiver
from squall.coordination.signals.step_retry import STEP_RETRY
from squall.coordination.signals.wait_limits import (
    SAMPLES_KEPT,
    adaptive_timeout,
    check_timeout,
    default_timeout,
    planned_timeout,
)
from squall.coordination.stores.interface import ABSENT, ANY, Put
from squall.runtime.process_identity import variable

# Waits that begin and end within this time are stored with one write.
STORE_PAUSE_S = 0.05
# The stored waits expire: a wait that lasts longer is written again in time.
REFRESH_S = keys.STATE_TTL_S / 2.0
# Several members may add a sample at once; a sample that loses five races is not worth more.
LEARN_TRIES = 5


class Durations(Schema, frozen=True, kw_only=True):
    """The last finished waits of one task type. The name of the class is part of the signature."""

    samples: tuple[float, ...] = ()


@dataclass(frozen=True)
class WaitTiming:
    """What the metrics of one wait need: its task type and when it began."""

    task_type: str
    begun: float


class BlockingWaits:
    """Runs the blocking waits of one member, and stores which are open."""

    def __init__(self, parts: MemberParts, receiver: Receiver, options: Options) -> None:
        self._parts = parts
        self._receiver = receiver
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
        """The time limit that applies. Refuses one that cannot be right."""
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
    ) -> InboxEntry:
        """Waits for one signal. With `is_part` it is one of several waits of one call; that call
        reports the timeout."""
        waited = WaitTiming(task_type, self._parts.clock.now())
        name = self._add_open_wait(correlation_id, types, senders, timeout_s)
        me = asyncio.current_task()
        gone: list[str] = []

        def on_gone(ids: Sequence[str], reason: str) -> None:
            gone.append(reason)
            if me is not None:
                me.cancel()

        # A call of several waits watches the senders once, for all of them.
        unwatch = self.watch((lambda: senders) if not is_part else tuple, on_gone)
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                entry = await self._take(SignalFilter(correlation_id, types, senders))
            # The signal is acknowledged: nothing may fail between here and the caller.
            self._count(waited, "signal")
            return entry
        except TimeoutError:
            if not limit.expired():
                raise
            # From here on the watch on the senders must not cancel this task any more.
            unwatch()
            if is_part:
                me_id, what = self._parts.member_id, correlation_id or ""
                raise BlockingTimeoutError(me_id, what, timeout_s, {}) from None
            raise await self._timed_out(correlation_id, senders, waited) from None
        except asyncio.CancelledError:
            # `on_gone` cancelled it, unless a cancellation is left after taking ours back:
            # then the caller was cancelled as well.
            if gone and me is not None and me.uncancel() == 0:
                self._count(waited, "dead")
                raise DeadCoordinatorError(", ".join(senders), gone[0]) from None
            raise
        finally:
            unwatch()
            self._open.pop(name, None)
            self._dirty.set()

    async def _take(self, wanted: SignalFilter) -> InboxEntry:
        """Takes and delivers. A signal that could not be delivered before the wait ended is left
        to a later wait; one that was refused is out of the way, and the next is taken."""
        receiver = self._receiver
        while True:
            entry = await receiver.consumers.take_one(wanted, delivers_first=True)
            try:
                if await receiver.deliver(entry):
                    return entry
            except BaseException:
                self._receiver.give_back(entry)
                raise

    async def _timed_out(
        self, correlation_id: str | None, senders: Sequence[str], waited: WaitTiming
    ) -> BlockingTimeoutError:
        took_s = self.count_timeout(waited, correlation_id or "")
        health = await self.health_of(senders)
        return BlockingTimeoutError(self._parts.member_id, correlation_id or "", took_s, health)

    async def health_of(self, senders: Sequence[str]) -> dict[str, str]:
        """The health of each, for the error of a call that ran out of time."""
        try:
            return dict(await health_of(self._parts, senders))
        except StoreError:
            return dict.fromkeys(senders, "unknown")

    def count_dead(self, waited: WaitTiming) -> None:
        """Counts a call whose senders are gone."""
        self._count(waited, "dead")

    def count_timeout(self, waited: WaitTiming, what: str) -> float:
        """Counts and reports a call that ran out of time. Returns how long it took."""
        took_s = self._parts.clock.now() - waited.begun
        self._count(waited, "timeout")
        metrics = self._parts.metrics
        metrics.counter(metrics.families.timeouts).add()
        self._parts.bus.emit(events.WaitTimedOut(correlation_id=what, waited=took_s))
        return took_s

    # The expected senders.

    def watch(
        self,
        missing: Callable[[], Sequence[str]],
        on_gone: Callable[[Sequence[str], str], None],
    ) -> Callable[[], None]:
        """Starts the watch on the senders that `missing` names. Call the result to end it."""
        if not missing():
            return lambda: None
        watching = self._watch_senders(missing, on_gone)
        token = self._parts.tasks.start("wait senders", watching)
        return lambda: self._parts.tasks.cancel(token)

    async def _watch_senders(
        self,
        missing: Callable[[], Sequence[str]],
        on_gone: Callable[[Sequence[str], str], None],
    ) -> None:
        """Calls `on_gone` when all missing senders are dead or have left, and none came back
        within `dead_after`: a sender that restarts gets the time to continue."""
        clock, timing = self._parts.clock, self._parts.timing
        since: dict[str, float] = {}
        while True:
            senders = missing()
            try:
                health = await health_of(self._parts, senders)
            except StoreError:
                health = {}
            now = clock.now()
            gone = [each for each, state in health.items() if state in ("dead", "left")]
            since = {each: since.get(each, now) for each in gone}
            if senders and all(now - since.get(each, now) >= timing.dead_after for each in senders):
                states = ", ".join(sorted({health[each] for each in senders}))
                on_gone(senders, f"{states}, and it did not come back")
                return
            await clock.sleep(timing.monitor_interval)

    # Stored waits.

    def _add_open_wait(
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
            # Two waits for one correlation id: the end of the first must not remove the second.
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

    async def store_open_waits(self) -> None:
        """Stores the open waits whenever they change, all in one record. Those of a transient
        member are not stored: it has no next boot that would continue them."""
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
            # While the member is isolated, another process may have its id and its own waits.
            await self._receiver.retry.until_not_isolated()
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
                await self._parts.clock.sleep(STEP_RETRY.first_s)
            await self._parts.clock.sleep(STORE_PAUSE_S)

    async def stored_waits(self) -> tuple[WaitState, ...]:
        """What this member waited for before it was restarted."""
        (found,) = await self._parts.patient.get(keys.state(self._parts.member_id))
        states = (
            None
            if found is None
            else self._parts.codec.read(WaitStates, found.value, key=found.key)
        )
        return () if states is None else tuple(states.waits.values())

    # Durations that later limits are based on.

    def _count(self, waited: WaitTiming, outcome: str) -> None:
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
        """Adds a duration to the stored ones. Conditional, because all members share the record."""
        key = keys.durations(task_type)
        for _ in range(LEARN_TRIES):
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
