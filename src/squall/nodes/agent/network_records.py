"""Letters as numbered records, for stores that cannot append in one step (S3).

    mail.<owner>/<sender>.<number>   one letter; each sender numbers its own from 1
    mailbox/<owner>                  renewed while the owner lives, so that what is left in
                                     the inbox of a dead one can be found and deleted

Cost, in requests. A letter is one PUT: its sender is the only one who writes that number,
so it needs no look. Who listens finds all new letters of everybody with one LIST per look,
and one GET each. Who only dials knows the next key of each of its peers and GETs just
that; a LIST every half minute finds what came unexpected. Read letters are deleted many at
a time, with one request where the service can. Nothing is looked at while nobody is
connected or listened for.

A number advances when its letter is there. A PUT that comes a second time after the letter
was read and deleted is known by its number and deleted again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Collection, Sequence

import msgspec

from squall.coordination.stores.errors import StoreError, VersionConflict
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Delete,
    Put,
    Record,
    Store,
    make_key,
)
from squall.nodes.agent.network_lane import GROUP
from squall.nodes.agent.network_post import (
    KIND,
    LETTERS_AT_ONCE,
    NetworkCounters,
    Tidier,
)
from squall.nodes.agent.pace import Pace
from squall.runtime.interfaces import Clock
from squall.runtime.tasks import TaskRunner, TaskToken

MAILBOX = "mailbox"
DIGITS = 12
KNOWN_MAX = 10_000
"""Mailboxes whose numbers are kept; one that was not met for so many others is dead."""
LISTED_MAX = 1000
LIST_EVERY_S = 30.0
RENEW_EVERY_S = 900.0
DELETES_AT_ONCE = 500
CONFLICTS_MAX = 16
UNWOKEN_S = 0.1
"""Between two looks, where the pace is that of a store which wakes its readers."""


class RecordPost:
    def __init__(
        self,
        store: Store,
        *,
        own: str,
        clock: Clock,
        tasks: TaskRunner,
        pace: Pace,
        counters: NetworkCounters,
    ) -> None:
        self._store = store
        self._own = own
        self._clock = clock
        self._tasks = tasks
        self._pace = pace = looking(pace)
        self._counters = counters
        self._listens = False
        """At the last look."""
        self._written: OrderedDict[str, int] = OrderedDict()
        """By receiver: the number of our last letter that is there."""
        self._read: OrderedDict[str, int] = OrderedDict()
        """By sender: the number of the last letter that was read or given up."""
        self._found: list[str] = []
        """Keys of letters that a LIST named and nobody has read yet, in order."""
        self._listed_at = float("-inf")
        self._looked_at = float("-inf")
        self._expected_at = float("-inf")
        """When we last sent something that may be answered and was not yet."""
        self._wake = asyncio.Event()
        self._keeper: TaskToken | None = None
        self._tidier = Tidier(
            self._remove,
            at_once=DELETES_AT_ONCE,
            wait_s=lambda: (not self._listens and pace.quiet_tidy_s) or pace.tidy_s,
            clock=clock,
            tasks=tasks,
        )

    async def append(self, to: str, letter: str, content: bytes) -> None:
        for _ in range(CONFLICTS_MAX):
            number = self._written.get(to, 0) + 1
            self._counters.requests += 1
            put = Put(
                _key(to, self._own, number),
                content,
                ABSENT,
                ttl_s=self._pace.ttl_s,
                silent=True,
                token=f"{self._own}-{letter}",
            )
            try:
                await self._store.write(put)
            except VersionConflict:
                # A letter that was given up arrived after all: its connections are over.
                self._counters.requests += 1
                _note(self._written, to, number)
                continue
            _note(self._written, to, number)
            return
        raise VersionConflict(_key(to, self._own, self._written[to]))

    async def wait(self) -> None:
        """Until the next look is due; being woken may bring that forward."""
        while not self._found:
            wait_s = self._due_at() - self._clock.now()
            if wait_s <= 0.0:
                return
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    def _due_at(self) -> float:
        """Who listens looks at one pace: somebody always wants something. Who dials looks
        often while an answer is due, and not before one can be there."""
        pace = self._pace
        if self._listens:
            return self._looked_at + pace.poll_s
        first_at = self._expected_at + max(pace.first_look_s, pace.busy_poll_s)
        short_at = max(self._looked_at + pace.busy_poll_s, first_at)
        is_busy = short_at <= self._expected_at + pace.busy_s
        return short_at if is_busy else self._looked_at + (pace.quiet_poll_s or pace.poll_s)

    async def read(self, senders: Collection[str], *, listens: bool) -> Sequence[bytes]:
        self._introduce()
        self._listens = listens
        if not self._found:
            now = self._looked_at = self._clock.now()
            if listens or now - self._listed_at >= LIST_EVERY_S:
                await self._list()
                self._listed_at = now
        were_listed = bool(self._found)
        if were_listed:
            keys = self._found[:LETTERS_AT_ONCE]
        else:
            # Who listens has just listed; from others only our peers have anything for us.
            keys = [] if listens else [self._next_key(sender) for sender in senders]
        if not keys:
            return ()
        self._counters.requests += len(keys)
        records = await self._store.get(*keys)
        self._found = self._found[len(keys) :]
        return self._taken(keys, records, were_listed)

    def expect(self) -> None:
        self._expected_at = self._clock.now()
        self._wake.set()

    async def close(self) -> None:
        if self._keeper is not None:
            self._tasks.cancel(self._keeper)
            await self._tasks.stopped(self._keeper)
        await self._tidier.close()

    def _taken(
        self, keys: Sequence[str], records: Sequence[Record | None], were_listed: bool
    ) -> list[bytes]:
        contents: list[bytes] = []
        for key, record in zip(keys, records, strict=True):
            if record is None and not were_listed:
                continue
            sender, number = _parts(key)
            _note(self._read, sender, number)
            self._tidier.add((key,))
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
                    self._tidier.add((entry.key,))
            after = page.after
            if not after:
                break
        self._found = [key for _, _, key in sorted(found)]

    async def _remove(self, keys: Sequence[str]) -> None:
        self._counters.requests += 1
        await self._store.write(*(Delete(key, ANY, silent=True) for key in keys))

    # Inboxes of the dead.

    def _introduce(self) -> None:
        if self._keeper is None:
            self._keeper = self._tasks.start("mailbox", self._keep_known(), group=GROUP)

    async def _keep_known(self) -> None:
        """While we live our mailbox is known to be ours; those of the dead are emptied."""
        key = make_key(MAILBOX, self._own)
        while True:
            try:
                self._counters.requests += 2
                await self._store.write(Put(key, b"", ANY, ttl_s=None, silent=True))
                await self._sweep()
            except StoreError:
                await self._clock.sleep(self._pace.retry_max_s)
                continue
            await self._clock.sleep(RENEW_EVERY_S)

    async def _sweep(self) -> None:
        """Nobody writes to a mailbox that was not renewed for as long as letters live."""
        idle_ms = round((self._pace.ttl_s + RENEW_EVERY_S) * 1000)
        page = await self._store.list(MAILBOX, idle_ms=idle_ms)
        for entry in page.entries:
            owner = entry.key.partition("/")[2]
            self._counters.requests += 3
            letters = await self._store.list(_kind(owner), limit=LISTED_MAX)
            gone = [letter.key for letter in letters.entries]
            # The mailbox last: whoever stops in between leaves it to be found again.
            if gone:
                await self._store.write(*(Delete(one, ANY, silent=True) for one in gone))
            if not letters.after:
                await self._store.write(Delete(entry.key, ANY, silent=True))


def looking(pace: Pace) -> Pace:
    """Nobody wakes who reads records: a pace that counts on it would wait too long, or not
    at all."""
    if pace.busy_poll_s > 0.0:
        return pace
    return msgspec.structs.replace(pace, poll_s=UNWOKEN_S, busy_poll_s=UNWOKEN_S)


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
