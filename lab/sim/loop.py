"""An asyncio event loop in which time is a number that jumps to the next timer.

Ordinary asyncio code runs on it unchanged. Order is deterministic: callbacks run in the
order in which they became ready, timers by time and then by order of creation. With
`shuffle`, the seed permutes what asyncio leaves open: the order between processes, and
the order between tasks of one process that became ready in the same turn. Callbacks of
one process that are not task steps keep their order, because asyncio promises it.

Every callback belongs to a process (`process.OWNER`), or to the scenario. Those of a
paused process wait, those of a dead one never run. `loop.time()` is the clock of the
process that asks.

It must never touch real time, sockets or threads, and never run a cycle collection at a
moment that depends on anything but the seed.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar, cast

from lab.sim.errors import Deadlock, Livelock, NodeFailed, SimulationError, TimeLimit
from lab.sim.process import KERNEL, OWNER, SimProcess, Standing
from lab.sim.sealed_loop import SealedLoop

T = TypeVar("T")
COLLECT_EVERY = 1 << 17
"""Callbacks between two collections of cyclic garbage."""
STILL_LIMIT = 200_000
"""Callbacks at one instant before it counts as a livelock; honest code needs a few dozen."""
ROUNDING_S = 1e-9
"""A timer fires this much late, so that its own process never reads a time before it."""
RUNNING = Standing.RUNNING
DEAD = Standing.DEAD


class SimHandle(asyncio.TimerHandle):
    """The handle with which simulated code cancels a callback."""

    __slots__ = ("is_cancelled", "local_when")

    def __init__(self, local_when: float | None = None) -> None:
        self.is_cancelled = False
        # Due by the owner's own clock; None: not a timer.
        self.local_when = local_when

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.local_when or 0.0

    def __repr__(self) -> str:
        return f"<entry{' cancelled' if self.is_cancelled else ''}>"


Item = tuple[
    float, int, SimProcess | None, Context, Callable[..., object], tuple[Any, ...], SimHandle | None
]
"""One callback that is ready or waits for its time: world time and order, its owner and
context, what to call, and its handle if simulated code holds one."""


class SimFuture(asyncio.Future[T]):
    """A future whose place in a set does not depend on its address in memory."""

    number = 0

    def __hash__(self) -> int:
        return cast("SimLoop", self.get_loop()).number_of(self)


class SimTask(asyncio.Task[T]):
    """A task with an owner; hashed by its number, as a `TaskGroup` keeps tasks in a set."""

    owner: SimProcess | None = None
    number = 0

    def __hash__(self) -> int:
        return cast("SimLoop", self.get_loop()).number_of(self)


class SimLoop(SealedLoop):
    """Runs until the given coroutine ends, or until something fails."""

    def __init__(
        self, *, shuffle: random.Random | None = None, limit_s: float = float("inf")
    ) -> None:
        # World time; processes see their own.
        self.now = 0.0
        self.shuffle = shuffle
        self.limit_s = limit_s
        self.steps = 0
        self._still_since = 0
        self._collect_at = COLLECT_EVERY
        self._ready: deque[Item] = deque()
        self._timers: list[Item] = []
        self._sequence = count()
        self._numbers = count(1)
        self._failure: BaseException | None = None
        self._running = False
        self._closed = False
        self._generators: dict[int, Context] = {}
        # Dead processes: freeing their tasks would run their `finally` blocks, which a crash must
        # not.
        self._dead_processes: list[SimProcess] = []

    # What simulated code uses, through asyncio.

    def time(self) -> float:
        owner = OWNER.get()
        return self.now if owner is None else owner.local_time(self.now)

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> SimHandle:
        if context is None:
            context = copy_context()
        entry = SimHandle()
        self._ready.append((0.0, 0, context.get(OWNER), context, callback, args, entry))
        return entry

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> SimHandle:
        return self.call_at(self.time() + max(delay, 0.0), callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> SimHandle:
        if context is None:
            context = copy_context()
        owner = context.get(OWNER)
        entry = SimHandle(when)
        world_when = when if owner is None else owner.world_time(when) + ROUNDING_S
        order = next(self._sequence)
        heappush(self._timers, (world_when, order, owner, context, callback, args, entry))
        return entry

    def create_future(self) -> asyncio.Future[Any]:
        return SimFuture[Any](loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **options: Any,
    ) -> asyncio.Task[T]:
        if context is None:
            context = copy_context()
        task = SimTask[T](
            coro,  # pyright: ignore[reportArgumentType]
            loop=self,
            name="" if name is None else str(name),
            context=context,
            **options,
        )
        if name is None:
            # Asyncio's own names count all tasks of the real process, of other runs too.
            task.set_name(f"task-{self.number_of(task)}")
        owner = context.get(OWNER)
        task.owner = owner
        if owner is not None and owner.standing is DEAD:
            owner.unfinished.append(cast("asyncio.Task[object]", task))
        return task

    def number_of(self, future: SimFuture[Any] | SimTask[Any]) -> int:
        """A number in the order of first use, which is deterministic; 0 belongs to no object."""
        if not future.number:
            future.number = next(self._numbers)
        return future.number

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Whatever asyncio would only log fails the run, unless its process is dead."""
        subject = context.get("task") or context.get("future")
        owner = subject.owner if isinstance(subject, SimTask) else OWNER.get()
        if owner is not None and owner.standing is DEAD:
            return
        self.fail(context.get("exception"), str(context.get("message", "")), owner)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    # What the kernel of the simulation uses.

    def post(
        self,
        when: float,
        owner: SimProcess,
        callback: Callable[..., object],
        *args: Any,
    ) -> None:
        """Calls back at world time `when` on behalf of `owner`."""
        order = next(self._sequence)
        heappush(self._timers, (when, order, owner, owner.context, callback, args, None))

    def post_soon(self, owner: SimProcess, callback: Callable[..., object], *args: Any) -> None:
        self._ready.append((0.0, 0, owner, owner.context, callback, args, None))

    def fail(self, error: BaseException | None, message: str, owner: SimProcess | None) -> None:
        """Ends the run. The first failure counts."""
        if self._failure is not None:
            return
        if error is None or (owner is not None and not isinstance(error, SimulationError)):
            who = owner.name if owner is not None else "scenario"
            what = f"{type(error).__name__}: {error}" if error is not None else message
            failed = NodeFailed(f"{who}: {what}")
            failed.__cause__ = error
            self._failure = failed
        else:
            self._failure = error

    def pause(self, process: SimProcess) -> None:
        process.standing = Standing.PAUSED

    def resume(self, process: SimProcess) -> None:
        """Everything that became due meanwhile runs now, late, in order."""
        process.standing = RUNNING
        held, process.held = process.held, []
        self._ready.extend(held)

    def kill(self, process: SimProcess) -> None:
        """No callback of the process runs any more, not even a `finally`."""
        process.standing = DEAD
        self._dead_processes.append(process)
        for task in asyncio.all_tasks(self):
            if isinstance(task, SimTask) and task.owner is process:
                process.unfinished.append(cast("asyncio.Task[object]", task))
        process.held.clear()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Runs the scenario. Raises what failed first, in it or in any process."""
        if events._get_running_loop() is not None:
            main.close()
            raise RuntimeError("a simulation cannot run inside of another loop")
        task = self.create_task(main, name="scenario")
        hooks = sys.get_asyncgen_hooks()
        collecting = gc.isenabled()
        gc.disable()
        events._set_running_loop(self)
        self._running = True
        sys.set_asyncgen_hooks(firstiter=self._generator_began, finalizer=self._generator_left)
        try:
            while not task.done() and self._failure is None:
                self._turn()
            if self._failure is not None:
                silence(task)
                raise self._failure
            return task.result()
        finally:
            self._running = False
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(None)
            if collecting:
                gc.enable()

    def run_until_complete(self, future: Any) -> Any:
        return self.run(future)

    # Inside.

    def _turn(self) -> None:
        """Runs what is ready now; what that makes ready waits for the next turn."""
        ready = self._ready
        timers = self._timers
        if not ready:
            self._jump()
        now = self.now
        while timers and timers[0][0] <= now:
            ready.append(heappop(timers))
        turn = len(ready)
        if turn > 1 and self.shuffle is not None:
            self._permute(self.shuffle)
        for _ in range(turn):
            item = ready.popleft()
            owner = item[2]
            entry = item[6]
            if entry is not None and entry.is_cancelled:
                continue
            if owner is not None:
                if owner.standing is not RUNNING:
                    if owner.standing is not DEAD:
                        owner.held.append(item)
                    continue
                if entry is not None and entry.local_when is not None and self._early(item):
                    continue
            try:
                item[3].run(item[4], *item[5])
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.fail(error, "a callback raised", owner)
            if self._failure is not None:
                return
        self.steps += turn
        if self.steps >= self._collect_at:
            self._collect_at = self.steps + COLLECT_EVERY
            gc.collect()
        if self.steps - self._still_since > STILL_LIMIT:
            raise Livelock(f"time stands still at {now:.6f}; waiting:\n{self._waiting()}")

    def _jump(self) -> None:
        timers = self._timers
        while timers:
            entry = timers[0][6]
            if entry is None or not entry.is_cancelled:
                break
            heappop(timers)
        else:
            raise Deadlock(f"nothing is left to happen; waiting:\n{self._waiting()}")
        when = timers[0][0]
        if when > self.now:
            if when > self.limit_s:
                raise TimeLimit(
                    f"not done after {self.limit_s:g} simulated s; waiting:\n{self._waiting()}"
                )
            self.now = when
            self._still_since = self.steps

    def _early(self, item: Item) -> bool:
        """Reschedules a timer that is early because the owner's clock was slowed or stopped;
        returns whether it was early."""
        owner, entry = item[2], item[6]
        assert owner is not None
        assert entry is not None
        world_when = owner.world_time(entry.local_when or 0.0)
        if world_when <= self.now + ROUNDING_S:
            return False
        order = next(self._sequence)
        heappush(self._timers, (world_when + ROUNDING_S, order, *item[2:]))
        return True

    def _permute(self, shuffle: random.Random) -> None:
        """Shuffles the processes, then the task steps of each."""
        keys: dict[int, float] = {}
        draw = shuffle.random
        keyed: list[tuple[float, int, Item]] = []
        for position, item in enumerate(self._ready):
            owner = item[2]
            if owner is KERNEL:
                key = draw()
            else:
                key = keys.get(id(owner), -1.0)
                if key < 0.0:
                    key = keys[id(owner)] = draw()
            keyed.append((key, position, item))
        keyed.sort()
        items = [item for _, _, item in keyed]
        places: dict[int, list[int]] = {}
        for place, item in enumerate(items):
            if isinstance(getattr(item[4], "__self__", None), SimTask):
                places.setdefault(id(item[2]), []).append(place)
        for mine in places.values():
            if len(mine) > 1:
                steps = [items[place] for place in mine]
                shuffle.shuffle(steps)
                for place, item in zip(mine, steps, strict=True):
                    items[place] = item
        self._ready.clear()
        self._ready.extend(items)

    def _waiting(self) -> str:
        tasks = [task for task in asyncio.all_tasks(self) if isinstance(task, SimTask)]
        lines: list[str] = []
        for task in sorted(tasks, key=self.number_of):
            if task.owner is not None and task.owner.standing is DEAD:
                continue
            who = task.owner.name if task.owner is not None else "scenario"
            lines.append(f"  {who}: {task.get_name()} {_where(task)}")
        return "\n".join(lines)

    def _generator_began(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators[id(generator)] = copy_context()

    def _generator_left(self, generator: AsyncGenerator[Any, Any]) -> None:
        """An unfinished async generator is closed by its own process, if that lives."""
        context = self._generators.pop(id(generator), None)
        owner = None if context is None else context.get(OWNER)
        if context is None or not self._running or (owner is not None and not owner.alive):
            return
        context.run(self.create_task, generator.aclose())


def silence(task: asyncio.Task[Any]) -> None:
    """Keeps asyncio from warning about an unfinished task that will never run again."""
    task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue]


def _where(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack()
    if not frames:
        return "(not started)"
    frame = frames[-1]
    return f"at {frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
