"""The bound on what waits for the disk, and the row of those who wait for room.

Everything that is accepted and not yet written counts, the block in flight too. Callers
are let in in the order in which they came. One record is always taken when nothing
waits, however large it is.
"""

from __future__ import annotations

import asyncio
from collections import deque

from squall.ledger.wal.errors import WalBusy, WalError


class Room:
    def __init__(self, max_records: int, max_bytes: int) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self.records = 0
        self.bytes = 0
        self.waits = 0
        """How often a caller had to wait."""
        self._row: deque[asyncio.Future[None]] = deque()

    def fits(self, size: int, records: int) -> bool:
        return self.records == 0 or (
            self.records + records <= self._max_records and self.bytes + size <= self._max_bytes
        )

    def is_free(self, size: int, records: int) -> bool:
        """It fits, and nobody waits who came before."""
        return not self._row and self.fits(size, records)

    def enter(self, size: int) -> bool:
        """Takes room for one record, if it fits and nobody waits who came before."""
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
        self._let_in()

    def clear(self) -> None:
        """Nothing waits for the disk any more."""
        self.records = self.bytes = 0
        self._let_in()

    async def wait(self, size: int, records: int, limit_s: float | None) -> None:
        """Until it fits; the caller takes it before the next turn of the loop. Raises
        WalBusy after `limit_s`, and what `turn_away` was given."""
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
                    # Only the first in the row is woken, so that is where this one is.
                    waiter = self._row[0] = loop.create_future()
        except TimeoutError:
            raise WalBusy(f"no room for {size} bytes within {limit_s} s") from None
        finally:
            self._row.remove(waiter)
            self._let_in()

    def turn_away(self, error: WalError) -> None:
        for waiter in self._row:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()

    def _let_in(self) -> None:
        if self._row and not self._row[0].done():
            self._row[0].set_result(None)
