"""One member with a queue, on a store with transactions and on one without."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from squall.coordination.errors import StoreUnavailableError
from squall.coordination.queue.plugin import Queue
from squall.coordination.stores.interface import Capabilities, Fence, Put, Write
from squall.coordination.stores.memory.store import MemoryStore
from tests.unit.coordination.lab.world import Lab

KINDS = pytest.mark.parametrize("kind", ["at once", "in order"])


class InOrder(MemoryStore):
    """Does the writes of a batch one after another, as S3; `dies_at` is a kind of write that its
    caller does not live to see."""

    dies_at: type[Any] | None = None

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, transactions=False)

    async def write(self, *writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
        results: list[str] = []
        scope = "" if fence is None else fence.scope
        stands = any(isinstance(each, Put) and each.key == scope for each in writes)
        for write in writes:
            if self.dies_at is not None and isinstance(write, self.dies_at):
                raise StoreUnavailableError("nobody is there any more")
            is_fenced = not stands or (isinstance(write, Put) and write.key == scope)
            results += await super().write(write, fence=fence if is_fenced else None)
        return tuple(results)


def lab_of(lab: Lab, kind: str) -> dict[str, Queue]:
    """Queues by member, replaced at each boot."""
    if kind == "in order":
        lab.store = InOrder(lab.store._clock)  # pyright: ignore[reportPrivateUsage]
    queues: dict[str, Queue] = {}

    def plugin(name: str) -> Queue:
        queues[name] = Queue("mail")
        return queues[name]

    lab.member("a", plugin)
    return queues


async def up(lab: Lab) -> None:
    before = lab.members.get("a")
    lab.world.start("a")
    await lab.world.eventually(
        lambda: lab.members.get("a") is not before and lab.members["a"].is_coordinator,
        within_s=60.0,
        what="a leads",
    )
