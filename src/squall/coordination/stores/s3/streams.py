"""Streams on S3: numbered slots, each an object that is created once. No call lists objects.

**Appending** creates the first free slot (`create`, if absent). A writer that loses the slot tries
the next one, so it has seen every slot before its own: slots are dense, and a reader that follows
them misses none. A caller that recently read the end of the stream resumes there instead of
searching for it.

**Removing** an item turns its slot into a marker, so that slots stay dense and the end is found by
asking for the next one. Markers at the front are deleted only after the object `meta` names the new
front. An append reads `meta` after it created its slot. If its slot lies before the front, because
the writer was stopped while others moved on, it deletes the slot and appends again. Without that
check the item would stand where no reader looks. A process that deletes markers may die in the
middle; a sweep deletes what has been before the front for long.

**Changing** an item (take, extend, remove) is a `replace` on the ETag that was seen. What a process
knows of a slot may be outdated; then the replace loses, and the process reads the slot again.

**Expiry.** A stream has expired when its last slot has; it then reads as empty. After another
minute, when no writer can still be about to append behind items that were valid, the next append or
a sweep moves the front behind all slots. Numbers are never used twice: what remains of a stream is
`meta`, some ten bytes, which remembers them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain, repeat

import msgspec

from squall.coordination.store_errors import (
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
from squall.coordination.stores.recent_takes import RecentTakes
from squall.coordination.stores.s3.objects import S3Objects

STREAMS = "~streams"
BIRTH = "s3"
# Lost races in a row until a call gives up.
TRIES = 64
# Markers that are kept when the front moves: a removal that is repeated finds its own marker.
KEPT_MARKERS = 32
# Markers are dropped in groups: each group is one write of `meta`.
DROP_AT_ONCE = 32
READS_AT_ONCE = 8
# An append tries at the known end of the stream if it was found within this time.
RECENT_MS = 2000
# After so many lost slots the append searches for the end: a burst of writers moved it far.
LOST_IN_A_ROW = 8
# From the expiry of a stream until it is dropped: longer than any request may be on its way.
DROPPED_AFTER_MS = 60_000
# A sweep skips streams that changed within this time.
SWEPT_AFTER_MS = 3_600_000
# How many held items each take and each poll reads again, in turn. An item that was given back is
# found after a few of them, and twenty idle workers still cost little.
HELD_CHECKED = 2
# Slots that are read at once while all of them exist. A process that sees a stream for the first
# time gets through it fast; one that follows it reads one slot more than there are.
WALK_WIDTHS = (1, 1, 2, 4, 8, 16)


class StreamSlot(msgspec.Struct, omit_defaults=True):
    """The first line of a slot's object; the value of the item follows. The names are short: they
    are in every object."""

    i: str
    """The id of the item; never changes."""
    a: int
    """When it was appended, in ms of store time."""
    c: str = ""
    """The claim of the last take; "" before it and after the item was given back."""
    n: int = 0
    """How often it was taken; never falls."""
    u: int = 0
    """Until when the claim holds it; 0 exactly when `c` is ""."""
    q: str = ""
    """The request of the last take, to recognise its repeat."""
    r: bool = False
    """Removed: a marker without a value. Never becomes false again."""
    x: int = 0
    """When the stream expires if this is its last slot; 0 never."""


class SeenSlot(msgspec.Struct):
    """A slot as this process last read or wrote it, and the ETag that a change of it must name."""

    etag: str
    slot: StreamSlot
    value: bytes = b""


class StreamView:
    """What this process knows of one stream. It may be outdated, so every decision is a conditional
    write on what is known."""

    def __init__(self) -> None:
        # Slots up to this one are dropped. Never falls; at most the front in `meta`.
        self.front = 0
        # All slots from the front to this one existed when they were read. Never falls.
        self.last = 0
        # Slots after the front, by number.
        self.seen: dict[int, SeenSlot] = {}
        # The number of each id in `seen`, the first one if it was appended twice.
        self.numbers: dict[str, int] = {}
        # The takes of this process, to recognise a repeat.
        self.takes: RecentTakes[bool] = RecentTakes()
        # When `last` was found to be the end of the stream.
        self.end_at_ms = 0
        # Where the next check of held items begins.
        self.turn = 0

    def note(self, number: int, seen: SeenSlot) -> None:
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
        """Whether the stream has expired as a whole."""
        last = self.seen.get(self.last)
        return last is not None and 0 < last.slot.x <= now_ms


class S3Streams:
    """The streams of one store."""

    def __init__(self, objects: S3Objects, root: str, now_ms: Callable[[], Awaitable[int]]) -> None:
        self._objects = objects
        self._root = root
        self._now_ms = now_ms
        self._views: dict[str, StreamView] = {}

    async def append(self, write: Append) -> str:
        stream, view, now_ms = write.stream, self._view(write.stream), await self._now_ms()
        if now_ms - view.end_at_ms > RECENT_MS:
            await self._update(stream)
        await self._drop_expired(stream, view, now_ms)
        slot = StreamSlot(i=write.id, a=now_ms, x=now_ms + round(write.ttl_s * 1000))
        body = _body(slot, write.value)
        for lost in range(1, TRIES):
            known = view.numbers.get(write.id)
            if known is not None:
                if await self._front(stream, view) < known:
                    return _cursor(known)
                # The id is known, but its slot lies before the front. Either our own earlier
                # request created it there and its reply was lost, or it was dropped long ago.
                await self._objects.delete(self._slot_name(stream, known))
                continue
            await self._check_room(write, view)
            number = max(view.front, view.last) + 1
            name = self._slot_name(stream, number)
            # The conditional write that decides which writer has this number.
            etag = await self._objects.create(name, body)
            if etag is None:
                # Another writer has it. Reading its slot also finds an own first request that won.
                await self._reload(stream, view, number)
                if lost % LOST_IN_A_ROW == 0:
                    await self._update(stream)
                continue
            view.note(number, SeenSlot(etag, slot, write.value))
            if await self._front(stream, view) < number:
                view.end_at_ms = now_ms
                return _cursor(number)
            # The front moved past this number meanwhile: no reader would look here. `_front` has
            # dropped it from the view.
            await self._objects.delete(name, etag)
        raise StoreUnavailableError(
            f"nothing was appended to {stream}, other writers came first {TRIES} times"
        )

    async def _check_room(self, write: Append, view: StreamView) -> None:
        if len(view.open_numbers()) >= write.limit:
            # Others may have removed items that are open in this view.
            await self._refresh(write.stream, view, view.open_numbers())
            if len(view.open_numbers()) >= write.limit:
                raise StreamFullError(write.stream, write.limit)

    async def read(self, stream: str, after: str, limit: int) -> tuple[Item, ...]:
        begin = _number(after)
        seen_to = self._view(stream).last
        view = await self._update(stream)
        wanted = [number for number in await self._open(view) if number > begin]
        # `_update` has just read the items behind `seen_to`.
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
        """Claims free items. `check` runs before the first claim, and not if there is none."""
        seen_to = self._view(stream).last
        view = await self._update(stream)
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
            # `_update` has just read the items behind `seen_to`.
            is_new = number > seen_to and number in view.seen
            seen = view.seen[number] if is_new else await self._reload(stream, view, number)
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
        view = await self._update(stream)
        now_ms = await self._now_ms()
        for number in await self._candidates(stream, view, now_ms):
            seen = await self._reload(stream, view, number)
            if seen is not None and not seen.slot.r and seen.slot.u <= now_ms:
                return True
        return False

    async def depth(self, stream: str) -> Depth:
        view = await self._update(stream)
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
        raise StoreUnavailableError(
            f"an item of {write.stream} was not extended, others changed it {TRIES} times"
        )

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
                await self._drop_markers(write.stream, view)
                return
        raise StoreUnavailableError(
            f"an item of {write.stream} was not removed, others changed it {TRIES} times"
        )

    async def _held(
        self, write: Extend | Remove, view: StreamView, number: int, tried: int
    ) -> SeenSlot | None:
        """The item of the claim. The first try uses what is known if it names this claim, which
        saves a read; a failed try reads it."""
        known = view.seen.get(number)
        if known is not None and not tried and not known.slot.r and known.slot.c == write.claim:
            return known
        return await self._reload(write.stream, view, number)

    async def _is_ours(self, stream: str, view: StreamView, number: int, slot: StreamSlot) -> bool:
        """Whether the slot is as we wrote it although the write lost: then the client sent it
        twice, the first request won, and its answer was lost."""
        seen = await self._reload(stream, view, number)
        return seen is not None and seen.slot == slot

    async def _claims_of(
        self, stream: str, view: StreamView, owner: str, request: str, now_ms: int
    ) -> tuple[Claim, ...]:
        """The claims of a take whose reply was lost."""
        await self._refresh(stream, view, view.open_numbers())
        return tuple(
            _claim(number, view.seen[number], now_ms)
            for number in view.open_numbers()
            if view.seen[number].slot.q == request
            and view.seen[number].slot.c.startswith(f"{owner}:")
        )

    def _view(self, stream: str) -> StreamView:
        return self._views.setdefault(stream, StreamView())

    def _slot_name(self, stream: str, number: int) -> str:
        return f"{self._root}/{STREAMS}/{stream}/slot/{number:020d}"

    def _meta_name(self, stream: str) -> str:
        return f"{self._root}/{STREAMS}/{stream}/meta"

    async def _front(self, stream: str, view: StreamView) -> int:
        found = await self._meta(stream)
        if found is None:
            await self._objects.create(self._meta_name(stream), b"0")
            return view.front
        view.forget_to(found[0])
        return view.front

    async def _meta(self, stream: str) -> tuple[int, str] | None:
        """The front of the stream and the ETag of its object; None if there is no such object."""
        name = self._meta_name(stream)
        found = await self._objects.fetch(name)
        try:
            return None if found is None else (int(found.body), found.etag)
        except ValueError:
            raise self._objects.foreign_object(name) from None

    async def _update(self, stream: str) -> StreamView:
        """Updates the front and the end of a view. Slots in between may still be outdated."""
        view = self._view(stream)
        view.last = max(await self._front(stream, view), view.last)
        for ahead in chain(WALK_WIDTHS, repeat(WALK_WIDTHS[-1])):
            if not await self._read_ahead(stream, view, ahead):
                break
        view.end_at_ms = await self._now_ms()
        return view

    async def _read_ahead(self, stream: str, view: StreamView, ahead: int) -> bool:
        """Reads the next slots and notes them up to the first that is missing. Returns whether all
        existed. Slots after a missing one are not noted: the missing one may have been created
        right after it was read, and a reader that went on behind it would miss its item."""
        begin = view.last + 1
        numbers = range(begin, begin + ahead)
        found = await asyncio.gather(*(self._fetch(stream, number) for number in numbers))
        for number, seen in zip(numbers, found, strict=True):
            if seen is None:
                return False
            view.note(number, seen)
        return True

    async def _reload(self, stream: str, view: StreamView, number: int) -> SeenSlot | None:
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

    async def _fetch(self, stream: str, number: int) -> SeenSlot | None:
        name = self._slot_name(stream, number)
        found = await self._objects.fetch(name)
        if found is None:
            return None
        line, _, value = found.body.partition(b"\n")
        try:
            return SeenSlot(found.etag, msgspec.json.decode(line, type=StreamSlot), value)
        except msgspec.DecodeError:
            raise self._objects.foreign_object(name) from None

    async def _refresh(self, stream: str, view: StreamView, numbers: Iterable[int]) -> None:
        limit = asyncio.Semaphore(READS_AT_ONCE)

        async def reload(number: int) -> None:
            async with limit:
                await self._reload(stream, view, number)

        await asyncio.gather(*(reload(number) for number in numbers))

    async def _candidates(self, stream: str, view: StreamView, now_ms: int) -> list[int]:
        """Items that may be taken: those that are free as far as known, then some held ones, which
        may have been given back since."""
        free: list[int] = []
        held: list[int] = []
        for number in await self._open(view):
            (held if view.seen[number].slot.u > now_ms else free).append(number)
        view.turn += HELD_CHECKED
        begin = view.turn % max(1, len(held))
        return free + (held[begin:] + held[:begin])[:HELD_CHECKED]

    async def _change(
        self, stream: str, view: StreamView, number: int, seen: SeenSlot, slot: StreamSlot
    ) -> bool:
        """Replaces a slot on the ETag that was seen. Returns False if it was changed meanwhile."""
        value = b"" if slot.r else seen.value
        name = self._slot_name(stream, number)
        etag = await self._objects.replace(name, _body(slot, value), seen.etag)
        if etag is None:
            return False
        view.note(number, SeenSlot(etag, slot, value))
        return True

    async def _drop_markers(self, stream: str, view: StreamView) -> None:
        """Moves the front over the markers at the front, and then deletes them."""
        front = view.front
        while front + 1 in view.seen and view.seen[front + 1].slot.r:
            front += 1
        front -= KEPT_MARKERS
        if front - view.front < DROP_AT_ONCE:
            return
        await self._move_front(stream, view, front)

    async def _move_front(self, stream: str, view: StreamView, front: int) -> bool:
        """Moves the front in `meta`, then deletes the slots before it. Never the other way round:
        an append would create a slot again that was deleted, where no reader looks. Returns
        whether this process moved it."""
        found = await self._meta(stream)
        if found is None or found[0] >= front:
            return False
        before, etag = found
        if await self._objects.replace(self._meta_name(stream), b"%d" % front, etag) is None:
            # Lost, unless our own first request won: then the front is ours.
            found_now = await self._meta(stream)
            if found_now is None or found_now[0] != front:
                return False
        view.forget_to(front)
        await self._delete(stream, range(before + 1, front + 1))
        return True

    async def _delete(self, stream: str, numbers: Iterable[int]) -> None:
        limit = asyncio.Semaphore(READS_AT_ONCE)

        async def delete(number: int) -> None:
            async with limit:
                await self._objects.delete(self._slot_name(stream, number))

        await asyncio.gather(*map(delete, numbers))

    async def sweep(self, kind: str, limit: int) -> int:
        """Drops expired streams and returns how many. It skips streams that changed recently."""
        now_ms, removed = await self._now_ms(), 0
        # By stream and number of a slot, when it was changed.
        slots: dict[str, dict[int, int]] = {}
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
            # Fetched without noting it: this process may not have read the slots before it, and
            # `last` must not pass them.
            seen = await self._fetch(stream, max(changed_ms))
            if seen is not None and 0 < seen.slot.x <= now_ms - DROPPED_AFTER_MS:
                removed += await self._drop_expired(stream, await self._update(stream), now_ms)
        return removed

    async def _delete_before_front(self, stream: str, numbers: Iterable[int]) -> None:
        found = await self._meta(stream)
        if found is not None:
            await self._delete(stream, [number for number in numbers if number <= found[0]])

    async def _drop_expired(self, stream: str, view: StreamView, now_ms: int) -> bool:
        """Drops an expired stream. Returns whether this process did."""
        if not view.is_over(now_ms - DROPPED_AFTER_MS):
            return False
        # Checked again after an update: a writer may have appended since the last read.
        await self._update(stream)
        if not view.is_over(now_ms - DROPPED_AFTER_MS):
            return False
        ours = await self._move_front(stream, view, view.last)
        # If another process moved the front, this view follows it.
        await self._front(stream, view)
        return ours

    async def _open(self, view: StreamView) -> list[int]:
        return [] if view.is_over(await self._now_ms()) else view.open_numbers()


def _body(slot: StreamSlot, value: bytes) -> bytes:
    return msgspec.json.encode(slot) + b"\n" + value


def _cursor(number: int) -> str:
    return f"{BIRTH}.{number}"


def _number(cursor: str) -> int:
    birth, _, number = cursor.rpartition(".")
    return int(number) if birth == BIRTH else 0


def _item(number: int, seen: SeenSlot, read_ms: int) -> Item:
    return Item(
        cursor=_cursor(number),
        id=seen.slot.i,
        value=seen.value,
        appended_ms=seen.slot.a,
        read_ms=read_ms,
    )


def _claim(number: int, seen: SeenSlot, read_ms: int) -> Claim:
    return Claim(
        item=_item(number, seen, read_ms),
        claim=seen.slot.c,
        attempt=seen.slot.n,
        until_ms=seen.slot.u,
    )


def _stale(write: Extend | Remove) -> StaleClaimError:
    return StaleClaimError.of(write.stream, write.claim)
