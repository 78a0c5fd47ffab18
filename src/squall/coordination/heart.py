"""Beats once per interval, whatever else the member does.

Beats begin at moments that are the same for all members of a machine: those that share a
connection then leave in one packet and are answered in one.

A cycle ends with a beat that reached the store, or at the local limit of a lease; cycles
never overlap and missed ones are not made up. A beat without an answer for half an interval is
sent once more, on a new connection where there are any, and then waited for: a store that is
slow must not look like one that is away. It tells when a cycle fell behind, when
nothing reached the store for `heartbeat_ttl`, and when this incarnation must end. Whatever else
keeps a beat from the store is a beat that failed: the next one is made all the same. It must
never wait for the circuit of the store, nor for user code.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from squall.coordination import keys
from squall.coordination.calls import within
from squall.coordination.errors import (
    CoordinationError,
    MemberFencedError,
    StateLostError,
)
from squall.coordination.moments import next_moment, reach_by
from squall.coordination.pulse import Pulse
from squall.coordination.rolling import Contention, Ring
from squall.coordination.stores.interface import Record
from squall.coordination.timing import Timing
from squall.runtime.interfaces import Clock

RETRY_S = 1.0
PHASE_SPREAD = 0.1


class LeaseLook(Protocol):
    """Whoever wants to know the lease: a beat reads it in the same round trip."""

    def begin_look(self) -> bool:
        """Whether it is wanted now; then one of the others is called."""
        ...

    def looked(self, record: Record | None) -> None: ...
    def look_failed(self) -> None: ...


class Heart:
    """Of one incarnation; `run` returns the reason why it ends."""

    def __init__(
        self,
        pulse: Pulse,
        timing: Timing,
        clock: Clock,
        random: Random,
        contention: Contention,
        *,
        lease: LeaseLook,
        on_time: Callable[[int, float, float], None],
        on_beat: Callable[[float, Exception | None], None],
        on_contention: Callable[[float, float], None],
        on_isolated: Callable[[float], None],
    ) -> None:
        self.latencies = Ring()
        self._is_over = False
        self._is_told = False
        """That nothing reached the store."""
        self.reached_at = clock.now()
        """When the store was last known to answer."""
        self._pulse = pulse
        self.timing = timing
        self._clock = clock
        self._random = random
        self._contention = contention
        self._lease = lease
        self._on_time = on_time
        self._on_beat = on_beat
        self._on_contention = on_contention
        self._on_isolated = on_isolated

    @property
    def isolated(self) -> bool:
        """Nothing reached the store for `heartbeat_ttl`, or this incarnation has ended. By the
        clock and not by the last beat that failed: a process that was stopped for long knows it
        in the moment in which it wakes."""
        return self._is_over or self._silent_s > self.timing.heartbeat_ttl

    @property
    def _silent_s(self) -> float:
        return self._clock.now() - self.reached_at

    async def run(self) -> CoordinationError:
        """Returns `MemberFencedError` or `StateLostError`: only a new incarnation helps."""
        spread = self._random.uniform(1.0 - PHASE_SPREAD, 1.0)
        interval = self.timing.heartbeat_interval
        due = next_moment(self._clock.now() + interval * spread, interval)
        reach = reach_by(self._clock)
        while True:
            await reach(due)
            begun = self._clock.now()
            try:
                reached = await self._cycle()
            except (MemberFencedError, StateLostError) as error:
                self.end()
                return error
            ended = self._clock.now()
            self._note(reached, begun, ended, late_s=begun - due)
            interval = self.timing.heartbeat_interval
            due = next_moment(max(due + interval, ended), interval)

    def end(self) -> None:
        """This incarnation takes no new work any more."""
        self._is_over = True

    async def _cycle(self) -> bool:
        interval = self.timing.heartbeat_interval
        deadline = self._clock.now() + self.timing.local_limit
        again = False
        while True:
            looks, begun = self._lease.begin_look(), self._clock.now()
            limit_s = max(deadline - begun, interval / 2.0) if again else interval / 2.0
            try:
                beat = self._pulse.beat(*((keys.LEADER,) if looks else ()), again=again)
                found = await within(limit_s, beat, "heartbeat")
                if looks:
                    self._looked(found[0], begun)
                return True
            except Exception as error:
                if looks:
                    self._lease.look_failed()
                if isinstance(error, (MemberFencedError, StateLostError)):
                    raise
                is_late = self._clock.now() - begun >= limit_s
                again = is_late and not again and self._clock.now() < deadline
                if again:
                    continue
                self._on_beat(0.0, error)
                self._look_isolated()
                pause_s = min(RETRY_S, interval / 3.0)
                if self._clock.now() + pause_s >= deadline:
                    return False
                await self._clock.sleep(pause_s)

    def _looked(self, lease: Record | None, begun: float) -> None:
        if lease is not None:
            self._on_time(lease.read_ms, begun, self._clock.now())
        self._lease.looked(lease)

    def _note(self, reached: bool, begun: float, ended: float, late_s: float) -> None:
        took_s = ended - begun
        if reached:
            self.reached_at = ended
            self._is_told = False
            self.latencies.add(took_s)
            self._on_beat(took_s, None)
        ratio = self._contention.cycle(took_s, late_s, None, ended)
        if ratio is not None:
            self._on_contention(max(took_s, late_s), ratio)

    def _look_isolated(self) -> None:
        if self.isolated and not self._is_told:
            self._is_told = True
            self._on_isolated(self._silent_s)
