"""A member that has stopped is forgotten: a service may make one for each of its clients."""

from __future__ import annotations

import gc
import weakref

import pytest

from squall.coordination import Coordinator, MemoryStore, Queue
from squall.coordination.metrics import CoordinationMetrics
from squall.runtime.metrics import Registry
from squall.runtime.real.runtime import RealClock


@pytest.mark.asyncio
async def test_a_stopped_member_is_not_kept_in_memory() -> None:
    store = MemoryStore(RealClock())
    stopped: list[weakref.ref[object]] = []
    for number in range(3):
        queue = Queue("mail")
        member = Coordinator(
            store, queue, member_id=f"m{number}", profile="fast", unsafe_timings=True
        )
        async with member:
            await queue.enqueue(number)
            stopped += map(weakref.ref, (member, queue, member.parts, member.parts.metrics))
        del member, queue
    gc.collect()
    assert [each() for each in stopped] == [None] * len(stopped)


def test_members_of_one_registry_share_its_families() -> None:
    registry = Registry()
    one = CoordinationMetrics.of_registry(registry, "one")
    two = CoordinationMetrics.of_registry(registry, "two")
    assert one.families is two.families
    assert CoordinationMetrics.of_registry().families is not one.families
