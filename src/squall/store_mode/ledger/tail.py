"""The end of a log in a store: the only module that writes slots and confirms the lead.

A tail has read or written every slot below `next` and advances only by its own writes. Another
leader's slot at `next` ends it (`Superseded`). So all slots between the first and the last of
one leader are its own, and there is one history.

**An absent slot may have been written.** Slots that no checkpoint needs are deleted. A leader
that was paused could find a number absent that was written, applied and deleted meanwhile:

- With transactions each request checks the slot before `next`, which would have been deleted
  earlier. The first slot checks the head.
- Without them slots are deleted only `retain_s` after the head declared them obsolete. At
  `seen_at` no slot from `next` on had been deleted, so for `trust_s` after it an absent slot
  was never written. Later the tail also reads the head: if its `first_slot` is not above
  `next`, no slot from `next` on has been deleted.

**Lost data.** With transactions each write and each round checks the slot before; without them
the tail reads the head every `head_check_interval_s`. It raises `LogLost` if the log is gone.

A tail must never send two different contents for one number, and never treat a slot as written
before the store has shown that it is its own.
"""

from __future__ import annotations

from squall.cluster.ledger.interface import LedgerFailed
from squall.coordination.store_errors import StoreUnavailableError, VersionConflict
from squall.coordination.stores.interface import ABSENT, Check, Put, Record, Store, Write
from squall.runtime.interfaces import Clock
from squall.store_mode.ledger.layout import FIRST, Keys, StoreLogSettings, head_of


class Superseded(LedgerFailed):
    """Another leader wrote the slot and leads from there on."""

    def __init__(self, number: int) -> None:
        super().__init__(f"another agent leads: slot {number} of the log is not ours")
        self.number = number


class Overtaken(Superseded):
    """The log has moved so far ahead that the slot itself may have been deleted."""


class LogLost(LedgerFailed):
    """The store has lost the log or a part of it."""

    def __init__(self, url: str, log_id: str, what: str) -> None:
        super().__init__(
            f"{url} lost data: {what} of log {log_id} is gone; its jobs are lost, submit them "
            "again (a new log begins by itself)"
        )


class Tail:
    """Writes slot `next` and confirms the lead. `previous` is the version of slot `next - 1`, or
    of the head if `next` is the first slot."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        clock: Clock,
        settings: StoreLogSettings,
        *,
        next_slot: int,
        previous: str,
        seen_at: float,
    ) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._settings = settings
        self._bound = store.capabilities.transactions
        self.next = next_slot
        self.previous = previous
        self.seen_at = seen_at
        self._head_at = seen_at

    @property
    def is_trusted(self) -> bool:
        """Whether an absent slot certainly was never written."""
        return self._bound or self._clock.boot_time() - self.seen_at < self._settings.trust_s

    async def append(self, value: bytes, token: str) -> None:
        """Writes `value` to slot `next` and advances. Raises `Superseded`, `LogLost`, or
        `StoreUnavailableError`; after the latter only the same value may be appended."""
        began = self._clock.boot_time()
        key = self._keys.slot(self.next)
        put = Put(key, value, expect=ABSENT, ttl_s=None, silent=True, token=token)
        try:
            version = (await self._store.write(put, *self._binding()))[0]
        except VersionConflict:
            version = await self._ours(key, value)
        await self._trust()
        self.previous = version
        self.next += 1
        self.seen_at = max(self.seen_at, began)

    async def confirm(self) -> None:
        """Returns if no other leader had written slot `next` when this was called (R2)."""
        began = self._clock.boot_time()
        key = self._keys.slot(self.next)
        try:
            await self._store.write(*self._binding(), Check(key, ABSENT))
        except VersionConflict:
            await self._ours(key, None)
            raise StoreUnavailableError(
                f"{self._store.url}: {key} changed during the request"
            ) from None
        await self._trust()
        self.seen_at = max(self.seen_at, began)

    def adopt(self, record: Record) -> None:
        """Advances over slot `next`, which another leader wrote and the caller applies."""
        self.previous = record.version
        self.next += 1

    async def check_head_if_due(self) -> None:
        """Checks now and then that the log still exists, on stores without transactions."""
        age_s = self._clock.boot_time() - self._head_at
        if not self._bound and age_s >= self._settings.head_check_interval_s:
            await self._check_head()

    def _binding(self) -> tuple[Write, ...]:
        return (Check(self._before(), self.previous),) if self._bound else ()

    def _before(self) -> str:
        return self._keys.head if self.next == FIRST else self._keys.slot(self.next - 1)

    async def _ours(self, key: str, value: bytes | None) -> str:
        """Explains a failed condition. Returns the version of slot `next` if an earlier, unanswered
        write of the same value created it."""
        found, previous = await self._store.get(key, self._before())
        if found is not None:
            if value is not None and found.value == value:
                return found.version
            raise Superseded(self.next)
        await self._check_head()
        if previous is None or previous.version != self.previous:
            raise LogLost(self._store.url, self._keys.log_id, f"slot {self.next - 1}")
        raise StoreUnavailableError(f"{self._store.url}: {key} changed during the request")

    async def _trust(self) -> None:
        """Reads the head if an absent slot may have been written and deleted."""
        if not self.is_trusted:
            await self._check_head()

    async def _check_head(self) -> None:
        began = self._clock.boot_time()
        (record,) = await self._store.get(self._keys.head)
        head = None if record is None else head_of(self._keys.head, record.value)
        if head is None or head.id != self._keys.log_id:
            raise LogLost(self._store.url, self._keys.log_id, "the head")
        if head.first_slot > self.next:
            raise Overtaken(self.next)
        self.seen_at = self._head_at = began
