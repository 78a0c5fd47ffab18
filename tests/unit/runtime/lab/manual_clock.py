"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio


class ManualClock:
    def __init__(self) -> None:
        self.time = 100.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self.time

    def boot_time(self) -> float:
        return self.time

    def kernel_boot(self) -> str:
        return ""

    def wall(self) -> float:
        return 1_700_000_000.0 + self.time

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)
