"""Users that stand still between two iterations while the load is paused.

A paused user keeps its connections, its cookies and its place; it goes on with its next
iteration. Nothing of this is in the hot loop: a pause ends the loop of each user by the
flag that ends it anyway, and its life begins the loop again.
"""

from __future__ import annotations

import asyncio


class Hold:
    """Of one share."""

    def __init__(self) -> None:
        self.paused = False
        self._waiting: list[asyncio.Future[None]] = []

    async def changed(self) -> None:
        """Until `wake`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
