"""What waits for the writer of a log: records that become one block, and orders.

A batch is filled as its records are accepted, so that the writer has nothing left to do
per record: it takes the batch as it is.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from squall.ledger.wal.errors import WalError


class Batch:
    """Records in their order. `len` says how many."""

    __slots__ = ("bodies", "callers", "kinds", "size", "syncs")

    def __init__(self) -> None:
        self.kinds = bytearray()
        self.bodies: list[bytes] = []
        self.size = 0
        """Of the bodies."""
        self.syncs = False
        """A record in it was promised to be durable."""
        self.callers: list[tuple[int, asyncio.Future[int]]] = []
        """Who waits for which number."""

    def __len__(self) -> int:
        return len(self.bodies)

    def release(self) -> None:
        for lsn, future in self.callers:
            if not future.done():
                future.set_result(lsn)

    def fail(self, error: WalError) -> None:
        for _, future in self.callers:
            fail(future, error)


@dataclass(slots=True)
class Order:
    """Something that is done between two blocks, in its turn."""

    future: asyncio.Future[None]
    cut_to: int = 0
    """0: only make all durable."""
    reset: bool = False
    closes: bool = False

    def fail(self, error: WalError) -> None:
        fail(self.future, error)


def fail(future: asyncio.Future[int] | asyncio.Future[None], error: WalError) -> None:
    if not future.done():
        future.set_exception(error)
        # Somebody may have stopped waiting; that is no news for the loop.
        future.exception()
