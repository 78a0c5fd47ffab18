"""Sends one heartbeat per interval, whatever else the member does.

Beats begin at ticks that are the same for all members of a process (`shared_timer`): those that
share a connection leave in one packet and are answered in one.

A cycle ends with a beat that reached the store, or at the local limit of a lease. Cycles never
overlap, and missed ones are not made up. A beat without an answer for half an interval is sent once
more, on a new connection where the store has connections, and then awaited: a slow store must not
look like one that is away. Any other error is one failed beat and does not end the loop. The loop
reports a late cycle, isolation (no beat for `heartbeat_ttl`) and the end of the boot. It waits
neither for the store's circuit breaker nor for user code.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from squall.coordination.errors import (
    CoordinationError,
    MemberFencedError,
    StateLostError,
)
from squall.coordination.member_stats import ContentionDetector, RecentValues
from squall.coordination.members.registration import Registration
from squall.coordination.members.shared_timer import next_tick, shared_timer
from squall.coordination.records import keys
from squall.coordination.stores.call_timeout import within
from squall.coordination.stores.interface import Record
from squall.coordination.timing import Timing
from squall.runtime.interfaces import Clock

# The first beat comes up to this part of an interval early: members that start together spread.
PHASE_SPREAD = 0.1


class LeaseObserver(Protocol):
    """Receives the lease record, which a beat reads in the same round trip."""

    def begin_lease_read(self) -> bool:
        """Whether the next beat shall read it. If so, one of the others follows."""
        ...

    def lease_was_read(self, record: Record | None) -> None: ...
    def lease_read_failed(self) -> None: ...


class HeartbeatLoop:
    """Sends the heartbeats of one boot; `run` returns why the boot must end."""

    def __init__(
        self,
        registration: Registration,
        timing: Timing,
        clock: Clock,
        random: Random,
        contention: ContentionDetector,
        *,
        lease: LeaseObserver,
        on_store_time: Callable[[int, float, float], None],
        on_beat: Callable[[float, Exception | None], None],
        on_contention: Callable[[float, float], None],
        on_isolated: Callable[[float], None],
    ) -> None:
        self.latencies = RecentValues()
        self._is_over = False
        # Whether this isolation was reported.
        self._is_reported = False
        # When the last beat reached the store.
        self.reached_at = clock.now()
        self._registration = registration
        self.timing = timing
        self._clock = clock
        self._random = random
        self._contention = contention
        self._lease = lease
        self._on_time = on_store_time
        self._on_beat = on_beat
        self._on_contention = on_contention
        self._on_isolated = on_isolated

    @property
    def isolated(self) -> bool:
        """No beat reached the store for `heartbeat_ttl`, or this boot has ended. Computed from the
        clock, not set by a failed beat: a process that was suspended knows it when it wakes."""
        return self._is_over or self._silent_s > self.timing.heartbeat_ttl

    @property
    def _silent_s(self) -> float:
        return self._clock.now() - self.reached_at

    async def run(self) -> CoordinationError:
        """Runs until only a new boot helps; returns `MemberFencedError` or `StateLostError`."""
        spread = self._random.uniform(1.0 - PHASE_SPREAD, 1.0)
        interval = self.timing.heartbeat_interval
        due = next_tick(self._clock.now() + interval * spread, interval)
        timer = shared_timer(self._clock)
        while True:
            await timer.sleep_until(due)
            begun = self._clock.now()
            try:
                reached = await self._cycle()
            except (MemberFencedError, StateLostError) as error:
                self.end()
                return error
            ended = self._clock.now()
            self._note(reached, begun, ended, late_s=begun - due)
            interval = self.timing.heartbeat_interval
            due = next_tick(max(due + interval, ended), interval)

    def end(self) -> None:
        """The boot has ended: the member counts as isolated and takes no new work."""
        self._is_over = True

    async def _cycle(self) -> bool:
        """Sends one beat, with retries; whether it reached the store."""
        interval = self.timing.heartbeat_interval
        deadline = self._clock.now() + self.timing.local_limit
        again = False
        while True:
            reads_lease, begun = self._lease.begin_lease_read(), self._clock.now()
            limit_s = max(deadline - begun, interval / 2.0) if again else interval / 2.0
            try:
                beat = self._registration.beat(
                    *((keys.LEADER,) if reads_lease else ()), again=again
                )
                found = await within(limit_s, beat, "heartbeat")
                if reads_lease:
                    self._lease_was_read(found[0], begun)
                return True
            except Exception as error:
                if reads_lease:
                    self._lease.lease_read_failed()
                if isinstance(error, (MemberFencedError, StateLostError)):
                    raise
                # Without an answer in time the same beat is sent once more. An error is retried
                # with a new one.
                is_late = self._clock.now() - begun >= limit_s
                again = is_late and not again and self._clock.now() < deadline
                if again:
                    continue
                self._on_beat(0.0, error)
                self._report_isolation()
                pause_s = self.timing.retry.delay_s(1)
                if self._clock.now() + pause_s >= deadline:
                    return False
                await self._clock.sleep(pause_s)

    def _lease_was_read(self, lease: Record | None, begun: float) -> None:
        if lease is not None:
            self._on_time(lease.read_ms, begun, self._clock.now())
        self._lease.lease_was_read(lease)

    def _note(self, reached: bool, begun: float, ended: float, late_s: float) -> None:
        took_s = ended - begun
        if reached:
            self.reached_at = ended
            self._is_reported = False
            self.latencies.add(took_s)
            self._on_beat(took_s, None)
        ratio = self._contention.cycle(took_s, late_s, None, ended)
        if ratio is not None:
            self._on_contention(max(took_s, late_s), ratio)

    def _report_isolation(self) -> None:
        if self.isolated and not self._is_reported:
            self._is_reported = True
            self._on_isolated(self._silent_s)
