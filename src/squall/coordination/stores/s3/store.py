"""The store on S3: records as objects, versions as ETags.

An object is one line of JSON (token, epoch, expiry) followed by the value. The token is unique per
write, so that equal values still have different ETags: an ETag is a hash of the content, and a
condition on it must not hold again after two writes. Where the service has no conditional delete, a
deleted record stays as a marker. Batches are done in order. What holds for fences is in
`interface`; streams are in `streams`.

Only `list`, `sweep` and `count` list objects: a listing is slow and costs more than a read.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import msgspec

from squall.coordination.store_errors import (
    StaleEpochError,
    StoreUnavailableError,
    VersionConflict,
)
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    DEFAULT_PREFIX,
    Append,
    Capabilities,
    Changed,
    Check,
    Claim,
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
    check_prefix,
    kind_of,
    make_key,
)
from squall.coordination.stores.kinds import ENDING_KINDS, STREAM_KINDS
from squall.coordination.stores.probe import probe
from squall.coordination.stores.s3.objects import S3Objects, StoredObject, versioning_of
from squall.coordination.stores.s3.polled_waits import PolledWaits
from squall.coordination.stores.s3.streams import STREAMS, S3Streams
from squall.runtime.interfaces import Clock
from squall.runtime.log import Log
from squall.runtime.tasks import TaskRunner

TOKEN_BYTES = 12
# Lost races in a row until a write gives up. Each loss means that another writer got through.
TRIES = 32
# Heads of objects that are remembered, to write or sweep without a read before.
REMEMBERED = 8192
CHECKS_AT_ONCE = 8
DELETES_AT_ONCE = 1000
STOP_S = 5.0
CAPABILITIES = Capabilities(
    transactions=False,
    blocking_wait=False,
    native_expiry=False,
    store_clock=True,
    conditional_delete=True,
    cross_process=True,
    cross_host=True,
)


class RecordHead(msgspec.Struct, omit_defaults=True):
    """The first line of a record's object. The names are short: they are in every object."""

    t: str
    """The token of the write. A writer that lost a race finds its own token here if it was its own
    first request that won."""
    e: int = 0
    """The epoch; never falls while the record lives."""
    x: int | None = None
    """When it expires, in ms of store time; None never."""
    d: bool = False
    """Deleted: a marker that stands for an absent record."""


class S3Store:
    """A store in one bucket; use `open_store`."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        source: random.Random,
        *,
        prefix: str = DEFAULT_PREFIX,
        log: Log | None = None,
    ) -> None:
        self._objects = S3Objects(url, clock)
        path = self._objects.path
        self._root = f"{path}/{check_prefix(prefix)}" if path else check_prefix(prefix)
        self._random = source
        self._log = log
        self._capabilities = CAPABILITIES
        # The service accepts `If-Match` for an object that does not exist. Then a replace is
        # preceded by a read; it can still undo a deletion in between.
        self._replaces_missing = False
        # By key and ETag. Never outdated: an ETag stands for one content.
        self._heads: OrderedDict[tuple[str, str], RecordHead] = OrderedDict()
        self._streams = S3Streams(self._objects, self._root, self._now_ms)
        self._tasks = TaskRunner(clock, source)
        self._waits = PolledWaits(self._holding, clock, self._tasks)

    @property
    def url(self) -> str:
        return self._objects.url

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def now_ms(self) -> int:
        return await self._now_ms()

    async def get(self, *keys: str) -> tuple[Record | None, ...]:
        found = await asyncio.gather(*(self._fetch(key) for key in keys))
        now_ms = await self._now_ms()
        return tuple(_record(key, one, now_ms) for key, one in zip(keys, found, strict=True))

    async def write(self, *writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
        check_ids(writes)
        if len(writes) > 1 and fence is None and all(map(_is_plain_delete, writes)):
            return await self._delete_many(writes)
        await self._check_scope(fence, writes)
        results: list[str] = []
        for number, write in enumerate(writes):
            try:
                results.append(await self._write(write, fence))
            except VersionConflict as conflict:
                conflict.applied = number
                raise
        return tuple(results)

    async def list(self, kind: str, *, idle_ms: int = 0, after: str = "", limit: int = 100) -> Page:
        now_ms = await self._now_ms()
        entries: list[Listed] = []
        begin = f"{self._root}/{make_key(kind)}/"
        async for found in self._objects.listing(begin, self._name(after) if after else ""):
            idle = max(0, now_ms - found.modified_ms)
            if idle >= idle_ms:
                if len(entries) == limit:
                    return Page(entries=tuple(entries), after=entries[-1].key)
                key = self._key(found.name)
                entries.append(Listed(key=key, modified_ms=found.modified_ms, idle_ms=idle))
        return Page(entries=tuple(entries), after="")

    async def sweep(self, kind: str, *, limit: int = 100, idle_ms: int = 0) -> int:
        """Sweeps one kind. A kind is either of records or of streams, which saves one listing."""
        removed = 0
        if kind not in STREAM_KINDS and self._capabilities.conditional_delete:
            for name, etag in await self._expired(kind, limit, idle_ms):
                removed += await self._objects.delete(name, etag)
        if kind not in ENDING_KINDS and removed < limit:
            removed += await self._streams.sweep(kind, limit - removed)
        return removed

    async def _expired(self, kind: str, limit: int, idle_ms: int) -> list[tuple[str, str]]:
        now_ms = await self._now_ms()
        due: list[tuple[str, str]] = []
        async for found in self._objects.listing(f"{self._root}/{make_key(kind)}/"):
            if now_ms - found.modified_ms < idle_ms:
                continue
            key = self._key(found.name)
            head = self._heads.get((key, found.etag))
            if head is None:
                fetched = await self._fetch(key)
                if fetched is None or fetched[0].etag != found.etag:
                    continue
                head = fetched[1]
            if not _is_live(head, now_ms):
                due.append((found.name, found.etag))
                if len(due) == limit:
                    break
        return due

    async def count(self) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        async for found in self._objects.listing(f"{self._root}/"):
            rest = found.name.removeprefix(f"{self._root}/")
            if rest.startswith(f"{STREAMS}/"):
                if not rest.endswith("/meta"):
                    continue
                rest = rest.removeprefix(f"{STREAMS}/")
            counts[kind_of(rest)] = counts.get(kind_of(rest), 0) + 1
        return counts

    async def read(self, stream: str, *, after: str = "", limit: int = 100) -> Sequence[Item]:
        return await self._streams.read(stream, after, limit)

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

        async def check() -> None:
            if provided is not None:
                await self._write(provided, None)

        lease_ms = round(lease_s * 1000)
        return await self._streams.take(stream, owner, lease_ms, limit, request, check)

    async def depth(self, stream: str) -> Depth:
        return await self._streams.depth(stream)

    async def wait(self, *watches: Watch, timeout_s: float) -> frozenset[Watch]:
        return await self._waits.wait(watches, timeout_s)

    async def probe(self) -> None:
        await self._objects.measure()
        await probe(self, scratch=self._token())
        await self._probe_service()
        growing = versioning_of(
            await asyncio.gather(
                self._objects.ask("get_bucket_versioning"),
                self._objects.ask("get_object_lock_configuration"),
            )
        )
        if growing and self._log is not None:
            self._log.warning(
                "store_keeps_every_version",
                message=f"the bucket {self._objects.bucket} is {' and '.join(growing)}, and keeps "
                "every heartbeat for ever: use another bucket, or add a lifecycle rule",
            )

    async def _probe_service(self) -> None:
        """Tests two properties of the service itself, which the store's own methods would hide
        because they read before they write."""
        for _ in range(TRIES):
            name = f"{self._root}/~probe/{self._token()}"
            etag = await self._objects.create(name, b"1")
            newer = etag and await self._objects.replace(name, b"2", etag)
            if etag and newer:
                break
            await self._objects.delete(name)
        else:
            raise StoreUnavailableError(
                f"{self.url}: the probe got no usable answer in {TRIES} tries"
            )
        if await self._objects.delete(name, etag):
            self._capabilities = msgspec.structs.replace(CAPABILITIES, conditional_delete=False)
        await self._objects.delete(name)
        await self._objects.replace(name, b"3", newer)
        self._replaces_missing = await self._objects.exists(name)
        if self._replaces_missing:
            await self._objects.delete(name)

    async def close(self) -> None:
        await self._waits.close()
        await self._tasks.shutdown(STOP_S)
        await self._objects.close()

    async def _now_ms(self) -> int:
        if not self._objects.time.is_fresh:
            await self._objects.measure()
        return self._objects.time.now_ms()

    def _name(self, key: str) -> str:
        kind, _, rest = key.partition("/")
        return f"{self._root}/{kind}/{rest}.json"

    def _key(self, name: str) -> str:
        return name.removeprefix(f"{self._root}/").removesuffix(".json").rstrip("/")

    async def _fetch(self, key: str) -> tuple[StoredObject, RecordHead] | None:
        """The object of a key, also of a record that has expired or was deleted."""
        found = await self._objects.fetch(self._name(key))
        if found is None:
            return None
        try:
            head = msgspec.json.decode(found.body.partition(b"\n")[0], type=RecordHead)
        except msgspec.DecodeError:
            raise self._objects.foreign_object(self._name(key)) from None
        self._remember(key, found.etag, head)
        return found, head

    def _remember(self, key: str, etag: str, head: RecordHead) -> None:
        self._heads[key, etag] = head
        while len(self._heads) > REMEMBERED:
            self._heads.popitem(last=False)

    async def _check_scope(self, fence: Fence | None, writes: Sequence[Write]) -> None:
        """The check of a fence: only a read before the write. A leader that is deposed in between
        is stopped by the chain of versions (see `interface`)."""
        if fence is None or any(isinstance(w, Put) and w.key == fence.scope for w in writes):
            return
        (scope,) = await self.get(fence.scope)
        if scope is None or scope.epoch != fence.epoch:
            raise StaleEpochError(fence.scope, fence.epoch, scope and scope.epoch)

    async def _write(self, write: Write, fence: Fence | None) -> str:
        match write:
            case Put():
                return await self._put(write, fence)
            case Delete():
                await self._delete(write)
            case Check(key, expect):
                (record,) = await self.get(key)
                fits = record is None if expect is ABSENT else record and record.version == expect
                if expect is not ANY and not fits:
                    raise VersionConflict(key)
            case Append():
                return await self._streams.append(write)
            case Extend():
                await self._streams.extend(write)
            case Remove():
                await self._streams.remove(write)
        return ""

    async def _put(self, write: Put, fence: Fence | None) -> str:
        """Writes a record by a conditional request, on the version that is known. If that loses,
        reads the record and decides again."""
        token = write.token or self._token()
        known = self._known(write)
        if known is None and isinstance(write.expect, str):
            known = await self._seen(write.key)
        for _ in range(TRIES):
            now_ms = await self._now_ms()
            if known is None:
                etag, head = "", RecordHead(t="")
            else:
                etag, head = known
            if etag and head.t == token:
                # Our own write took effect, and its reply was lost.
                return etag
            is_live = bool(etag) and _is_live(head, now_ms)
            self._check_put(write, fence, etag if is_live else "", head.e if is_live else 0)
            epoch = fence.epoch if fence is not None else head.e if is_live else 0
            expires_ms = None if write.ttl_s is None else now_ms + round(write.ttl_s * 1000)
            new = RecordHead(t=token, e=epoch, x=expires_ms)
            body = msgspec.json.encode(new) + b"\n" + write.value
            name = self._name(write.key)
            # The conditional write. An expired or deleted record is replaced on its ETag, not
            # created: its object is still there.
            if etag and self._replaces_missing and not await self._objects.exists(name):
                done = None
            elif etag:
                done = await self._objects.replace(name, body, etag)
            else:
                done = await self._objects.create(name, body)
            if done is not None:
                self._remember(write.key, done, new)
                return done
            known = await self._seen(write.key)
        raise StoreUnavailableError(
            f"{self.url}: {write.key} was not written, other writers came first {TRIES} times"
        )

    async def _seen(self, key: str) -> tuple[str, RecordHead] | None:
        found = await self._fetch(key)
        return None if found is None else (found[0].etag, found[1])

    def _known(self, write: Put) -> tuple[str, RecordHead] | None:
        """The expected version, if its head is remembered: then no read is needed before the
        write. An outdated one loses the conditional write."""
        if write.expect is ANY or write.expect is ABSENT:
            return None
        etag = str(write.expect)
        head = self._heads.get((write.key, etag))
        return None if head is None else (etag, head)

    def _check_put(self, write: Put, fence: Fence | None, etag: str, epoch: int) -> None:
        if fence is not None and epoch > fence.epoch:
            raise StaleEpochError(fence.scope, fence.epoch, epoch)
        if write.expect is ABSENT and etag:
            raise VersionConflict(write.key)
        if isinstance(write.expect, str) and etag != write.expect:
            raise VersionConflict(write.key)

    async def _delete_many(self, writes: Sequence[Write]) -> tuple[str, ...]:
        names = [self._name(write.key) for write in writes if isinstance(write, Delete)]
        for begin in range(0, len(names), DELETES_AT_ONCE):
            await self._objects.delete_many(names[begin : begin + DELETES_AT_ONCE])
        return ("",) * len(writes)

    async def _delete(self, write: Delete) -> None:
        name = self._name(write.key)
        if write.expect is ANY:
            await self._objects.delete(name)
            return
        for _ in range(TRIES):
            found = await self._fetch(write.key)
            if found is None:
                return
            current, head = found
            is_live = _is_live(head, await self._now_ms())
            if is_live and write.expect != current.etag:
                raise VersionConflict(write.key)
            if self._capabilities.conditional_delete:
                if await self._objects.delete(name, current.etag):
                    return
            elif not is_live:
                return
            else:
                # Without a conditional delete: replacing by a marker is conditional.
                marker = msgspec.json.encode(RecordHead(t=self._token(), e=head.e, d=True)) + b"\n"
                if await self._objects.replace(name, marker, current.etag) is not None:
                    return
        raise StoreUnavailableError(
            f"{self.url}: {write.key} was not deleted, other writers came first {TRIES} times"
        )

    async def _holding(self, watches: Sequence[Watch]) -> frozenset[Watch]:
        limit = asyncio.Semaphore(CHECKS_AT_ONCE)

        async def holds(watch: Watch) -> bool:
            async with limit:
                if isinstance(watch, Changed):
                    (record,) = await self.get(watch.key)
                    return ("" if record is None else record.version) != watch.version
                if isinstance(watch, Takeable):
                    return await self._streams.is_takeable(watch.stream)
                return bool(await self._streams.read(watch.stream, watch.after, 1))

        found = await asyncio.gather(*(holds(watch) for watch in watches))
        return frozenset(watch for watch, one in zip(watches, found, strict=True) if one)

    def _token(self) -> str:
        return self._random.randbytes(TOKEN_BYTES).hex()


def _is_plain_delete(write: Write) -> bool:
    return isinstance(write, Delete) and write.expect is ANY


def _is_live(head: RecordHead, now_ms: int) -> bool:
    return not head.d and (head.x is None or head.x > now_ms)


def _record(key: str, found: tuple[StoredObject, RecordHead] | None, now_ms: int) -> Record | None:
    if found is None or not _is_live(found[1], now_ms):
        return None
    one, head = found
    return Record(
        key=key,
        value=one.body.partition(b"\n")[2],
        version=one.etag,
        epoch=head.e,
        modified_ms=one.modified_ms,
        read_ms=max(now_ms, one.modified_ms),
        expires_ms=head.x,
    )
