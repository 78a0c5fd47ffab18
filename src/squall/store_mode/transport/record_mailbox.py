"""A mailbox as numbered records, for stores that cannot append in one step (S3).

    mail.<owner>/<sender>.<number>   one envelope; each sender numbers its own from 1
    mailbox/<owner>                  renewed while the owner lives, so that the inbox of a dead
                                     process can be found and emptied

Cost, in requests. An envelope is one PUT: only its sender writes that number, so it need not read
first. A process that listens finds all new envelopes with one LIST per poll and one GET each. A
process that only dials knows the next key of each of its peers and GETs just that; a LIST every
half minute finds what came unexpectedly. Envelopes that were read are deleted many at a time,
with one request if the service can. Without a connection or a listener nothing is polled.

A number advances when its envelope is stored. A PUT that is repeated after the envelope was read
and deleted is recognised by its number and deleted again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Collection, Sequence

import msgspec

from squall.coordination.store_errors import StoreError, VersionConflict
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Delete,
    Put,
    Record,
    Store,
    make_key,
)
from squall.runtime.interfaces import Clock
from squall.runtime.tasks import TaskRunner, TaskToken
from squall.store_mode.transport.mailbox import (
    ENVELOPES_AT_ONCE,
    GROUP,
    KIND,
    NetworkCounters,
    ReadRemover,
)
from squall.store_mode.transport.tuning import TransportTuning

MAILBOX = "mailbox"
DIGITS = 12
KNOWN_MAX = 10_000
"""Most peers whose numbers are remembered; the least recently used peer beyond it is dead."""
LISTED_MAX = 1000
LIST_EVERY_S = 30.0
RENEW_EVERY_S = 900.0
DELETES_AT_ONCE = 500
CONFLICTS_MAX = 16
POLL_WITHOUT_WAKE_S = 0.1
"""Poll interval if the tuning is that of a store that wakes its readers."""


class RecordMailbox:
    """Implements `Mailbox` with one record per envelope."""

    def __init__(
        self,
        store: Store,
        *,
        own: str,
        clock: Clock,
        tasks: TaskRunner,
        tuning: TransportTuning,
        counters: NetworkCounters,
    ) -> None:
        self._store = store
        self._own = own
        self._clock = clock
        self._tasks = tasks
        self._tuning = tuning = polling_tuning(tuning)
        self._counters = counters
        # Whether the process listened at the last poll.
        self._listens = False
        # By receiver: the number of our last envelope that is stored.
        self._written: OrderedDict[str, int] = OrderedDict()
        # By sender: the number of the last envelope that was read or given up.
        self._read: OrderedDict[str, int] = OrderedDict()
        # Keys of unread envelopes that a LIST named, in order.
        self._found: list[str] = []
        self._listed_at = float("-inf")
        self._polled_at = float("-inf")
        # When we last sent something that may still be answered.
        self._expected_at = float("-inf")
        self._wake = asyncio.Event()
        self._renewal: TaskToken | None = None
        self._remover = ReadRemover(
            self._remove,
            at_once=DELETES_AT_ONCE,
            wait_s=lambda: (not self._listens and tuning.quiet_remove_s) or tuning.remove_s,
            clock=clock,
            tasks=tasks,
        )

    async def append(self, to: str, envelope_id: str, content: bytes) -> None:
        for _ in range(CONFLICTS_MAX):
            number = self._written.get(to, 0) + 1
            self._counters.requests += 1
            put = Put(
                _key(to, self._own, number),
                content,
                ABSENT,
                ttl_s=self._tuning.ttl_s,
                silent=True,
                token=f"{self._own}-{envelope_id}",
            )
            try:
                await self._store.write(put)
            except VersionConflict:
                # An earlier envelope that this sender gave up was stored after all. Its
                # connections have ended, so this envelope takes the next number.
                self._counters.requests += 1
                _note(self._written, to, number)
                continue
            _note(self._written, to, number)
            return
        raise VersionConflict(_key(to, self._own, self._written[to]))

    async def wait(self) -> None:
        """Returns when the next poll is due; `expect` may bring that forward."""
        while not self._found:
            wait_s = self._due_at() - self._clock.now()
            if wait_s <= 0.0:
                return
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    def _due_at(self) -> float:
        """Returns when the next poll is due. A listener polls at a constant interval, because a
        request may come at any time. A process that only dials polls often while an answer is
        due, but not before one can be there."""
        tuning = self._tuning
        if self._listens:
            return self._polled_at + tuning.poll_s
        first_at = self._expected_at + max(tuning.first_poll_s, tuning.busy_poll_s)
        short_at = max(self._polled_at + tuning.busy_poll_s, first_at)
        is_busy = short_at <= self._expected_at + tuning.busy_s
        return short_at if is_busy else self._polled_at + (tuning.quiet_poll_s or tuning.poll_s)

    async def read(self, senders: Collection[str], *, listens: bool) -> Sequence[bytes]:
        self._start_renewal()
        self._listens = listens
        if not self._found:
            now = self._polled_at = self._clock.now()
            if listens or now - self._listed_at >= LIST_EVERY_S:
                await self._list()
                self._listed_at = now
        were_listed = bool(self._found)
        if were_listed:
            keys = self._found[:ENVELOPES_AT_ONCE]
        else:
            # A listener has just listed its inbox. A process that only dials expects mail only
            # from its peers, and knows the next key of each.
            keys = [] if listens else [self._next_key(sender) for sender in senders]
        if not keys:
            return ()
        self._counters.requests += len(keys)
        records = await self._store.get(*keys)
        self._found = self._found[len(keys) :]
        return self._accept(keys, records, were_listed)

    def expect(self) -> None:
        self._expected_at = self._clock.now()
        self._wake.set()

    async def close(self) -> None:
        if self._renewal is not None:
            self._tasks.cancel(self._renewal)
            await self._tasks.stopped(self._renewal)
        await self._remover.close()

    def _accept(
        self, keys: Sequence[str], records: Sequence[Record | None], were_listed: bool
    ) -> list[bytes]:
        contents: list[bytes] = []
        for key, record in zip(keys, records, strict=True):
            if record is None and not were_listed:
                continue
            sender, number = _parts(key)
            _note(self._read, sender, number)
            self._remover.add((key,))
            if record is not None:
                contents.append(record.value)
        if contents:
            self._expected_at = float("-inf")
        return contents

    def _next_key(self, sender: str) -> str:
        return _key(self._own, sender, self._read.get(sender, 0) + 1)

    async def _list(self) -> None:
        found: list[tuple[str, int, str]] = []
        after = ""
        while True:
            self._counters.requests += 1
            page = await self._store.list(_kind(self._own), after=after, limit=LISTED_MAX)
            for entry in page.entries:
                sender, number = _parts(entry.key)
                if number > self._read.get(sender, 0):
                    found.append((sender, number, entry.key))
                else:
                    self._remover.add((entry.key,))
            after = page.after
            if not after:
                break
        self._found = [key for _, _, key in sorted(found)]

    async def _remove(self, keys: Sequence[str]) -> None:
        self._counters.requests += 1
        await self._store.write(*(Delete(key, ANY, silent=True) for key in keys))

    # Inboxes of dead processes.

    def _start_renewal(self) -> None:
        if self._renewal is None:
            self._renewal = self._tasks.start("mailbox", self._renew_mailbox(), group=GROUP)

    async def _renew_mailbox(self) -> None:
        """Marks our mailbox as alive and empties those of dead processes."""
        key = make_key(MAILBOX, self._own)
        while True:
            try:
                self._counters.requests += 2
                await self._store.write(Put(key, b"", ANY, ttl_s=None, silent=True))
                await self._sweep()
            except StoreError:
                await self._clock.sleep(self._tuning.retry.cap_s)
                continue
            await self._clock.sleep(RENEW_EVERY_S)

    async def _sweep(self) -> None:
        """Deletes mailboxes that were not renewed for as long as envelopes live: their owners are
        dead, and no sender writes to them any more."""
        idle_ms = round((self._tuning.ttl_s + RENEW_EVERY_S) * 1000)
        page = await self._store.list(MAILBOX, idle_ms=idle_ms)
        for entry in page.entries:
            owner = entry.key.partition("/")[2]
            self._counters.requests += 3
            envelopes = await self._store.list(_kind(owner), limit=LISTED_MAX)
            gone = [envelope_id.key for envelope_id in envelopes.entries]
            # The mailbox record is deleted last, so that a crash in between leaves it to be found.
            if gone:
                await self._store.write(*(Delete(one, ANY, silent=True) for one in gone))
            if not envelopes.after:
                await self._store.write(Delete(entry.key, ANY, silent=True))


def polling_tuning(tuning: TransportTuning) -> TransportTuning:
    """Returns a tuning that polls. The store does not wake readers of records, so a tuning that
    relies on wake-ups would wait too long."""
    if tuning.busy_poll_s > 0.0:
        return tuning
    return msgspec.structs.replace(
        tuning, poll_s=POLL_WITHOUT_WAKE_S, busy_poll_s=POLL_WITHOUT_WAKE_S
    )


def _kind(owner: str) -> str:
    return f"{KIND}.{owner}"


def _key(owner: str, sender: str, number: int) -> str:
    return make_key(_kind(owner), f"{sender}.{number:0{DIGITS}d}")


def _parts(key: str) -> tuple[str, int]:
    sender, _, number = key.partition("/")[2].rpartition(".")
    return sender, int(number) if number.isdecimal() else 0


def _note(numbers: OrderedDict[str, int], name: str, number: int) -> None:
    numbers[name] = number
    numbers.move_to_end(name)
    while len(numbers) > KNOWN_MAX:
        numbers.popitem(last=False)
