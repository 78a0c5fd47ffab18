"""One stream of the memory store: items in order, their holders, and recently removed ids.

Pure: time is an argument. A stream must never give one item to two owners at a time, nor let an
owner remove an item that was given to another one since.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from squall.coordination.store_errors import StaleClaimError, StreamFullError
from squall.coordination.stores.interface import (
    REMEMBERED_S,
    Append,
    Claim,
    Depth,
    Extend,
    Item,
    Remove,
)
from squall.coordination.stores.recent_takes import RecentTakes

REMEMBERED_MS = round(REMEMBERED_S * 1000)


class _StoredItem:
    """An item and its claim.

    `claim` names the last owner that took it; it is "" before the first take and after the item was
    given back. `until_ms` is 0 exactly then. A claim stays valid after `until_ms` until another
    take replaces it. `attempt` counts the takes and never falls."""

    __slots__ = ("appended_ms", "attempt", "claim", "id", "until_ms", "value", "versions")

    def __init__(
        self, item_id: str, value: bytes, appended_ms: int, versions: Mapping[str, str] | None
    ) -> None:
        self.id = item_id
        self.value = value
        self.appended_ms = appended_ms
        # None if the item is not carried.
        self.versions = versions
        self.claim = ""
        self.until_ms = 0
        self.attempt = 0


class MemoryStream:
    """One stream. `birth` distinguishes it from an earlier stream of the same name that expired."""

    def __init__(self, name: str, birth: str) -> None:
        self.name = name
        self.birth = birth
        self.expires_ms = 0
        self._last = 0
        # By number, in order. Numbers are never used twice.
        self._items: dict[int, _StoredItem] = {}
        # By id, also of items that were removed recently: a repeated append is recognised by it.
        self._numbers: dict[str, int] = {}
        # By number: time of the removal, the claim that removed it, and the id.
        self._removed: dict[int, tuple[int, str, str]] = {}
        self._takes: RecentTakes[dict[int, str]] = RecentTakes()

    def read(self, after: str, limit: int, now_ms: int) -> tuple[Item, ...]:
        begin = self._number(after)
        found: list[Item] = []
        for number, held in self._items.items():
            if number > begin:
                found.append(self._item(number, held, now_ms))
                if len(found) == limit:
                    break
        return tuple(found)

    def carried(self, after: str, limit: int, now_ms: int) -> tuple[Item, ...]:
        """The items after the cursor up to the first that is not carried: a listener must not get
        an item before an earlier one."""
        found: list[Item] = []
        for item in self.read(after, limit, now_ms):
            versions = self._items[self._number(item.cursor)].versions
            if versions is None:
                break
            found.append(msgspec.structs.replace(item, versions=versions))
        return tuple(found)

    def take(
        self, owner: str, lease_ms: int, limit: int, request: str, now_ms: int
    ) -> tuple[Claim, ...]:
        known = self._takes.find(owner, request, now_ms)
        if known is not None:
            return tuple(
                self._claim(number, self._items[number], now_ms)
                for number, claim in known.items()
                if number in self._items and self._items[number].claim == claim
            )
        free = [n for n, held in self._items.items() if held.until_ms <= now_ms][:limit]
        for number in free:
            held = self._items[number]
            held.attempt += 1
            held.claim = f"{owner}:{held.attempt}:{number}"
            held.until_ms = now_ms + lease_ms
        if request and free:
            self._takes.note(owner, request, {n: self._items[n].claim for n in free}, now_ms)
        return tuple(self._claim(number, self._items[number], now_ms) for number in free)

    def depth(self, now_ms: int) -> Depth:
        held = sum(item.until_ms > now_ms for item in self._items.values())
        oldest = next(iter(self._items.values()), None)
        age_ms = 0 if oldest is None else now_ms - oldest.appended_ms
        return Depth(items=len(self._items), held=held, oldest_ms=age_ms)

    def takeable_in_ms(self, now_ms: int) -> int | None:
        """How long until an item can be taken: 0 at once, None not before a write."""
        if not self._items:
            return None
        return max(0, min(held.until_ms for held in self._items.values()) - now_ms)

    def cursor_of(self, item_id: str) -> str:
        """The cursor of an id; "" if it was removed long ago."""
        number = self._numbers.get(item_id)
        return "" if number is None else self._cursor(number)

    def check_append(self, write: Append, now_ms: int) -> None:
        self._forget(now_ms)
        if write.id not in self._numbers and len(self._items) >= write.limit:
            raise StreamFullError(self.name, write.limit)

    def check_claim(self, write: Extend | Remove, now_ms: int) -> None:
        number = self._number(write.cursor)
        held = self._items.get(number)
        if isinstance(write, Remove):
            if not write.claim or (held is None and self._removed_by(number) == write.claim):
                return
        elif held is not None and held.until_ms == 0 and write.lease_s == 0.0:
            return
        if held is None or not write.claim or held.claim != write.claim:
            raise self.stale(write)

    def append(self, write: Append, now_ms: int, versions: Mapping[str, str] | None) -> None:
        self.expires_ms = max(self.expires_ms, now_ms + round(write.ttl_s * 1000))
        if write.id not in self._numbers:
            self._last += 1
            self._numbers[write.id] = self._last
            self._items[self._last] = _StoredItem(write.id, write.value, now_ms, versions)

    def apply_claim(self, write: Extend | Remove, now_ms: int) -> None:
        number = self._number(write.cursor)
        if isinstance(write, Remove):
            held = self._items.pop(number, None)
            if held is not None:
                self._removed[number] = (now_ms, write.claim, held.id)
            return
        held = self._items[number]
        if write.lease_s > 0.0:
            held.until_ms = now_ms + round(write.lease_s * 1000)
        else:
            held.until_ms, held.claim = 0, ""

    @staticmethod
    def stale(write: Extend | Remove) -> StaleClaimError:
        return StaleClaimError.of(write.stream, write.claim)

    def _removed_by(self, number: int) -> str:
        return self._removed.get(number, (0, "", ""))[1]

    def _cursor(self, number: int) -> str:
        return f"{self.birth}.{number}"

    def _number(self, cursor: str) -> int:
        birth, _, number = cursor.rpartition(".")
        return int(number) if cursor and birth == self.birth else 0

    def _item(self, number: int, held: _StoredItem, now_ms: int) -> Item:
        return Item(
            cursor=self._cursor(number),
            id=held.id,
            value=held.value,
            appended_ms=held.appended_ms,
            read_ms=now_ms,
        )

    def _claim(self, number: int, held: _StoredItem, now_ms: int) -> Claim:
        return Claim(
            item=self._item(number, held, now_ms),
            claim=held.claim,
            attempt=held.attempt,
            until_ms=held.until_ms,
        )

    def _forget(self, now_ms: int) -> None:
        for number, (removed_ms, _, item_id) in list(self._removed.items()):
            if now_ms - removed_ms < REMEMBERED_MS:
                break
            del self._removed[number]
            self._numbers.pop(item_id, None)
