"""Limits how much waits for the disk, and queues the callers that need room.

Everything accepted but not yet written counts, including the block that is being written.
Callers get room in the order in which they asked. When nothing waits for the disk, one
record is always accepted, whatever its size.
"""

from __future__ import annotations

import asyncio
from collections import deque

from squall.cluster.ledger.wal.errors import WalBusy, WalError


class Room:
    """Counts the records and bytes that wait for one log's disk and admits more up to a limit."""

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self.records = 0
        self.bytes = 0
        # Number of calls that had to wait for room.
        self.waits = 0
        self._row: deque[asyncio.Future[None]] = deque()

    def fits(self, size: int, records: int) -> bool:
        return self.records == 0 or (
            self.records + records <= self._max_records and self.bytes + size <= self._max_bytes
        )

    def bytes_left(self) -> int:
        """Bytes left for one more record. An empty log accepts one record of any size."""
        if self.records >= self._max_records:
            return 0
        return self._max_bytes - self.bytes

    def is_free(self, size: int, records: int) -> bool:
        """True if it fits and no earlier caller waits: a newcomer must not overtake the queue."""
        return not self._row and self.fits(size, records)

    def enter(self, size: int) -> bool:
        """Takes room for one record if it fits and no earlier caller waits."""
        # Repeats `is_free` and `take` inline: this runs once per record.
        if self._row or (
            self.records
            and (self.records >= self._max_records or self.bytes + size > self._max_bytes)
        ):
            return False
        self.records += 1
        self.bytes += size
        return True

    def take(self, size: int, records: int) -> None:
        self.records += records
        self.bytes += size

    def give_back(self, size: int, records: int) -> None:
        self.records -= records
        self.bytes -= size
        if self._row:
            self._wake_first()

    def clear(self) -> None:
        """Frees all room, when nothing waits for the disk any more."""
        self.records = self.bytes = 0
        self._wake_first()

    async def wait(self, size: int, records: int, limit_s: float | None) -> None:
        """Waits until it fits. The caller must call `take` before it awaits again, or another
        caller gets the room. Raises WalBusy after `limit_s`, or the error of `turn_away`."""
        if self.is_free(size, records):
            return
        self.waits += 1
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._row.append(waiter)
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    await waiter
                    if self.fits(size, records):
                        return
                    # Only the first waiter is woken, so this call is at index 0. It stays
                    # there with a new future until enough room is free.
                    waiter = self._row[0] = loop.create_future()
        except TimeoutError:
            raise WalBusy(f"no room for {size} bytes within {limit_s} s") from None
        finally:
            self._row.remove(waiter)
            # The next waiter may be smaller, or this one may have given up with room free.
            self._wake_first()

    def turn_away(self, error: WalError) -> None:
        """Fails every waiting call with `error`."""
        for waiter in self._row:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()

    def _wake_first(self) -> None:
        if self._row and not self._row[0].done():
            self._row[0].set_result(None)
