"""Runs one core's share of a workflow: prepares it, runs and stops its users, reports.

States: prepared -> running -> ending (no new iterations; running ones have a grace
time) -> ended. A share ends exactly once, whatever ends it: its time, its tickets, its
feed, or a request to stop, even during preparation. What still runs after the grace time
is cancelled and counted as interrupted.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from math import inf
from time import perf_counter
from types import CoroutineType
from typing import Any

from squall.api.feeds import FeedExhausted
from squall.api.http import RESPONSES
from squall.api.protocols.grpc import GRPCResponse
from squall.clients.http import HTTPShared
from squall.clients.http.client import has_answer
from squall.engine.core_protocol import Adjust, Ended, ShareSpec
from squall.engine.load.drivers import START_BURST, ClosedDriver, OpenDriver, driver_of
from squall.engine.load.share_specs import share_of_users
from squall.engine.measure.recorder import Recorder
from squall.engine.plan.program import Program
from squall.engine.plan.workflow_plan import WorkflowPlan, slots_of, step_places
from squall.engine.users import resume_point
from squall.engine.users.check_callbacks import CheckCallbacks
from squall.engine.users.context import (
    Context,
    decoded_context,
    encoded_context,
    received_arguments,
)
from squall.engine.users.exchange_report import watched
from squall.engine.users.generated_loop import UserLoop, generate_loop, run_together
from squall.engine.users.provided_values import provided_values
from squall.engine.users.step_failures import StepFailures
from squall.engine.users.think_time import Pause, ThinkTime
from squall.engine.users.virtual_user import (
    EARLY_MIN,
    END_ACTIONS_S,
    Prepared,
    User,
    UserFactory,
    end_users,
    prepare_arguments,
    start_clients,
)
from squall.stats.reports import ErrorSample, ExchangeReport, StartsDelta, WindowReport

# Bounds the connections and log-ins that the users make at the same time before the start.
OPENING_AT_ONCE = 256
# A share that ends this soon after a full second reports its rest with that second.
END_SLACK_S = 0.05


class Share:
    """Runs the users of one `ShareSpec` and hands out their reports."""

    def __init__(
        self,
        program: Program,
        spec: ShareSpec,
        http: HTTPShared,
        *,
        on_report: Callable[[WindowReport], None],
        on_error: Callable[[ErrorSample], None],
        paced: bool = False,
    ) -> None:
        """`paced` limits how fast an open model catches up with late starts (`CatchUpLimit`)."""
        self.spec = spec
        self.plan: WorkflowPlan = program.plans[spec.workflow]
        self.http = http
        self._program = program
        self._on_report = on_report
        # Receives the results of the author's own protocols, for `--once`.
        self.on_exchange: Callable[[ExchangeReport], None] | None = None
        is_open = spec.profile.is_open
        self.recorder = Recorder(
            spec.workflow, spec.share, is_open=is_open, http=http, on_error=on_error
        )
        http.on_named = self.recorder.record_named
        http.siblings = any(len(slots_of(layer)) > 1 for layer in self.plan.layers)
        self.failures = StepFailures(self.recorder, step_places(self.plan))
        self._random = resume_point.random_of(spec)
        self._callbacks = CheckCallbacks(self.recorder, self.failures, self._random)
        self._load_pause = Pause()
        self._cut = ""
        # Nothing is planned or reported beyond this clock reading: the end of its lease.
        self._cut_at = inf
        self._interrupted = 0
        self._users: dict[int, User] = {}
        # Retired users that finish their iteration. A user is in one of the three at a time.
        self._leaving: dict[int, User] = {}
        # Opened before the clock starts, not looping yet.
        self._parked: list[User] = []
        self._think_time = ThinkTime(spec.profile, self._random)
        self._notes: list[tuple[str, str]] = []
        self._warnings: list[str] = []
        self._last_error = ""
        self._last_context: Context = {}
        self._crash: BaseException | None = None
        self._window = 0
        self._driver = driver_of(self, spec, paced=paced)
        self._loop: UserLoop
        self._factory: UserFactory
        self._preparing: asyncio.Timeout | None = None
        self._prepared = False
        # A stop arrived during preparation.
        self._halted = False
        # Users that could not open count as users, so that the driver does not replace them: a
        # target that refuses log-ins would otherwise be asked as fast as it can refuse.
        self._unstarted = 0
        self._over = asyncio.get_running_loop().create_future()
        self._end_handle: asyncio.TimerHandle | None = None
        self._finisher: asyncio.Task[None] | None = None
        self._at_once = False
        self._overrun = False
        self.opening = 0
        self.ending = False
        self.ended_at = 0.0

    # What a driver needs.

    @property
    def starts(self) -> StartsDelta:
        return self.recorder.starts

    @property
    def user_count(self) -> int:
        """Users that exist, plus those that could not open."""
        return len(self._users) + self._unstarted

    def may_go_on(self, now: float) -> bool:
        """Asks for the lease as a request does, so that a standstill ends it here, too."""
        return now <= self.http.limit[0] or self.http.allows(now)

    def add_user(self) -> None:
        """Adds a user to a running share. It opens first, unless a parked one is left."""
        is_open = bool(self._parked)
        user = self._parked.pop() if is_open else self._factory.make()
        self._admit(user, self._live(user, is_open=is_open))

    def retire_user(self) -> None:
        """Lets the youngest user leave after its iteration."""
        if self._unstarted:
            self._unstarted -= 1
            return
        for user in reversed(self._users.values()):
            if not user.vu.stop:
                self._users.pop(user.vu.id)
                self._factory.free_place(user)
                user.vu.stop = True
                self._think_time.wake(user.vu)
                self._leaving[user.vu.id] = user
                self._load_pause.wake()
                return

    # Life of the share.

    async def prepare(self) -> None:
        """Does everything that precedes the start: arguments, resources, the first users."""
        try:
            # Without a limit of its own; `stop` sets one, which ends hooks that hang.
            async with asyncio.timeout(0.0 if self._halted else None) as self._preparing:
                await self._prepare()
        except TimeoutError:
            if not self._halted:
                raise
        finally:
            self._preparing, self._prepared = None, True
        if self._halted:
            self._end()

    def go(self, at: float, joined_s: float = 0.0) -> None:
        """Starts at `at`, a clock reading that all processes share. With `joined_s` the share joins
        a workflow that has already run that long since `at`."""
        self.recorder.epoch = at
        self._window = int(joined_s)
        delay_s = max(0.0, at + joined_s - perf_counter())
        asyncio.get_running_loop().call_later(delay_s, self._begin, at, joined_s)

    def adjust(self, wanted: Adjust) -> None:
        """Changes the load from now on, to this share's part of what the workflow should have."""
        spec, driver, model = self.spec, self._driver, self.spec.profile.model
        if model == "once" or self.ending:
            return
        part = share_of_users(spec, wanted.vus or 0)
        if isinstance(driver, OpenDriver):
            driver.set_rate(wanted.rate_per_s)
            driver.pause(wanted.paused)
            driver.users_max = spec.users_max if wanted.vus is None else max(part, 1)
            return
        self._pause(wanted.paused)
        plans = None if model == "ramp" or driver.is_fixed else spec.users
        driver.set_level(plans if wanted.vus is None else part)

    def cut(self, why: str, at: float = inf) -> None:
        """Ends at once: cancels everything; the last reports hold what was done until then. It
        ended at the clock reading `at` if that is over, whenever the process notices."""
        self._cut, self._cut_at = self._cut or why, min(self._cut_at, at)
        self.stop(now=True)

    def give_up(self, why: str) -> Ended:
        """Ends in this very turn, without users whose tasks ignore their cancellation. Their later
        requests are withheld: the owner has closed the lease."""
        self._cut = self._cut or why
        self.stop(now=True)
        self._end()
        for user in [*self._users.values(), *self._leaving.values()]:
            if user.task is not None:
                user.task.cancel()
        self._users.clear()
        self._leaving.clear()
        self._check_over()
        if self.recorder.has_news:
            self._send(self._window)
        return self._ended()

    def elapsed_s(self, now: float) -> float:
        """The time of the workflow, which does not go on beyond a lease."""
        return max(min(now, self._cut_at) - self.recorder.epoch, 0.0)

    def _pause(self, paused: bool) -> None:
        if paused == self._load_pause.paused or self.ending:
            return
        self._load_pause.paused = paused
        for user in self._users.values():
            user.vu.stop = paused
        if paused:
            # They notice the flag and wait in `_may_loop` instead.
            self._think_time.wake_all()
        else:
            self._load_pause.wake()

    async def wait(self) -> Ended:
        """Waits for the end of the share, after its last report, and says how it ended."""
        await asyncio.shield(self._over)
        values, provided, error = await self._hand_over()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_ACTIONS_S):
                await self._factory.close_process()
        await self.http.close()
        if self.recorder.has_news:
            # Hooks that provide values ran, or tasks that the author left behind made requests.
            self._send(self._window)
        if self._crash is not None:
            raise self._crash
        ended = self._ended()
        ended.values, ended.provided, ended.error = values, provided, error
        return ended

    def _ended(self) -> Ended:
        rows = resume_point.unfinished_rows(self.plan.feeds, self._interrupted)
        if rows and (self._cut or self._at_once):
            self._notes.append(("DEGRADED", f"{self.plan.name}: {rows}"))
        return Ended(
            workflow=self.plan.name,
            share=self.spec.share,
            elapsed_s=self.elapsed_s(self.ended_at),
            notes=self._notes,
            warnings=self._warnings,
            cut=self._cut,
        )

    def stop(self, *, now: bool) -> None:
        """Ends the share: gracefully, or with `now` by cancelling what runs."""
        self._at_once = self._at_once or now
        if not self._prepared:
            self._halted = True
            if self._preparing is not None and not self._preparing.expired():
                grace_s = 0.0 if now else self.spec.profile.grace_s
                self._preparing.reschedule(asyncio.get_running_loop().time() + grace_s)
            return
        if now:
            for user in [*self._users.values(), *self._leaving.values()]:
                if user.task is not None:
                    user.task.cancel()
        self._end()

    def fold(self) -> None:
        self.recorder.fold()
        busy = len(self._users) - self._think_time.count
        if isinstance(self._driver, OpenDriver):
            busy -= self._driver.idle
        self.recorder.busy = max(busy, 0)
        self.recorder.busy_max = max(self.recorder.busy_max, self.recorder.busy)

    def beat(self, now: float) -> None:
        """Called every few ms: ends calls whose time is up, and sends the report of a window once
        its second is over."""
        self.http.sweep(now)
        window = int(self.elapsed_s(now)) - 1
        if window >= self._window and not self._over.done():
            self._window = window + 1
            self._send(window)

    # Preparation.

    async def _prepare(self) -> None:
        spec, plan = self.spec, self.plan
        prepared: Prepared = {}
        context = decoded_context(spec.values)
        setattr(plan.workflow, "__squall_received__", received_arguments(spec.received))  # noqa: B010
        self._callbacks.adopt(plan)
        loaded = self._program.rows[plan.name]
        rows = resume_point.iteration_rows(spec, plan.feeds, loaded, self._random)
        self._factory = UserFactory(
            plan,
            prepared,
            self.http,
            self.recorder,
            share=spec.share,
            shares=spec.shares,
            seed=spec.seed,
            first_id=spec.first_id,
            id_step=spec.id_step,
            context=context,
            rows=resume_point.user_rows(spec, plan.feeds, loaded, self._random),
            first_user=resume_point.first_user(spec),
            connects=spec.profile.model in ("closed", "iterations") and spec.users > EARLY_MIN,
        )
        prepared |= await prepare_arguments(plan, self.http, self._program.manifest.path)
        self._loop = generate_loop(plan, prepared, self._runner_names(rows), spec.profile.model)
        await start_clients(plan, self.http, spec)
        await self._factory.open_process()
        await self._open_users()

    def _runner_names(self, rows: dict[str, Callable[[], Any]]) -> dict[str, Any]:
        """The functions and rows that the generated loop names."""
        failures = self.failures
        names: dict[str, Any] = {
            "clock": perf_counter,
            **{response.__name__: response for response in (*RESPONSES.values(), GRPCResponse)},
            "COROUTINE": CoroutineType,
            "FeedExhausted": FeedExhausted,
            "STEP_FAILED": failures.step_failed,
            "STEP_ODD": failures.step_odd,
            "HAS_ANSWER": has_answer,
            "UNEXPECTED": failures.status_failed,
            "STOPS": self._stops,
            "CUSTOM": failures.custom,
            **self._callbacks.names(),
            **self.recorder.loop_names(),
            "TOGETHER": run_together,
            "YIELD": partial(asyncio.sleep, 0),
            "REST": self._think_time.after_failure,
            "EXHAUSTED": self._feed_exhausted,
        }
        if self.on_exchange is not None:
            names |= watched(self.plan.name, names, self.on_exchange)
        if self._think_time.thinks:
            names["THINK"] = self._think_time.between
        if isinstance(self._driver, OpenDriver):
            names["WAIT"] = self._driver.wait
        names |= resume_point.ticket_names(self.spec)
        if self.plan.providers or not self.plan.is_test:
            names["KEEP"] = self._keep
        for name, source in rows.items():
            names[f"NEXT_{name}"] = source
        for step in self.plan.steps:
            row = self.recorder.add_row(
                step.name, step.protocol, step.expect, planned=not step.after
            )
            names |= row.loop_names()
        return names

    async def _open_users(self) -> None:
        """Opens the users that must be ready at the start, `OPENING_AT_ONCE` at a time."""
        queue = [self._factory.make() for _ in range(self.spec.users)]
        queue.reverse()

        async def open_some() -> None:
            while queue and not self._halted:
                user = queue.pop()
                if await self._open(user):
                    self._parked.append(user)

        await asyncio.gather(*(open_some() for _ in range(min(len(queue), OPENING_AT_ONCE))))
        # They opened in any order; `pop` takes the lowest id first.
        self._parked.sort(key=lambda user: -user.vu.id)

    async def _open(self, user: User) -> bool:
        """True if the user is ready; otherwise it has been closed and counted."""
        try:
            await self._factory.open(user)
        except BaseException as error:
            await self._close(user, actions=False)
            if self._stops(error):
                raise
            self._unstarted += 1
            self.recorder.unopened += 1
            self._last_error = self.failures.start_failed(error, self._source_of)
            return False
        self.recorder.opened += 1
        return True

    # Running.

    def _begin(self, at: float, joined_s: float) -> None:
        if self.ending:
            self._check_over()
            return
        model = self.spec.profile.model
        if model != "ramp":
            self._launch()
        if isinstance(self._driver, OpenDriver):
            self._driver.start(at, joined_s if self.spec.refill else 0.0)
            # The last planned starts are due a moment before the end, so the timer of the end
            # is set only after the driver has made or dropped them all.
            self._driver.on_done.add_done_callback(lambda _: self._end_at(at))
            return
        self._driver.start(at)
        self._end_at(at)
        if not self._parked and not self._users and model != "ramp":
            self._end()

    def _end_at(self, began: float) -> None:
        delay_s = began + self.spec.profile.duration_s - perf_counter()
        self._end_handle = asyncio.get_running_loop().call_later(max(0.0, delay_s), self._time_up)

    def _time_up(self) -> None:
        if self.spec.profile.model == "once" and self._users:
            self._overrun = True
        self._end()

    def _launch(self) -> None:
        """Starts the parked users, a burst per turn of the event loop."""
        for _ in range(min(START_BURST, len(self._parked))):
            user = self._parked.pop()
            self._admit(user, self._live(user, is_open=True))
        if self._parked and not self.ending:
            asyncio.get_running_loop().call_soon(self._launch)

    def _admit(self, user: User, life: Any) -> None:
        self._users[user.vu.id] = user
        user.task = asyncio.create_task(life, name="user")
        self.recorder.users = len(self._users)
        self.recorder.users_most = max(self.recorder.users_most, len(self._users))

    async def _live(self, user: User, *, is_open: bool) -> None:
        try:
            if not is_open:
                self.opening += 1
                try:
                    is_open = await self._open(user)
                finally:
                    self.opening -= 1
                if not is_open:
                    return
            while await self._may_loop(user):
                await self._loop(user.instance, user.vu, user.http, user.fresh)
                if not self._load_pause.paused:
                    break
        except asyncio.CancelledError:
            pass
        except Exception as error:
            self._crash = self._crash or error
            self._end()
        finally:
            await self._leave(user, is_open=is_open)

    async def _may_loop(self, user: User) -> bool:
        """Waits while the load is paused; false if the user has to leave."""
        while (stays := self._users.get(user.vu.id) is user and not self.ending) and (
            self._load_pause.paused
        ):
            await self._load_pause.changed()
        if stays:
            user.vu.stop = False
        return stays

    async def _leave(self, user: User, *, is_open: bool = True) -> None:
        user.is_leaving = True
        self.ended_at = max(self.ended_at, perf_counter())
        if is_open:
            await self._close(user, actions=not self._at_once)
        self._users.pop(user.vu.id, None)
        self._leaving.pop(user.vu.id, None)
        self.recorder.users = len(self._users)
        if not self._users and not self._leaving and not self._parked:
            if isinstance(self._driver, ClosedDriver) and self._driver.ends_with_users:
                self._end()
            elif self.ending:
                self._check_over()

    async def _close(self, user: User, *, actions: bool) -> None:
        self._factory.free_place(user)
        try:
            async with asyncio.timeout(END_ACTIONS_S):
                for name, error in await self._factory.close(user, actions=actions):
                    self.failures.hook_failed(name, error)
        except (TimeoutError, asyncio.CancelledError):
            user.http.close()

    def _end(self) -> None:
        """Ends the share: no iteration begins from here on. May be called more than once."""
        if not self.ending:
            self.ending = True
            if self._end_handle is not None:
                self._end_handle.cancel()
            self._driver.stop(min(perf_counter(), self._cut_at))
            for user in self._users.values():
                user.vu.stop = True
            self._think_time.wake_all()
            self._load_pause.wake()
            for user in self._parked:
                self._leaving[user.vu.id] = user
                user.task = asyncio.create_task(self._leave(user))
            self._parked.clear()
            self._finisher = asyncio.create_task(self._grace())
        self._check_over()

    async def _grace(self) -> None:
        """Gives running iterations their grace time, then cancels them."""
        users = [*self._users.values(), *self._leaving.values()]
        if deaf := await end_users(users, self.spec.profile.grace_s):
            self._warnings.append(f"{self.plan.name}: {deaf}")
        self._users.clear()
        self._leaving.clear()
        self._check_over()

    def _check_over(self) -> None:
        finished = self._finisher is not None and not self._users and not self._leaving
        if self.ending and finished and not self._parked and not self._over.done():
            now = perf_counter()
            if not self.ended_at:
                self.ended_at = now
            self.recorder.fold()
            # A run of 3 s ends a moment after its third second; it has no fourth window.
            since_s = self.elapsed_s(self.ended_at) - END_SLACK_S
            self._send(int(max(0.0, since_s)))
            self._over.set_result(None)

    def _send(self, window: int) -> None:
        report = self.recorder.take(window)
        starts = report.starts
        if not self.spec.profile.is_open:
            starts.planned = starts.made = report.iteration.started
        starts.interrupted = report.iteration.interrupted
        report.rested_s = self._think_time.take_rested_s()
        self._interrupted += starts.interrupted
        self._on_report(report)

    # What the generated loop calls.

    def _stops(self, error: BaseException) -> bool:
        """Whether an exception ends its user: only the engine's own cancellation does.

        `sys.exit()` in a step, or a cancelled task of the author's, is a failure like any
        other; a cancellation that did not come from the share is taken back."""
        if isinstance(error, asyncio.CancelledError) and not (self.ending or self._halted):
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            return False
        return isinstance(error, (asyncio.CancelledError, GeneratorExit))

    def _keep(self, context: Context) -> None:
        self._last_context = context

    def _feed_exhausted(self, name: str, planned: float | None = None) -> None:
        if planned is not None and isinstance(self._driver, OpenDriver):
            self._driver.give_back()
        if not self.ending:
            text = f"{self.plan.name} ended early: no rows left in {self._source_of(name)}"
            self._notes.append(("DEGRADED", text))
            asyncio.get_running_loop().call_soon(self._end)

    def _source_of(self, feed: str) -> str:
        return self.plan.feeds[feed].path or feed

    # Hand-over.

    async def _hand_over(self) -> tuple[dict[str, bytes], dict[str, bytes], str]:
        """Returns (exported context, provided values, error) after all users have left."""
        values: dict[str, bytes] = {}
        provided: dict[str, bytes] = {}
        error = ""
        if not self.plan.is_test:
            error = self.failures.first_text
            if self._overrun:
                error = f"{self.plan.name} did not finish within its duration"
            elif self._unstarted:
                error = f"{self.plan.name} did not start: {self._last_error}"
            values, failed, warnings = encoded_context(
                self._last_context, self.spec.exports, self.plan.name
            )
            error = error or failed
            self._warnings += warnings
        if self.plan.providers and not self._halted and not self._cut:
            provided = await provided_values(
                self.plan, self._factory, self._last_context, self.failures, self._warnings
            )
        return values, provided, error
