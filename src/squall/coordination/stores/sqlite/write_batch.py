"""One batch of writes of the SQLite store, inside the transaction that its caller began.

All conditions are checked before anything is written, as on every store with transactions: a
conflict must leave nothing behind, and conditions are about the state before the batch. The
transaction was begun with the write lock, so no other process writes between a check and its write.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from squall.coordination.store_errors import (
    StaleClaimError,
    StaleEpochError,
    StreamFullError,
    VersionConflict,
)
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    REMEMBERED_S,
    Append,
    Check,
    Condition,
    Delete,
    Extend,
    Fence,
    Put,
    Record,
    Remove,
    Write,
    kind_of,
)
from squall.coordination.stores.sqlite import tables

_ITEM = " WHERE prefix = ? AND stream = ? AND number = ?"


class WriteBatch:
    """Applies one batch at `now_ms`. `token` is the version of puts without a token of their own,
    and the birth of new streams."""

    def __init__(self, db: sqlite3.Connection, prefix: str, now_ms: int, token: str) -> None:
        self._db = db
        self._prefix = prefix
        self._now_ms = now_ms
        self._token = token

    def apply(self, writes: Sequence[Write], fence: Fence | None) -> tuple[str, ...]:
        if not self._is_done(writes):
            if fence is not None:
                self._check_fence(fence, writes)
            for write in writes:
                self.check(write)
            for write in writes:
                self._apply(write, fence)
        return tuple(self._result(write) for write in writes)

    def _record(self, key: str) -> Record | None:
        return tables.record(self._db, self._prefix, key, self._now_ms)

    def _is_done(self, writes: Sequence[Write]) -> bool:
        """Whether this batch took effect before and its reply was lost: a record then has the
        token of one of its puts. Checking its conditions again would report a conflict with
        itself."""
        for write in writes:
            if isinstance(write, Put) and write.token:
                found = self._record(write.key)
                if found is not None and found.version == write.token:
                    return True
        return False

    def _check_fence(self, fence: Fence, writes: Sequence[Write]) -> None:
        written = {write.key for write in writes if isinstance(write, Put)}
        scope = self._record(fence.scope)
        # A batch that writes the scope is an election or a renewal: it needs no current epoch, but
        # like all writes it must not lower one.
        if fence.scope not in written and (scope is None or scope.epoch != fence.epoch):
            raise StaleEpochError(fence.scope, fence.epoch, scope and scope.epoch)
        for key in sorted(written):
            found = self._record(key)
            if found is not None and found.epoch > fence.epoch:
                raise StaleEpochError(fence.scope, fence.epoch, found.epoch)

    def check(self, write: Write) -> None:
        """Raises if the condition of a write does not hold."""
        match write:
            case Put() | Check():
                self._expect(write.key, write.expect)
            case Delete():
                found = self._record(write.key)
                if found is not None and write.expect not in (ANY, found.version):
                    raise VersionConflict(write.key)
            case Append():
                self._check_append(write)
            case Extend() | Remove():
                if not self._may(write):
                    raise StaleClaimError.of(write.stream, write.claim)

    def _expect(self, key: str, expect: Condition) -> None:
        found = self._record(key)
        fits = found is None if expect is ABSENT else found is not None and found.version == expect
        if expect is not ANY and not fits:
            raise VersionConflict(key)

    def _check_append(self, write: Append) -> None:
        birth = tables.birth_of(self._db, self._prefix, write.stream, self._now_ms)
        if birth is None or self._number_of_id(write) is not None:
            # A new stream has room, and a repeat of a known id adds nothing.
            return
        (items,) = self._db.execute(
            "SELECT count(*) FROM items WHERE prefix = ? AND stream = ? AND removed_ms IS NULL",
            (self._prefix, write.stream),
        ).fetchone()
        if items >= write.limit:
            raise StreamFullError(write.stream, write.limit)

    def _number_of_id(self, write: Append) -> int | None:
        found = self._db.execute(
            "SELECT number FROM items WHERE prefix = ? AND stream = ? AND id = ?",
            (self._prefix, write.stream, write.id),
        ).fetchone()
        return None if found is None else found[0]

    def _place(self, write: Extend | Remove) -> tuple[str, str, int]:
        birth = tables.birth_of(self._db, self._prefix, write.stream, self._now_ms)
        number = 0 if birth is None else tables.number_of(write.cursor, birth)
        return self._prefix, write.stream, number

    def _may(self, write: Extend | Remove) -> bool:
        if isinstance(write, Remove) and not write.claim:
            return True
        found = self._db.execute(
            "SELECT claim, until_ms, removed_ms FROM items" + _ITEM, self._place(write)
        ).fetchone()
        if found is None:
            return False
        claim, until_ms, removed_ms = found
        if isinstance(write, Extend):
            # Giving back an item that is free is the repeat of a give-back.
            given_back = until_ms == 0 and write.lease_s == 0.0
            return removed_ms is None and (given_back or (claim == write.claim != ""))
        # Also true for an item that this claim has removed: a repeat of the removal.
        return claim == write.claim

    def _apply(self, write: Write, fence: Fence | None) -> None:
        match write:
            case Put():
                self._put(write, fence)
            case Delete():
                self._db.execute(
                    "DELETE FROM records WHERE prefix = ? AND key = ?", (self._prefix, write.key)
                )
            case Append():
                self._append(write)
            case Remove():
                # The row stays, without its value, until its id is forgotten: see `_append`. "@" is
                # no claim that an owner can have.
                claim = write.claim or "@"
                self._db.execute(
                    "UPDATE items SET removed_ms = ?, claim = ?, value = x''"
                    + _ITEM
                    + " AND removed_ms IS NULL",
                    (self._now_ms, claim, *self._place(write)),
                )
            case Extend():
                until_ms = self._now_ms + round(write.lease_s * 1000) if write.lease_s > 0 else 0
                claim = write.claim if until_ms else ""
                self._db.execute(
                    "UPDATE items SET until_ms = ?, claim = ?" + _ITEM,
                    (until_ms, claim, *self._place(write)),
                )
            case Check():
                pass

    def _put(self, write: Put, fence: Fence | None) -> None:
        before = self._record(write.key)
        epoch = fence.epoch if fence is not None else before.epoch if before is not None else 0
        expires_ms = None if write.ttl_s is None else self._now_ms + round(write.ttl_s * 1000)
        version = write.token or self._token
        self._db.execute(
            "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(self._prefix, write.key, kind_of(write.key), write.value),
                *(version, epoch, self._now_ms, expires_ms),
            ),
        )

    def _append(self, write: Append) -> None:
        db, place = self._db, (self._prefix, write.stream)
        if tables.birth_of(db, *place, self._now_ms) is None:
            # Expired or new. An expired one goes first, so that its ids and items do not come back.
            tables.forget_stream(db, *place)
            db.execute("INSERT INTO streams VALUES (?, ?, ?, 0, 0)", (*place, self._token))
        expires_ms = self._now_ms + round(write.ttl_s * 1000)
        db.execute(
            "UPDATE streams SET expires_ms = max(expires_ms, ?) WHERE prefix = ? AND name = ?",
            (expires_ms, *place),
        )
        if self._number_of_id(write) is not None:
            return
        (last,) = db.execute(
            "UPDATE streams SET last = last + 1 WHERE prefix = ? AND name = ? RETURNING last",
            place,
        ).fetchone()
        db.execute(
            "INSERT INTO items VALUES (?, ?, ?, ?, ?, ?, '', 0, 0, NULL)",
            (*place, last, write.id, write.value, self._now_ms),
        )
        db.execute(
            "DELETE FROM items WHERE prefix = ? AND stream = ? AND removed_ms < ?",
            (*place, self._now_ms - round(REMEMBERED_S * 1000)),
        )

    def _result(self, write: Write) -> str:
        """The result of a write, also of a batch that was done before: others may have changed the
        record since then."""
        match write:
            case Put():
                found = self._record(write.key)
                return write.token or ("" if found is None else found.version)
            case Append():
                birth = tables.birth_of(self._db, self._prefix, write.stream, self._now_ms)
                number = self._number_of_id(write)
                return "" if birth is None or number is None else f"{birth}.{number}"
            case _:
                return ""
