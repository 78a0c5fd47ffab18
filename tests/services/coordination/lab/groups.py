"""Members on a place of a test, each with a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec

from squall.coordination.coordinator import Coordinator
from squall.coordination.timing import Timing
from tests.lab.machine import factor
from tests.services.coordination.lab.places import Place

SECRET = "0123456789abcdef" * 4
# All members of a test share its process: if that stands still for two seconds, none of them may
# lose its lease or be called silent.
_TIMING = Timing(
    heartbeat_interval=0.3,
    heartbeat_ttl=3.0,
    dead_after=4.2,
    monitor_interval=0.4,
    lease_ttl=2.8,
    min_epoch_duration=0.0,
    max_epoch_duration=60.0,
    cold_start_observation_window=0.0,
    cold_start_preparation_delay=0.0,
    rank_delay=0.02,
    rank_delay_cap=0.2,
    retention=60.0,
    work_interval=0.1,
)


def slower(scale: float) -> Timing:
    """All that a late member could miss takes longer."""
    names = (
        *("heartbeat_interval", "heartbeat_ttl", "dead_after", "monitor_interval"),
        *("lease_ttl", "rank_delay_cap"),
    )
    return msgspec.structs.replace(_TIMING, **{n: getattr(_TIMING, n) * scale for n in names})


class Group:
    """Members of one place, each with a connection of its own."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.scale = max(4.0 if place.kind == "s3" else 1.0, factor())
        self.timing = slower(self.scale)
        self._stack = AsyncExitStack()

    async def member(self, member_id: str, **options: Any) -> Coordinator:
        chosen: dict[str, Any] = {
            "secret": SECRET,
            "ack_timeout": 0.8 * self.scale,
            "retry_base": 0.1,
        } | options
        made = Coordinator(
            await self.place.open(),
            member_id=member_id,
            unsafe_timings=True,
            **({"profile": self.timing} | chosen),
        )
        return await self._stack.enter_async_context(made)

    async def two(self) -> tuple[Coordinator, Coordinator]:
        return await self.member("a"), await self.member("b")

    async def until(self, condition: Callable[[], object], what: str, within: float = 15.0) -> None:
        try:
            async with asyncio.timeout(within * self.scale):
                while not condition():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"not in time: {what}") from None

    async def close(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def group_on(place: Place) -> AsyncGenerator[Group]:
    group = Group(place)
    try:
        yield group
    finally:
        await group.close()
