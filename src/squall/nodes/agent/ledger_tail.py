"""The end of a log in a store: the one place where slots are written and the lead is proven.

A tail stands before slot `next`. It has read or written every slot below, and moves only by
its own writes: a slot of somebody else at `next` ends it (`Superseded`). So all slots from
the first of one leader to its last are its own, and one history exists.

**Absent is not always "never written".** Slots that no checkpoint needs are deleted. A leader
that slept could find a number absent that was written, applied and deleted meanwhile. Hence:

- with transactions each request is bound to the slot before `next`, which would have been
  deleted earlier; the first slot is bound to the head;
- elsewhere slots are deleted only `retain_s` after the head said that they are obsolete.
  `seen_at` is a moment at which no slot from `next` on had been deleted: up to `trust_s`
  later absent means never written. After that the head is read as well: if it still wants
  slots from `next` on or from below, none of them has been deleted.

**Lost data.** With transactions each write and each round checks the slot before; elsewhere
the head is looked at now and then. A log that is gone is `LogLost`.

It must never send another content for a number that it has sent something for, and never
call a slot written before the store showed it to be its own.
"""

from __future__ import annotations

from squall.coordination.stores.errors import StoreUnavailableError, VersionConflict
from squall.coordination.stores.interface import ABSENT, Check, Put, Record, Store, Write
from squall.ledger.interface import LedgerFailed
from squall.nodes.agent.slots import FIRST, Keys, StoreLogSettings, head_of
from squall.runtime.interfaces import Clock


class Superseded(LedgerFailed):
    """Somebody else wrote the slot: it leads from there on."""

    def __init__(self, number: int) -> None:
        super().__init__(f"another agent leads: slot {number} of the log is not ours")
        self.number = number


class Overtaken(Superseded):
    """Nothing is known of the slot itself: the log has gone on far beyond it."""


class LogLost(LedgerFailed):
    """The store does not hold the log any more, or not all of it."""

    def __init__(self, url: str, log_id: str, what: str) -> None:
        super().__init__(
            f"{url} lost data: {what} of log {log_id} is gone; its jobs are lost, submit them "
            "again (a new log begins by itself)"
        )


class Tail:
    """`previous` is the version of slot `next - 1`; of the head when `next` is the first."""

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
        """Whether absent still means never written."""
        return self._bound or self._clock.boot_time() - self.seen_at < self._settings.trust_s

    async def append(self, value: bytes, token: str) -> None:
        """Returns when slot `next` holds `value`, and stands behind it. Raises `Superseded`,
        `LogLost`, or `StoreUnavailableError`: then only the same value may be given again."""
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
        """Shows that nobody else had written slot `next` when this was called."""
        began = self._clock.boot_time()
        key = self._keys.slot(self.next)
        try:
            await self._store.write(*self._binding(), Check(key, ABSENT))
        except VersionConflict:
            await self._ours(key, None)
            raise StoreUnavailableError(f"{self._store.url}: {key} came and went") from None
        await self._trust()
        self.seen_at = max(self.seen_at, began)

    def adopt(self, record: Record) -> None:
        """Slot `next` is this one, and its reader takes what it holds."""
        self.previous = record.version
        self.next += 1

    async def look(self) -> None:
        """That the log is still there, where writes are not bound to the slot before."""
        age_s = self._clock.boot_time() - self._head_at
        if not self._bound and age_s >= self._settings.head_look_s:
            await self._check_head()

    def _binding(self) -> tuple[Write, ...]:
        return (Check(self._before(), self.previous),) if self._bound else ()

    def _before(self) -> str:
        return self._keys.head if self.next == FIRST else self._keys.slot(self.next - 1)

    async def _ours(self, key: str, value: bytes | None) -> str:
        """A condition failed: the version of our own slot, if that is why."""
        found, previous = await self._store.get(key, self._before())
        if found is not None:
            if value is not None and found.value == value:
                return found.version
            raise Superseded(self.next)
        await self._check_head()
        if previous is None or previous.version != self.previous:
            raise LogLost(self._store.url, self._keys.log_id, f"slot {self.next - 1}")
        raise StoreUnavailableError(f"{self._store.url}: {key} came and went")

    async def _trust(self) -> None:
        """What was absent was never there, or it is found out now."""
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
