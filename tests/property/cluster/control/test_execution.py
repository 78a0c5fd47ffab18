"""Bounded execution on a real loop: any order of ends, errors and cancellations."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from squall.cluster.control.admission import SHARED_CLASSES, Admission
from squall.cluster.control.execution import BoundedExecution, ControlOverrun
from squall.cluster.control.settings import AdmissionSettings
from squall.cluster.wire.header import MessageClass

T = TypeVar("T")

CONTROL, DISPATCH, DATA, TELEMETRY = MessageClass
LIMITS = AdmissionSettings(
    shared_max=4,
    data_max=3,
    telemetry_max=2,
    control_max=2,
    control_waiting_max=6,
    control_waiting_per_source_max=3,
)

which = st.integers(0, 50)
starts = st.tuples(
    st.just("start"), st.sampled_from([CONTROL, CONTROL, *MessageClass]), st.integers(0, 2)
)
moves = st.lists(
    st.one_of(
        starts,
        starts,
        st.tuples(st.sampled_from(["end", "break", "cancel"]), which, st.just(0)),
        st.tuples(st.just("cancel"), which, st.just(0)),
        st.tuples(st.just("turn"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


class Overloaded(Exception):
    """The request was shed."""


async def in_slot(
    execution: BoundedExecution,
    message_class: MessageClass,
    work: Callable[[], Awaitable[T]],
    source: str = "",
) -> T:
    """Holds a slot while the work runs, as the wire does."""
    slot = execution.enter(message_class, source)
    if isinstance(slot, float):
        raise Overloaded(slot)
    try:
        await slot.turn()
        return await work()
    finally:
        slot.release()


class Broken(Exception):
    pass


class SteadyClock:
    def now(self) -> float:
        return 0.0

    def boot_time(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("bounded execution never sleeps")


@dataclass
class Bench:
    """Runs the moves and counts what really runs."""

    running: list[MessageClass] = field(default_factory=list[MessageClass])
    exceeded: bool = False

    async def work(self, message_class: MessageClass, end: asyncio.Future[None]) -> str:
        self.running.append(message_class)
        shared = sum(each in SHARED_CLASSES for each in self.running)
        if shared > LIMITS.shared_max or self.running.count(CONTROL) > LIMITS.control_max:
            self.exceeded = True
        try:
            await end
        finally:
            self.running.remove(message_class)
        return "done"


async def play(moves: list[tuple[str, int, int]]) -> None:
    admission = Admission(LIMITS, lambda low, high: low)
    execution = BoundedExecution(admission, SteadyClock())
    bench = Bench()
    loop = asyncio.get_running_loop()
    tasks: list[tuple[MessageClass, asyncio.Task[str], asyncio.Future[None]]] = []

    def start(message_class: MessageClass, source: int) -> None:
        end: asyncio.Future[None] = loop.create_future()
        running = in_slot(
            execution,
            message_class,
            lambda: bench.work(message_class, end),
            source=f"peer {source}",
        )
        tasks.append((message_class, loop.create_task(running), end))

    for move, which, source in moves:
        if move == "start":
            start(MessageClass(which), source)
        elif move == "turn":
            await asyncio.sleep(0)
        elif tasks:
            _, task, end = tasks[which % len(tasks)]
            if move == "cancel":
                task.cancel()
            elif not end.done():
                if move == "end":
                    end.set_result(None)
                else:
                    end.set_exception(Broken())
    for _, _, end in tasks:
        if not end.done():
            end.set_result(None)
    ended = await asyncio.gather(*(task for _, task, _ in tasks), return_exceptions=True)
    for (message_class, _, end), result in zip(tasks, ended, strict=True):
        if end.done() and not end.cancelled():
            end.exception()
        assert result == "done" or isinstance(
            result, Broken | Overloaded | ControlOverrun | asyncio.CancelledError
        )
        assert not (message_class is CONTROL and isinstance(result, Overloaded))
    load = admission.load()
    assert not any(load.in_flight.values())
    assert load.control_waiting == 0
    assert not bench.exceeded
    assert not bench.running


@given(moves=moves)
@settings(max_examples=100, deadline=None)
def test_every_slot_comes_back_whatever_ends_the_work(moves: list[tuple[str, int, int]]) -> None:
    asyncio.run(play(moves))
