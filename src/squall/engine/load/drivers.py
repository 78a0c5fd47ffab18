"""Drivers of the load models: decide when users and iterations start. One per share.

closed      all users at once; each iterates until the end
iterations  the same, but each iteration takes one of N tickets
ramp        users come and go with the stages
open        planned starts on a 1 ms grid, whatever the target does; a start without a
            free user waits (it is late), after a second it is dropped
once        a workflow that is not a test: the DAG once per user

A driver adds and retires users through the share; it records nothing. Rate and users may be
changed while it runs; each share takes its part, split as in the plan.
Invariant of the open model: planned = made + dropped + waiting.

A driver plans nothing beyond its share's lease: after a standstill it asks for the lease before it
catches up, because another attempt may have planned the same time (R8).
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import Protocol

from squall.api.workflow import VU
from squall.engine.core_protocol import ShareSpec
from squall.engine.load.catch_up_limit import CatchUpLimit
from squall.engine.load.schedule import StartSchedule, UserSchedule, with_rate
from squall.stats.manifest import Profile
from squall.stats.reports import StartsDelta

TICK_S = 0.001
# A start within this of its plan is on time: timers of the event loop are accurate to 1 ms,
# and on a busy machine a few more pass before the process gets its turn.
LATE_AFTER_S = 0.005
DROP_AFTER_S = 1.0
# Users made per turn of the event loop, so that 10,000 of them do not block it.
START_BURST = 200


class DrivenShare(Protocol):
    """The part of a share that a driver uses."""

    @property
    def starts(self) -> StartsDelta: ...
    @property
    def user_count(self) -> int: ...
    @property
    def opening(self) -> int: ...
    @property
    def ending(self) -> bool: ...
    def may_go_on(self, now: float) -> bool:
        """False if the lease has ended; by then the share has stopped its driver."""
        ...

    def add_user(self) -> None: ...
    def retire_user(self) -> None: ...


class ClosedDriver:
    """Drives the models closed, iterations, once and ramp: the number of users."""

    def __init__(self, driven: DrivenShare, profile: Profile, share: int, shares: int) -> None:
        self._driven = driven
        self._is_ramp = profile.model == "ramp"
        self._counts = profile.model == "iterations"
        self._schedule = UserSchedule(profile, share, shares) if self._is_ramp else None
        self._began = 0.0
        self._handle: asyncio.TimerHandle | None = None
        # Users that an operator asked for during the run, instead of the plan's.
        self._level: int | None = None
        self._started = False

    @property
    def is_fixed(self) -> bool:
        """True if no user is ever added: the share is over when the last one leaves."""
        return not self._is_ramp and self._level is None

    @property
    def ends_with_users(self) -> bool:
        """True if the share is over when the last user leaves. Users of `iterations` leave when
        these are made, also if an operator changed the number of users."""
        return self.is_fixed or self._counts

    def start(self, began: float) -> None:
        self._began = began
        self._started = True
        if self._schedule is not None or self._level is not None:
            self._adjust()

    def set_level(self, users: int | None) -> None:
        """Sets the users of this share from now on; None returns to the plan."""
        if users == self._level:
            return
        self._level = users
        if self._started:
            self.stop()
            self._adjust()

    def _adjust(self) -> None:
        """Follows the stages. Changes that are due within 5 ms of each other are made together."""
        driven, schedule, level = self._driven, self._schedule, self._level
        if driven.ending or (schedule is None and level is None):
            return
        now = perf_counter()
        if not driven.may_go_on(now):
            return
        now_s = now - self._began
        wanted = schedule.target(now_s) if level is None and schedule is not None else level or 0
        for _ in range(min(wanted - driven.user_count, START_BURST)):
            driven.add_user()
        for _ in range(driven.user_count - wanted):
            driven.retire_user()
        if driven.user_count < wanted:
            delay_s = 0.0
        elif level is not None or schedule is None:
            return
        else:
            delay_s = min(max(schedule.next_change(now_s) - now_s, 0.005), 3600.0)
        self._handle = asyncio.get_running_loop().call_later(delay_s, self._adjust)

    def stop(self, at: float | None = None) -> None:
        """Ends all changes. The number of users has no plan that `at` would end."""
        if self._handle is not None:
            self._handle.cancel()


class OpenDriver:
    """Drives the models open and open-ramp: hands planned starts to users."""

    def __init__(
        self,
        driven: DrivenShare,
        profile: Profile,
        share: int,
        shares: int,
        users_max: int,
        *,
        paced: bool = False,
    ) -> None:
        """`paced` limits how fast late starts are made up for (`CatchUpLimit`)."""
        self._driven = driven
        self._profile = profile
        self._share = share
        self._shares = shares
        self._schedule = StartSchedule(profile, share, shares)
        self._pace: CatchUpLimit | None = None
        if paced:
            self._pace = CatchUpLimit(self._schedule.planned_until, end_s=profile.duration_s)
        # Starts per second of the whole workflow that an operator asked for during the run.
        self._rate: float | None = None
        self._paused = False
        self.users_max = users_max
        self._began = 0.0
        # Planned starts, as clock readings, for which no user was free.
        self._waiting: deque[float] = deque()
        # Users that wait for a start; the latest arrival is served first.
        self._idle: list[asyncio.Future[float | None]] = []
        self._handle: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._started = False
        self._stopped = False
        # Done when every planned start was made or dropped.
        self.on_done: asyncio.Future[None] = self._loop.create_future()

    @property
    def idle(self) -> int:
        return len(self._idle)

    def start(self, began: float, joined_s: float = 0.0) -> None:
        """With `joined_s` above zero, starts planned before it are neither made nor late."""
        self._began = began
        self._started = True
        if joined_s > 0.0 or self._rate is not None:
            self._plan_from(joined_s)
        self._tick()

    def set_rate(self, rate_per_s: float | None) -> None:
        """Sets the rate of the whole workflow from now on; None returns to the plan."""
        if rate_per_s == self._rate:
            return
        self._rate = rate_per_s
        if self._started and not self._stopped:
            # What was due until now belongs to the old plan.
            self._tick_now()
            self._plan_from(max(perf_counter() - self._began, 0.0))
            self._tick_now()

    def pause(self, paused: bool) -> None:
        """Starts that are planned during a pause are neither made nor missed."""
        self._paused = paused

    def _plan_from(self, now_s: float) -> None:
        profile = self._profile
        if self._rate is not None:
            profile = with_rate(profile, self._rate)
        self._schedule = StartSchedule(profile, self._share, self._shares, start_at_s=now_s)
        if self._pace is not None:
            self._pace.follow(self._schedule.planned_until, now_s, profile.duration_s)

    def stop(self, at: float | None = None) -> None:
        """Ends all starts: drops the waiting ones and releases idle users. The plan ends at the
        clock reading `at`, which is now or the end of a lease before."""
        if at is not None and self._started and not self._stopped:
            self._plan_until(at)
        self._stopped = True
        if self._handle is not None:
            self._handle.cancel()
        self._driven.starts.dropped += len(self._waiting)
        self._waiting.clear()
        self._release()
        self._finish()

    async def wait(self, vu: VU) -> float | None:
        """Waits for this user's next planned start and returns its clock reading; None if there
        are no more."""
        if self._waiting and (self._pace is None or self._may_begin(self._pace)):
            planned = self._waiting.popleft()
        elif self._stopped:
            return None
        else:
            future: asyncio.Future[float | None] = self._loop.create_future()
            self._idle.append(future)
            try:
                given = await future
            except asyncio.CancelledError:
                # Cancelled in the turn between `set_result` and its delivery: the start was
                # handed out and is lost, so it counts as dropped.
                if future.done() and not future.cancelled() and future.result() is not None:
                    self._driven.starts.dropped += 1
                    if self._pace is not None:
                        self._pace.returned()
                raise
            if given is None:
                return None
            planned = given
        starts = self._driven.starts
        starts.made += 1
        now = perf_counter()
        if self._pace is not None:
            self._pace.started(now - self._began)
        late_s = now - planned
        if late_s > LATE_AFTER_S:
            starts.late += 1
            if late_s > starts.late_max_s:
                starts.late_max_s = late_s
        return planned

    def _may_begin(self, pace: CatchUpLimit) -> bool:
        """Whether the first waiting start may begin now."""
        now = perf_counter()
        # After a pause of the process a user may come before the timer that drops old starts.
        self._drop_old(now)
        waiting = self._waiting
        return bool(waiting) and pace.spend(now - self._began, now - waiting[0])

    def give_back(self) -> None:
        """Takes back a start that its user could not use because a feed ran out of rows."""
        self._driven.starts.made -= 1
        self._driven.starts.dropped += 1

    def _tick_now(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._tick()

    def _tick(self) -> None:
        if self._stopped:
            return
        driven, waiting, idle = self._driven, self._waiting, self._idle
        now = perf_counter()
        if not driven.may_go_on(now):
            return
        due = self._schedule.take(now - self._began)
        if due and not self._paused:
            driven.starts.planned += len(due)
            began = self._began
            if self._pace is not None:
                # Every start queues: `_hand_out` asks the limit for each.
                waiting.extend(began + offset for offset in due)
                due = ()
            for offset in due:
                if idle and not waiting:
                    future = idle.pop()
                    if not future.done():
                        future.set_result(began + offset)
                        continue
                waiting.append(began + offset)
        if waiting:
            self._serve(now)
        next_s = self._schedule.next_time()
        if next_s == float("inf") and not waiting:
            self._finish()
            return
        delay_s = 0.005 if waiting else 1.0
        if next_s != float("inf"):
            delay_s = min(delay_s, next_s - (perf_counter() - self._began))
        self._handle = self._loop.call_later(max(delay_s, TICK_S), self._tick)

    def _plan_until(self, at: float) -> None:
        """Queues the starts that are due up to `at` and were not seen yet."""
        due = self._schedule.take(at - self._began)
        if not self._paused:
            self._driven.starts.planned += len(due)
            self._waiting.extend(self._began + offset for offset in due)

    def _serve(self, now: float) -> None:
        """Adds users for waiting starts, up to `users_max`, and drops starts after a second."""
        driven, waiting = self._driven, self._waiting
        if self._pace is not None:
            self._drop_old(now)
            self._hand_out(self._pace, now)
        resting = len(self._idle) if self._pace is not None else 0
        wanted = len(waiting) - resting - driven.opening
        missing = min(wanted, self.users_max - driven.user_count, START_BURST)
        for _ in range(missing):
            driven.add_user()
        self._drop_old(now)

    def _hand_out(self, pace: CatchUpLimit, now: float) -> None:
        waiting, idle = self._waiting, self._idle
        now_s = now - self._began
        while waiting and idle:
            if idle[-1].done():
                idle.pop()
            elif pace.spend(now_s, now - waiting[0]):
                idle.pop().set_result(waiting.popleft())
            else:
                break

    def _drop_old(self, now: float) -> None:
        waiting = self._waiting
        while waiting and now - waiting[0] > DROP_AFTER_S:
            waiting.popleft()
            self._driven.starts.dropped += 1

    def _release(self) -> None:
        for future in self._idle:
            if not future.done():
                future.set_result(None)
        self._idle.clear()

    def _finish(self) -> None:
        if not self.on_done.done():
            self.on_done.set_result(None)


def driver_of(driven: DrivenShare, spec: ShareSpec, *, paced: bool) -> OpenDriver | ClosedDriver:
    """The driver of a share's load model."""
    profile, share, shares = spec.profile, spec.share, spec.shares
    if profile.is_open:
        return OpenDriver(driven, profile, share, shares, spec.users_max, paced=paced)
    return ClosedDriver(driven, profile, share, shares)
