"""The driver of the server side: a slot is held while the work runs, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest

from squall.cluster.control.admission import Admission
from squall.cluster.control.execution import BoundedExecution, ControlOverrun, WorkSlot
from squall.cluster.control.load import Filling
from squall.cluster.control.settings import AdmissionSettings
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.links.dispatch import Admit
from squall.runtime.invariants import InvariantViolation
from tests.unit.cluster.control.lab.stopped_clock import StoppedClock

CONTROL, DISPATCH, DATA, TELEMETRY = MessageClass
T = TypeVar("T")


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


def lowest(low: float, high: float) -> float:
    return low


class Node:
    def __init__(self) -> None:
        settings = AdmissionSettings(
            shared_max=2,
            data_max=2,
            telemetry_max=1,
            control_max=1,
            control_waiting_max=2,
            control_waiting_per_source_max=2,
        )
        self.admission = Admission(settings, lowest)
        self.warnings: list[Filling] = []
        self.execution = BoundedExecution(self.admission, StoppedClock(), self.warnings.append)
        self.order: list[str] = []
        self.may_end = asyncio.Event()

    async def work(self, name: str) -> str:
        self.order.append(name)
        await self.may_end.wait()
        return name

    def start(self, message_class: MessageClass, name: str) -> asyncio.Task[str]:
        return asyncio.ensure_future(
            in_slot(self.execution, message_class, lambda: self.work(name), source=name)
        )

    def idle(self) -> bool:
        load = self.admission.load()
        return not any(load.in_flight.values()) and load.control_waiting == 0


async def rounds(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_the_result_of_the_work_is_returned_and_the_slot_given_back() -> None:
    node = Node()
    node.may_end.set()
    assert await node.start(TELEMETRY, "a") == "a"
    assert node.idle()


@pytest.mark.asyncio
async def test_an_error_of_the_work_is_raised_and_the_slot_given_back() -> None:
    node = Node()

    async def broken() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await in_slot(node.execution, DATA, broken)
    assert node.idle()


@pytest.mark.asyncio
async def test_a_cancelled_work_gives_its_slot_back() -> None:
    node = Node()
    task = node.start(DATA, "a")
    await rounds()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert node.idle()


@pytest.mark.asyncio
async def test_shed_work_is_never_made_and_the_caller_gets_the_hint() -> None:
    node = Node()
    held = node.start(TELEMETRY, "held")
    await rounds()
    made: list[str] = []

    def make() -> Coroutine[Any, Any, str]:
        made.append("made")
        return node.work("shed")

    with pytest.raises(Overloaded) as caught:
        await in_slot(node.execution, TELEMETRY, make)
    assert caught.value.args[0] > 0
    assert made == []
    node.may_end.set()
    await held


@pytest.mark.asyncio
async def test_waiting_control_runs_when_its_turn_comes() -> None:
    node = Node()
    tasks = [node.start(CONTROL, name) for name in ("a", "b", "c")]
    await rounds()
    assert node.order == ["a"]
    node.may_end.set()
    assert await asyncio.gather(*tasks) == ["a", "b", "c"]
    assert node.idle()


@pytest.mark.asyncio
async def test_a_source_that_overruns_is_told_so() -> None:
    node = Node()
    tasks = [node.start(CONTROL, "flood") for _ in range(3)]
    await rounds()
    with pytest.raises(ControlOverrun, match="flood has 2 control messages waiting"):
        await node.start(CONTROL, "flood")
    node.may_end.set()
    await asyncio.gather(*tasks)
    assert node.idle()


@pytest.mark.asyncio
async def test_control_cancelled_in_the_round_of_its_start_passes_the_slot_on() -> None:
    node = Node()
    first, second, third = (node.start(CONTROL, name) for name in ("a", "b", "c"))
    await rounds()
    first.cancel()
    second.cancel()
    await rounds()
    assert node.order == ["a", "c"]
    node.may_end.set()
    assert await third == "c"
    assert first.cancelled() and second.cancelled()
    assert node.idle()


@pytest.mark.asyncio
async def test_control_cancelled_after_it_was_called_up_passes_the_slot_on() -> None:
    node = Node()

    async def ends_and_cancels_the_next() -> None:
        async def nothing() -> None:
            await asyncio.sleep(0)

        await in_slot(node.execution, CONTROL, nothing)
        second.cancel()

    first = asyncio.ensure_future(ends_and_cancels_the_next())
    second, third = (node.start(CONTROL, name) for name in ("b", "c"))
    await first
    await rounds()
    assert node.order == ["c"]
    node.may_end.set()
    await third
    assert second.cancelled()
    assert node.idle()


@pytest.mark.asyncio
async def test_the_wire_enters_with_the_class_alone() -> None:
    node = Node()
    admit: Admit = node.execution.enter
    slot = admit(TELEMETRY)
    assert isinstance(slot, WorkSlot)
    assert admit(TELEMETRY) == pytest.approx(0.1)
    slot.release()
    assert node.idle()
    with pytest.raises(InvariantViolation):
        slot.release()


@pytest.mark.asyncio
async def test_a_slot_that_is_called_up_before_its_task_began_does_not_wait() -> None:
    node = Node()
    first, second = (node.execution.enter(CONTROL) for _ in range(2))
    assert isinstance(first, WorkSlot) and isinstance(second, WorkSlot)
    assert second.waits
    first.release()
    await second.turn()
    second.release()
    assert node.idle()


@pytest.mark.asyncio
async def test_a_slot_given_back_while_it_waits_is_never_called_up() -> None:
    node = Node()
    first, second = (node.execution.enter(CONTROL) for _ in range(2))
    assert isinstance(first, WorkSlot) and isinstance(second, WorkSlot)
    second.release()
    first.release()
    assert node.idle()


@pytest.mark.asyncio
async def test_warnings_reach_the_node() -> None:
    node = Node()
    tasks = [node.start(DISPATCH, name) for name in ("a", "b")]
    await rounds()
    node.may_end.set()
    await asyncio.gather(*tasks)
    assert [(warning.limit, warning.percent) for warning in node.warnings] == [("shared", 100)]


@pytest.mark.asyncio
async def test_a_warning_that_fails_keeps_no_slot() -> None:
    def broken(warning: Filling) -> None:
        raise OSError("log is full")

    node = Node()
    execution = BoundedExecution(node.admission, StoppedClock(), broken)
    held = node.start(DISPATCH, "held")
    await rounds()
    with pytest.raises(OSError, match="log is full"):
        await in_slot(execution, DISPATCH, lambda: node.work("a"))
    node.may_end.set()
    await held
    assert node.idle()
