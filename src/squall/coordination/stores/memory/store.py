"""The store for one process: the whole contract in dictionaries.

It is the reference: the contract tests hold the other stores to what this one does. Its state is
gone at exit, and no other process sees it. Store time follows the clock that it is given, so that
in a simulation the store has a clock of its own.

No method awaits between a check and the write that the check allows: that makes batches atomic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from squall.coordination.store_errors import StaleEpochError, VersionConflict
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Append,
    Appended,
    Capabilities,
    Changed,
    Check,
    Claim,
    Condition,
    Delete,
    Depth,
    Extend,
    Fence,
    Item,
    Listed,
    Page,
    Put,
    Record,
    Remove,
    Takeable,
    Watch,
    Write,
    check_ids,
    kind_of,
    make_key,
)
from squall.coordination.stores.memory.stream import MemoryStream
from squall.coordination.stores.probe import probe
from squall.runtime.interfaces import Clock

CAPABILITIES = Capabilities(
    transactions=True,
    blocking_wait=True,
    native_expiry=False,
    store_clock=True,
    conditional_delete=True,
    cross_process=False,
    cross_host=False,
)

# Items that `listen` returns at once, as many as Redis keeps for its listeners.
CARRIED_MAX = 16


class _StoredRecord:
    """A record without its key. Stays after its expiry until it is swept, as the index needs it."""

    __slots__ = ("epoch", "expires_ms", "modified_ms", "value", "version")

    def __init__(
        self, value: bytes, version: str, epoch: int, modified_ms: int, expires_ms: int | None
    ) -> None:
        self.value = value
        self.version = version
        self.epoch = epoch
        self.modified_ms = modified_ms
        self.expires_ms = expires_ms


class MemoryStore:
    """Records and streams in memory. Members of one process share one object."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begin_s = clock.wall() - clock.now()
        self._records: dict[str, _StoredRecord] = {}
        self._kinds: dict[str, set[str]] = {}
        self._streams: dict[str, MemoryStream] = {}
        self._writes = 0
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    @property
    def url(self) -> str:
        return "memory://"

    @property
    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    async def now_ms(self) -> int:
        return self._now_ms()

    async def get(self, *keys: str) -> tuple[Record | None, ...]:
        now_ms = self._now_ms()
        return tuple(self._record(key, now_ms) for key in keys)

    async def write(self, *writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
        check_ids(writes)
        now_ms = self._now_ms()
        if not self._is_done(writes, now_ms):
            if fence is not None:
                self._check_fence(fence, writes, now_ms)
            for write in writes:
                self._check(write, now_ms)
            for write in writes:
                self._apply(write, fence, now_ms)
        return tuple(self._result(write) for write in writes)

    async def write_and_get(
        self, writes: Sequence[Write], keys: Sequence[str]
    ) -> tuple[tuple[str, ...], tuple[Record | None, ...]]:
        """Writes and then reads, in one step: neither call gives way to another task."""
        return await self.write(*writes), await self.get(*keys)

    async def list(self, kind: str, *, idle_ms: int = 0, after: str = "", limit: int = 100) -> Page:
        now_ms = self._now_ms()
        begin = (int(after.partition(":")[0]), after.partition(":")[2]) if after else (-1, "")
        places = sorted((self._records[key].modified_ms, key) for key in self._kinds.get(kind, ()))
        due = [place for place in places if place > begin and now_ms - place[0] >= idle_ms]
        page = due[:limit]
        return Page(
            entries=tuple(
                Listed(key=key, modified_ms=modified_ms, idle_ms=now_ms - modified_ms)
                for modified_ms, key in page
            ),
            after=f"{page[-1][0]}:{page[-1][1]}" if len(due) > limit else "",
        )

    async def sweep(self, kind: str, *, limit: int = 100, idle_ms: int = 0) -> int:
        now_ms = self._now_ms()
        expired = [
            key for key in sorted(self._kinds.get(kind, ())) if self._live(key, now_ms) is None
        ][:limit]
        for key in expired:
            self._drop(key)
        over = [
            name
            for name in self._streams
            if kind_of(name) == kind and self._stream(name, now_ms) is None
        ][: limit - len(expired)]
        for name in over:
            del self._streams[name]
        return len(expired) + len(over)

    async def count(self) -> Mapping[str, int]:
        now_ms = self._now_ms()
        counts = {kind: len(keys) for kind, keys in self._kinds.items() if keys}
        for name in self._streams:
            if self._stream(name, now_ms) is not None:
                counts[kind_of(name)] = counts.get(kind_of(name), 0) + 1
        return counts

    async def read(self, stream: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        now_ms = self._now_ms()
        found = self._stream(stream, now_ms)
        return () if found is None else found.read(after, limit, now_ms)

    async def take(
        self,
        stream: str,
        owner: str,
        *,
        lease_s: float,
        limit: int = 1,
        request: str = "",
        provided: Check | None = None,
    ) -> Sequence[Claim]:
        make_key(owner)
        now_ms = self._now_ms()
        found = self._stream(stream, now_ms)
        if found is None:
            return ()
        if provided is not None:
            self._check(provided, now_ms)
        return found.take(owner, round(lease_s * 1000), limit, request, now_ms)

    async def depth(self, stream: str) -> Depth:
        now_ms = self._now_ms()
        found = self._stream(stream, now_ms)
        return Depth(items=0, held=0, oldest_ms=0) if found is None else found.depth(now_ms)

    async def wait(self, *watches: Watch, timeout_s: float) -> frozenset[Watch]:
        bell: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        names = {watch.key if isinstance(watch, Changed) else watch.stream for watch in watches}
        for name in names:
            self._waiting.setdefault(name, set()).add(bell)
        try:
            holding = self._holding(watches)
            if not holding and timeout_s > 0.0:
                await asyncio.wait([bell], timeout=self._until_claim_ends_s(watches, timeout_s))
                holding = self._holding(watches)
            return holding
        finally:
            for name in names:
                self._waiting[name].discard(bell)
                if not self._waiting[name]:
                    del self._waiting[name]

    async def listen(self, stream: str, *, after: str, timeout_s: float) -> Sequence[Item]:
        """Waits for items. Returns those that are carried; if it returns none, call `read`."""
        await self.wait(Appended(stream, after), timeout_s=timeout_s)
        now_ms = self._now_ms()
        found = self._stream(stream, now_ms)
        return () if found is None else found.carried(after, CARRIED_MAX, now_ms)

    async def probe(self) -> None:
        await probe(self, scratch="0")

    async def close(self) -> None:
        for bells in list(self._waiting.values()):
            for bell in bells:
                if not bell.done():
                    bell.set_result(None)

    def _now_ms(self) -> int:
        return int((self._begin_s + self._clock.now()) * 1000.0)

    def _live(self, key: str, now_ms: int) -> _StoredRecord | None:
        kept = self._records.get(key)
        if kept is None or (kept.expires_ms is not None and kept.expires_ms <= now_ms):
            return None
        return kept

    def _record(self, key: str, now_ms: int) -> Record | None:
        kept = self._live(key, now_ms)
        if kept is None:
            return None
        return Record(
            key=key,
            value=kept.value,
            version=kept.version,
            epoch=kept.epoch,
            modified_ms=kept.modified_ms,
            read_ms=now_ms,
            expires_ms=kept.expires_ms,
        )

    def _stream(self, name: str, now_ms: int) -> MemoryStream | None:
        found = self._streams.get(name)
        return None if found is None or found.expires_ms <= now_ms else found

    def _is_done(self, writes: Sequence[Write], now_ms: int) -> bool:
        """Whether this batch took effect before. One record with the token of its `Put` is enough
        proof, because a batch is atomic."""
        for write in writes:
            if isinstance(write, Put) and write.token:
                kept = self._live(write.key, now_ms)
                if kept is not None and kept.version == write.token:
                    return True
        return False

    def _check_fence(self, fence: Fence, writes: Sequence[Write], now_ms: int) -> None:
        written = {write.key for write in writes if isinstance(write, Put)}
        scope = self._live(fence.scope, now_ms)
        if fence.scope not in written and (scope is None or scope.epoch != fence.epoch):
            raise StaleEpochError(fence.scope, fence.epoch, scope and scope.epoch)
        for key in written:
            kept = self._live(key, now_ms)
            if kept is not None and kept.epoch > fence.epoch:
                raise StaleEpochError(fence.scope, fence.epoch, kept.epoch)

    def _check(self, write: Write, now_ms: int) -> None:
        match write:
            case Put() | Check():
                self._expect(write.key, write.expect, now_ms)
            case Delete():
                kept = self._live(write.key, now_ms)
                if kept is not None and write.expect not in (ANY, kept.version):
                    raise VersionConflict(write.key)
            case Append():
                found = self._stream(write.stream, now_ms)
                if found is not None:
                    found.check_append(write, now_ms)
            case Extend() | Remove():
                found = self._stream(write.stream, now_ms)
                if found is not None:
                    found.check_claim(write, now_ms)
                elif write.claim:
                    raise MemoryStream.stale(write)

    def _expect(self, key: str, expect: Condition, now_ms: int) -> None:
        kept = self._live(key, now_ms)
        fits = kept is None if expect is ABSENT else kept is not None and kept.version == expect
        if expect is not ANY and not fits:
            raise VersionConflict(key)

    def _apply(self, write: Write, fence: Fence | None, now_ms: int) -> None:
        match write:
            case Put():
                self._put(write, fence, now_ms)
            case Delete():
                self._drop(write.key)
            case Append():
                if self._stream(write.stream, now_ms) is None:
                    self._writes += 1
                    self._streams[write.stream] = MemoryStream(write.stream, str(self._writes))
                self._streams[write.stream].append(
                    write, now_ms, self._current_versions(write, now_ms)
                )
            case Extend() | Remove():
                found = self._stream(write.stream, now_ms)
                if found is not None:
                    found.apply_claim(write, now_ms)
            case Check():
                return
        if not getattr(write, "silent", False):
            self._ring(write.key if isinstance(write, Put | Delete) else write.stream)

    def _current_versions(self, write: Append, now_ms: int) -> Mapping[str, str] | None:
        if not write.carried:
            return None
        known = {key: self._live(key, now_ms) for key in write.versions_of}
        return {key: "" if kept is None else kept.version for key, kept in known.items()}

    def _put(self, write: Put, fence: Fence | None, now_ms: int) -> None:
        self._writes += 1
        before = self._live(write.key, now_ms)
        epoch = fence.epoch if fence is not None else before.epoch if before is not None else 0
        expires_ms = None if write.ttl_s is None else now_ms + round(write.ttl_s * 1000)
        version = write.token or str(self._writes)
        self._records[write.key] = _StoredRecord(write.value, version, epoch, now_ms, expires_ms)
        self._kinds.setdefault(kind_of(write.key), set()).add(write.key)

    def _drop(self, key: str) -> None:
        self._records.pop(key, None)
        self._kinds.get(kind_of(key), set()).discard(key)

    def _result(self, write: Write) -> str:
        """The result of a write, also of a batch that was done before: others may have changed the
        record since then."""
        match write:
            case Put():
                kept = self._records.get(write.key)
                return write.token or ("" if kept is None else kept.version)
            case Append():
                found = self._streams.get(write.stream)
                return "" if found is None else found.cursor_of(write.id)
            case _:
                return ""

    def _holding(self, watches: Sequence[Watch]) -> frozenset[Watch]:
        now_ms = self._now_ms()
        return frozenset(watch for watch in watches if self._holds(watch, now_ms))

    def _holds(self, watch: Watch, now_ms: int) -> bool:
        if isinstance(watch, Changed):
            kept = self._live(watch.key, now_ms)
            return ("" if kept is None else kept.version) != watch.version
        found = self._stream(watch.stream, now_ms)
        if found is None:
            return False
        if isinstance(watch, Takeable):
            return found.takeable_in_ms(now_ms) == 0
        return bool(found.read(watch.after, 1, now_ms))

    def _until_claim_ends_s(self, watches: Sequence[Watch], timeout_s: float) -> float:
        """How long to wait: no write wakes a waiter when a claim runs out, so no longer than
        that."""
        now_ms = self._now_ms()
        for watch in watches:
            found = self._stream(watch.stream, now_ms) if isinstance(watch, Takeable) else None
            due_ms = None if found is None else found.takeable_in_ms(now_ms)
            if due_ms is not None:
                timeout_s = min(timeout_s, (due_ms + 1) / 1000.0)
        return timeout_s

    def _ring(self, name: str) -> None:
        for bell in self._waiting.get(name, ()):
            if not bell.done():
                bell.set_result(None)
