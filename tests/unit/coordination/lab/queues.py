"""Several members with one queue on one store, in virtual time, and writes that go wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from squall.coordination.errors import StoreUnavailableError
from squall.coordination.queue.claims import ClaimedTicket
from squall.coordination.queue.plugin import Queue
from squall.coordination.stores.interface import Fence, Write
from tests.unit.coordination.lab.queue_stores import InOrder
from tests.unit.coordination.lab.world import Lab

TIMEOUT_S = 60.0
"""Far above the time of a claim and the pauses between tries."""

Next = Callable[[], Awaitable[tuple[str, ...]]]


async def started(lab: Lab, *names: str, kind: str = "at once", **options: Any) -> dict[str, Queue]:
    """Members of these names, the first one leading, and their queues."""
    if kind == "in order":
        lab.store = InOrder(lab.store._clock)  # pyright: ignore[reportPrivateUsage]
    queues: dict[str, Queue] = {}

    def plugin(name: str) -> Queue:
        queues[name] = Queue("mail", **options)
        return queues[name]

    for name in names:
        lab.member(name, plugin)
        lab.world.start(name)
        await lab.ready(name)
    return queues


async def next_ticket(queue: Queue) -> ClaimedTicket:
    claims = queue.claim()
    try:
        return await anext(claims)
    finally:
        await claims.aclose()


def on_write(lab: Lab, hook: Callable[[Sequence[Write], Next], Awaitable[tuple[str, ...]]]) -> None:
    """Each batch of writes goes through the hook, which does it by its second argument."""
    plain = lab.store.write

    async def write(*writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
        return await hook(writes, lambda: plain(*writes, fence=fence))

    lab.store.write = write


def lose_reply(lab: Lab, kind: type[Any]) -> None:
    """Loses the reply of the next batch with such a write: it takes effect unseen."""
    is_lost = False

    async def hook(writes: Sequence[Write], go_on: Next) -> tuple[str, ...]:
        nonlocal is_lost
        answer = await go_on()
        if not is_lost and any(isinstance(each, kind) for each in writes):
            is_lost = True
            raise StoreUnavailableError("the reply was lost")
        return answer

    on_write(lab, hook)
