"""The two kinds of work in a log writer's queue: batches of records, and orders.

The log fills a batch while it accepts records, so the writer has no work per record: it
writes the batch as one block.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from squall.cluster.ledger.wal.errors import WalError


class Batch:
    """Collects records, in order, that the writer will write as one block."""

    __slots__ = ("bodies", "callers", "kinds", "size", "syncs")

    def __init__(self) -> None:
        self.kinds = bytearray()
        self.bodies: list[bytes] = []
        # Total bytes of the bodies.
        self.size = 0
        # At least one record must be durable before its caller continues, so the writer syncs.
        self.syncs = False
        # The LSN of each record that has a waiting caller, and the caller's future.
        self.callers: list[tuple[int, asyncio.Future[int]]] = []

    def release(self) -> None:
        for lsn, future in self.callers:
            if not future.done():
                future.set_result(lsn)

    def fail(self, error: WalError) -> None:
        for _, future in self.callers:
            fail(future, error)


@dataclass(slots=True)
class Order:
    """A sync, cut, reset or close that the writer runs between two blocks, in queue order."""

    future: asyncio.Future[None]
    cut_to: int = 0
    """First LSN to cut off; 0 means the order only makes everything before it durable."""
    reset: bool = False
    closes: bool = False

    def fail(self, error: WalError) -> None:
        fail(self.future, error)


def fail(future: asyncio.Future[int] | asyncio.Future[None], error: WalError) -> None:
    if not future.done():
        future.set_exception(error)
        # Marks the exception as retrieved, so asyncio does not log it when the caller has
        # stopped waiting.
        future.exception()
