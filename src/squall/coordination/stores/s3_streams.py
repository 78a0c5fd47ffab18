"""Streams on S3: numbered slots, each created once, without a listing anywhere.

An append creates the first free slot; whoever loses it tries the next, so it has seen all slots
before its own. Who knew the end a moment ago begins there and need not look for it. A removed item
leaves its slot as a marker, so that slots stay dense and the end is found by asking for the
next one. Markers at the front are dropped after `meta` says so, and never before: an append
looks at `meta` after it created its slot, and if the slot lies before that front (its writer
slept while others went on) it takes it away and appends again behind. So no item is created where
nobody reads. Who drops markers may be ended in the middle: a sweep deletes what has lain before the
front for long.

What was seen of an item may be old: it is changed only on the ETag that was seen, and who is
refused looks again.

Numbers are never used twice. A stream has expired when its last slot has: then it reads as empty.
A minute later, when nobody can be about to append behind items that were still good, the next
append moves the front behind all of it, and so does a sweep. What stays of a stream is `meta`, some
ten bytes: it remembers the numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain, repeat

import msgspec

from squall.coordination.stores.errors import (
    StaleClaimError,
    StoreUnavailableError,
    StreamFullError,
)
from squall.coordination.stores.interface import (
    Append,
    Claim,
    Depth,
    Extend,
    Item,
    Remove,
)
from squall.coordination.stores.s3_objects import S3Objects
from squall.coordination.stores.takes import LastTakes

STREAMS = "~streams"
BIRTH = "s3"
TRIES = 64
KEPT_MARKERS = 32
"""Behind the front: a repeat of a removal still finds its own."""
DROP_AT_ONCE = 32
LOOKS_AT_ONCE = 8
RECENT_MS = 2000
"""Who knew the end of a stream so long ago tries to append there."""
LOST_IN_A_ROW = 8
"""Slots; then the end is looked for."""
BURIED_AFTER_MS = 60_000
"""From the expiry of a stream until it is dropped."""
SWEPT_AFTER_MS = 3_600_000
"""Streams that somebody changed since then are not looked at."""
LOOKS_AT_HELD = 2
"""Of the items that somebody holds, with each take and each poll, in turn: one that is given back
is found, and twenty workers that have nothing to do cost little."""
PACES = (1, 1, 2, 4, 8, 16)
"""Slots that are asked for at once, while all of them are there: one that has not seen a stream
yet comes through it soon, one that follows it asks for no more than it needs."""


class Slot(msgspec.Struct, omit_defaults=True):
    """The first line of a slot's object; the value follows."""

    i: str
    a: int
    c: str = ""
    n: int = 0
    u: int = 0
    q: str = ""
    r: bool = False
    x: int = 0
    """When the stream expires that ends with this slot; 0 never."""


class Seen(msgspec.Struct):
    """A slot as it was last read or written by us."""

    etag: str
    slot: Slot
    value: bytes = b""


class View:
    """What this process knows of one stream; never trusted for a decision by itself."""

    def __init__(self) -> None:
        self.front = 0
        """Slots up to this one are dropped."""
        self.last = 0
        """Slots up to this one were there."""
        self.seen: dict[int, Seen] = {}
        self.numbers: dict[str, int] = {}
        self.takes: LastTakes[bool] = LastTakes()
        """Of owners here, to know a repeat."""
        self.end_at_ms = 0
        """When `last` was found to be the end."""
        self.turn = 0
        """Which of the held items are looked at next."""

    def note(self, number: int, seen: Seen) -> None:
        self.last = max(self.last, number)
        self.seen[number] = seen
        self.numbers.setdefault(seen.slot.i, number)

    def open_numbers(self) -> list[int]:
        return sorted(number for number, seen in self.seen.items() if not seen.slot.r)

    def forget_to(self, front: int) -> None:
        self.front = max(self.front, front)
        for number in [number for number in self.seen if number <= self.front]:
            gone = self.seen.pop(number)
            self.numbers.pop(gone.slot.i, None)

    def is_over(self, now_ms: int) -> bool:
        """It has expired as a whole."""
        last = self.seen.get(self.last)
        return last is not None and 0 < last.slot.x <= now_ms


class S3Streams:
    def __init__(self, objects: S3Objects, root: str, now_ms: Callable[[], Awaitable[int]]) -> None:
        self._objects = objects
        self._root = root
        self._now_ms = now_ms
        self._views: dict[str, View] = {}

    async def append(self, write: Append) -> str:
        stream, view, now_ms = write.stream, self._view(write.stream), await self._now_ms()
        if now_ms - view.end_at_ms > RECENT_MS:
            await self._updated(stream)
        await self._bury(stream, view, now_ms)
        slot = Slot(i=write.id, a=now_ms, x=now_ms + round(write.ttl_s * 1000))
        body = _body(slot, write.value)
        for lost in range(1, TRIES):
            known = view.numbers.get(write.id)
            if known is not None:
                if await self._front(stream, view) < known:
                    return _cursor(known)
                # Ours, created before the front, and its reply was lost; or long gone.
                await self._objects.delete(self._slot_name(stream, known))
                continue
            await self._check_room(write, view)
            number = max(view.front, view.last) + 1
            name = self._slot_name(stream, number)
            etag = await self._objects.create(name, body)
            if etag is None:
                await self._look(stream, view, number)
                if lost % LOST_IN_A_ROW == 0:
                    await self._updated(stream)
                continue
            view.note(number, Seen(etag, slot, write.value))
            if await self._front(stream, view) < number:
                view.end_at_ms = now_ms
                return _cursor(number)
            # Created before the front: `_front` has forgotten it again.
            await self._objects.delete(name, etag)
        raise StoreUnavailableError(f"{stream} grows too fast to be appended to")

    async def _check_room(self, write: Append, view: View) -> None:
        if len(view.open_numbers()) >= write.limit:
            await self._refresh(write.stream, view, view.open_numbers())
            if len(view.open_numbers()) >= write.limit:
                raise StreamFullError(write.stream, write.limit)

    async def read(self, stream: str, after: str, limit: int) -> tuple[Item, ...]:
        begin = _number(after)
        seen_to = self._view(stream).last
        view = await self._updated(stream)
        wanted = [number for number in await self._open(view) if number > begin]
        # What lies behind was looked at just now.
        await self._refresh(stream, view, [each for each in wanted[:limit] if each <= seen_to])
        read_ms = await self._now_ms()
        return tuple(
            _item(number, view.seen[number], read_ms)
            for number in wanted
            if number in view.seen and not view.seen[number].slot.r
        )[:limit]

    async def take(
        self,
        stream: str,
        owner: str,
        lease_ms: int,
        limit: int,
        request: str,
        check: Callable[[], Awaitable[None]],
    ) -> tuple[Claim, ...]:
        """`check` is called before the first one is taken."""
        seen_to = self._view(stream).last
        view = await self._updated(stream)
        now_ms = await self._now_ms()
        if view.takes.find(owner, request, now_ms):
            repeated = await self._claims_of(stream, view, owner, request, now_ms)
            if repeated:
                return repeated
        if request:
            view.takes.note(owner, request, True, now_ms)
        claims: list[Claim] = []
        is_checked = False
        for number in await self._candidates(stream, view, now_ms):
            if len(claims) == limit:
                break
            # What lies behind was looked at just now.
            is_new = number > seen_to and number in view.seen
            seen = view.seen[number] if is_new else await self._look(stream, view, number)
            if seen is None or seen.slot.r or seen.slot.u > now_ms:
                continue
            attempt = seen.slot.n + 1
            slot = msgspec.structs.replace(
                seen.slot,
                c=f"{owner}:{attempt}:{number}",
                n=attempt,
                u=now_ms + lease_ms,
                q=request,
            )
            if not is_checked:
                await check()
                is_checked = True
            if await self._change(stream, view, number, seen, slot) or (
                request and await self._is_ours(stream, view, number, slot)
            ):
                claims.append(_claim(number, view.seen[number], now_ms))
        return tuple(claims)

    async def is_takeable(self, stream: str) -> bool:
        view = await self._updated(stream)
        now_ms = await self._now_ms()
        for number in await self._candidates(stream, view, now_ms):
            seen = await self._look(stream, view, number)
            if seen is not None and not seen.slot.r and seen.slot.u <= now_ms:
                return True
        return False

    async def depth(self, stream: str) -> Depth:
        view = await self._updated(stream)
        await self._refresh(stream, view, view.open_numbers())
        now_ms = await self._now_ms()
        slots = [view.seen[number].slot for number in await self._open(view)]
        return Depth(
            items=len(slots),
            held=sum(slot.u > now_ms for slot in slots),
            oldest_ms=max(0, now_ms - slots[0].a) if slots else 0,
        )

    async def extend(self, write: Extend) -> None:
        view = self._view(write.stream)
        number = _number(write.cursor)
        for tried in range(TRIES):
            seen = await self._held(write, view, number, tried)
            if seen is None or seen.slot.r:
                raise _stale(write)
            if write.lease_s == 0.0 and seen.slot.u == 0:
                return
            if not write.claim or seen.slot.c != write.claim:
                raise _stale(write)
            if write.lease_s > 0.0:
                until_ms = await self._now_ms() + round(write.lease_s * 1000)
                slot = msgspec.structs.replace(seen.slot, u=until_ms)
            else:
                slot = msgspec.structs.replace(seen.slot, u=0, c="")
            if await self._change(write.stream, view, number, seen, slot):
                return
        raise StoreUnavailableError(f"an item of {write.stream} changes too fast to be held")

    async def remove(self, write: Remove) -> None:
        view = self._view(write.stream)
        number = _number(write.cursor)
        for tried in range(TRIES):
            seen = await self._held(write, view, number, tried)
            if seen is None or (seen.slot.r and not write.claim):
                if write.claim:
                    raise _stale(write)
                return
            if write.claim and seen.slot.c != write.claim:
                raise _stale(write)
            if seen.slot.r:
                return
            slot = msgspec.structs.replace(seen.slot, r=True)
            if await self._change(write.stream, view, number, seen, slot):
                await self._drop(write.stream, view)
                return
        raise StoreUnavailableError(f"an item of {write.stream} changes too fast to be removed")

    async def _held(
        self, write: Extend | Remove, view: View, number: int, tried: int
    ) -> Seen | None:
        """The item under the claim of the write, as we saw it if that is enough for a first try."""
        known = view.seen.get(number)
        if known is not None and not tried and not known.slot.r and known.slot.c == write.claim:
            return known
        return await self._look(write.stream, view, number)

    async def _is_ours(self, stream: str, view: View, number: int, slot: Slot) -> bool:
        """Whether it stands there as we wrote it, though the write was refused: then it was sent
        twice, and only the first answer was lost."""
        seen = await self._look(stream, view, number)
        return seen is not None and seen.slot == slot

    async def _claims_of(
        self, stream: str, view: View, owner: str, request: str, now_ms: int
    ) -> tuple[Claim, ...]:
        """What a take got whose reply was lost."""
        await self._refresh(stream, view, view.open_numbers())
        return tuple(
            _claim(number, view.seen[number], now_ms)
            for number in view.open_numbers()
            if view.seen[number].slot.q == request
            and view.seen[number].slot.c.startswith(f"{owner}:")
        )

    def _view(self, stream: str) -> View:
        return self._views.setdefault(stream, View())

    def _slot_name(self, stream: str, number: int) -> str:
        return f"{self._root}/{STREAMS}/{stream}/slot/{number:020d}"

    def _meta_name(self, stream: str) -> str:
        return f"{self._root}/{STREAMS}/{stream}/meta"

    async def _front(self, stream: str, view: View) -> int:
        found = await self._meta(stream)
        if found is None:
            await self._objects.create(self._meta_name(stream), b"0")
            return view.front
        view.forget_to(found[0])
        return view.front

    async def _meta(self, stream: str) -> tuple[int, str] | None:
        """The front, and the etag of the object that says so."""
        name = self._meta_name(stream)
        found = await self._objects.fetch(name)
        try:
            return None if found is None else (int(found.body), found.etag)
        except ValueError:
            raise self._objects.foreign(name) from None

    async def _updated(self, stream: str) -> View:
        """Front and end are those of now; what lies between may be older."""
        view = self._view(stream)
        view.last = max(await self._front(stream, view), view.last)
        for ahead in chain(PACES, repeat(PACES[-1])):
            if not await self._walk(stream, view, ahead):
                break
        view.end_at_ms = await self._now_ms()
        return view

    async def _walk(self, stream: str, view: View, ahead: int) -> bool:
        """Notes the next slots, up to the first that is missing; whether all were there. What
        lies behind a missing one may have been created after we looked for that one: noting it
        would make readers go past an item."""
        begin = view.last + 1
        numbers = range(begin, begin + ahead)
        found = await asyncio.gather(*(self._fetch(stream, number) for number in numbers))
        for number, seen in zip(numbers, found, strict=True):
            if seen is None:
                return False
            view.note(number, seen)
        return True

    async def _look(self, stream: str, view: View, number: int) -> Seen | None:
        known = view.seen.get(number)
        if known is not None and known.slot.r:
            return known
        seen = await self._fetch(stream, number)
        if seen is None:
            gone = view.seen.pop(number, None)
            if gone is not None:
                view.numbers.pop(gone.slot.i, None)
            return None
        view.note(number, seen)
        return seen

    async def _fetch(self, stream: str, number: int) -> Seen | None:
        name = self._slot_name(stream, number)
        found = await self._objects.fetch(name)
        if found is None:
            return None
        line, _, value = found.body.partition(b"\n")
        try:
            return Seen(found.etag, msgspec.json.decode(line, type=Slot), value)
        except msgspec.DecodeError:
            raise self._objects.foreign(name) from None

    async def _refresh(self, stream: str, view: View, numbers: Iterable[int]) -> None:
        limit = asyncio.Semaphore(LOOKS_AT_ONCE)

        async def look(number: int) -> None:
            async with limit:
                await self._look(stream, view, number)

        await asyncio.gather(*(look(number) for number in numbers))

    async def _candidates(self, stream: str, view: View, now_ms: int) -> list[int]:
        """Free by what we know first; then some of the held, which may have been given back."""
        free: list[int] = []
        held: list[int] = []
        for number in await self._open(view):
            (held if view.seen[number].slot.u > now_ms else free).append(number)
        view.turn += LOOKS_AT_HELD
        begin = view.turn % max(1, len(held))
        return free + (held[begin:] + held[:begin])[:LOOKS_AT_HELD]

    async def _change(self, stream: str, view: View, number: int, seen: Seen, slot: Slot) -> bool:
        value = b"" if slot.r else seen.value
        name = self._slot_name(stream, number)
        etag = await self._objects.replace(name, _body(slot, value), seen.etag)
        if etag is None:
            return False
        view.note(number, Seen(etag, slot, value))
        return True

    async def _drop(self, stream: str, view: View) -> None:
        """Moves the front over markers, then deletes them; what nobody can append to."""
        front = view.front
        while front + 1 in view.seen and view.seen[front + 1].slot.r:
            front += 1
        front -= KEPT_MARKERS
        if front - view.front < DROP_AT_ONCE:
            return
        await self._move_front(stream, view, front)

    async def _move_front(self, stream: str, view: View, front: int) -> bool:
        """Whether it was us who dropped what lies before."""
        found = await self._meta(stream)
        if found is None or found[0] >= front:
            return False
        before, etag = found
        if await self._objects.replace(self._meta_name(stream), b"%d" % front, etag) is None:
            found_now = await self._meta(stream)
            if found_now is None or found_now[0] != front:
                return False
        view.forget_to(front)
        await self._delete(stream, range(before + 1, front + 1))
        return True

    async def _delete(self, stream: str, numbers: Iterable[int]) -> None:
        limit = asyncio.Semaphore(LOOKS_AT_ONCE)

        async def delete(number: int) -> None:
            async with limit:
                await self._objects.delete(self._slot_name(stream, number))

        await asyncio.gather(*map(delete, numbers))

    async def sweep(self, kind: str, limit: int) -> int:
        """Drops streams that have expired; how many. Nothing that changed lately is looked at."""
        now_ms, removed = await self._now_ms(), 0
        slots: dict[str, dict[int, int]] = {}
        """By stream and number, when it was changed."""
        async for found in self._objects.listing(f"{self._root}/{STREAMS}/{kind}/"):
            name = found.name.removeprefix(f"{self._root}/{STREAMS}/")
            stream, is_slot, number = name.partition("/slot/")
            if is_slot and number.isdecimal():
                slots.setdefault(stream, {})[int(number)] = found.modified_ms
        for stream, changed_ms in slots.items():
            if removed == limit:
                break
            if now_ms - changed_ms[min(changed_ms)] >= SWEPT_AFTER_MS:
                await self._delete_before_front(stream, changed_ms)
            if now_ms - max(changed_ms.values()) < SWEPT_AFTER_MS:
                continue
            # Not noted: this process may not have come so far, and must not go past anything.
            seen = await self._fetch(stream, max(changed_ms))
            if seen is not None and 0 < seen.slot.x <= now_ms - BURIED_AFTER_MS:
                removed += await self._bury(stream, await self._updated(stream), now_ms)
        return removed

    async def _delete_before_front(self, stream: str, numbers: Iterable[int]) -> None:
        found = await self._meta(stream)
        if found is not None:
            await self._delete(stream, [number for number in numbers if number <= found[0]])

    async def _bury(self, stream: str, view: View, now_ms: int) -> bool:
        """Drops all of a stream that has expired. Whether it was us."""
        if not view.is_over(now_ms - BURIED_AFTER_MS):
            return False
        await self._updated(stream)
        if not view.is_over(now_ms - BURIED_AFTER_MS):
            return False
        ours = await self._move_front(stream, view, view.last)
        # If it was somebody else: what it dropped is not known here any more, either.
        await self._front(stream, view)
        return ours

    async def _open(self, view: View) -> list[int]:
        return [] if view.is_over(await self._now_ms()) else view.open_numbers()


def _body(slot: Slot, value: bytes) -> bytes:
    return msgspec.json.encode(slot) + b"\n" + value


def _cursor(number: int) -> str:
    return f"{BIRTH}.{number}"


def _number(cursor: str) -> int:
    birth, _, number = cursor.rpartition(".")
    return int(number) if birth == BIRTH else 0


def _item(number: int, seen: Seen, read_ms: int) -> Item:
    return Item(
        cursor=_cursor(number),
        id=seen.slot.i,
        value=seen.value,
        appended_ms=seen.slot.a,
        read_ms=read_ms,
    )


def _claim(number: int, seen: Seen, read_ms: int) -> Claim:
    return Claim(
        item=_item(number, seen, read_ms),
        claim=seen.slot.c,
        attempt=seen.slot.n,
        until_ms=seen.slot.u,
    )


def _stale(write: Extend | Remove) -> StaleClaimError:
    return StaleClaimError(
        write.stream, f"claim {write.claim} of {write.stream} is not the present one"
    )
