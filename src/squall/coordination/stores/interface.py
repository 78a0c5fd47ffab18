"""The contract of a store: versioned records, small streams, and waiting for a change.

Elections, fences, members, signals, queues, expiry and schedules are built on this and nothing
else. It is small enough for S3 (create-if-absent, replace-if-match, no transactions, no server
time but a header) and maps to one script per operation in Redis.

**Records** have a key, a value of bytes, an opaque `version` that differs after every write, the
`epoch` under which they were written (0: none) and times in *store time*. No process compares its
own clock with a time that another process wrote.

**Writes** come in batches. Each write has a condition: `ABSENT`, a version, or `ANY`. On stores
with `capabilities.transactions` the batch is atomic. On S3 the writes are done in order, and the
first failed condition ends the batch; a batch of deletes without conditions is done in any order.
So on every store: *put the write that decides first, and make the others repeatable by any process
that sees the decision.* A batch names each key and each item once. Conditions are about the state
before the batch.

**The fence.** A leader passes `Fence(scope, epoch)` with every write; `scope` is the key of its
lease record. The store refuses with `StaleEpochError` unless the record at `scope` has exactly that
epoch, and stamps the epoch on what is written. A record never goes back to a lower epoch; a write
without a fence leaves its epoch as it is. With transactions the check and the write are one step.
On S3 the check of the scope is a read before the write. What holds there is the chain: a record
written under epoch 8 cannot be replaced under epoch 7, because the replace names the version that
was read. So a new leader first rewrites the *head* record of each component under its epoch
(`Put(head, expect=version)`), and only what a head refers to counts. Code written that way is
correct on all stores.

**Election** needs no operation of its own: `get` the lease record, and `Put` it with
`expect=version` (or `ABSENT`) and `fence=Fence(key_of_the_lease, epoch + 1)`; a renewal is the same
with the same epoch. A fence whose scope is the written record only checks that the epoch does not
fall. Lease records have no expiry in the store: a follower counts on its own clock how long the
version has not changed.

**Heartbeats** are `Put(heartbeat, expect=last_version, silent=True)`. The leader declares a member
dead by replacing that very record; the next heartbeat of the dead boot then conflicts. One
condition on one key thus fences a dead boot on all stores. `list(kind, idle_ms)` is the liveness
index: the keys that were not written for so long, by store time. It also lists keys whose record
has expired, until they are deleted: an expired heartbeat is a stale member, not an unknown one.

**Streams** are ordered lists of small items: an inbox, or the tickets that workers take. `Append`
carries an id, and a repeat with the same id changes nothing. `read` returns what is not removed, in
order. `take` gives each item to one owner until a time limit; `Extend` and `Remove` name the claim,
and fail with `StaleClaimError` if it no longer holds the item. `Extend` with 0 seconds gives an
item back. A stream expires as a whole after `ttl_s` without an append. A cursor from before a loss
of data reads from the beginning.

**Waiting**: `wait(Changed(key, version), Appended(stream, cursor), Takeable(stream))` returns the
watches that hold as soon as one does, or nothing at the timeout. It may return early: read again
after it. Writes that are `silent` wake no waiter.

**Lost replies.** After `StoreUnavailableError` a write may have happened. A repeat of the same
batch *with the same tokens* is safe: the store recognises a write that took effect by its token,
and answers with success. `guarded_store` fills in the tokens and repeats; `take` carries a request
id for the same purpose.

A store must never answer from a cache, report a write that is not durable by its own guarantee
(docs/coordination/stores.md), or list keys in any call but `list`, `sweep` and `count`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Protocol, runtime_checkable

import msgspec

from squall.coordination.errors import ConfigurationError
from squall.coordination.store_errors import InvalidIdentifierError
from squall.coordination.stores.kinds import ENDING_KINDS, RESERVED_KINDS

IDENTIFIER = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_PART = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9_.-]{1,128}"
KEY = re.compile(rf"{_PART}(?:/{_PART})*")
DEFAULT_PREFIX = "blocking"
REMEMBERED_S = 600.0
"""How long a store remembers the ids of removed items, to recognise a repeated append."""
TAKE_REMEMBERED_S = 300.0
"""How long a store remembers the last take of an owner. All tries of one call take about a
minute."""


class Expect(Enum):
    """Conditions that are not a version."""

    ANY = "any"
    ABSENT = "absent"


ANY = Expect.ANY
ABSENT = Expect.ABSENT
Condition = Expect | str
"""A string is the version that the record must have."""


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One record as it was at `read_ms`."""

    key: str
    value: bytes
    version: str
    epoch: int
    modified_ms: int
    """Store time of the last write."""
    read_ms: int
    """Store time of this reading. The difference is the record's age, free of clock skew."""
    expires_ms: int | None

    @property
    def age_s(self) -> float:
        return max(0, self.read_ms - self.modified_ms) / 1000.0


class Fence(msgspec.Struct, frozen=True):
    """Permission to write, given by an election."""

    scope: str
    epoch: int


class Put(msgspec.Struct, frozen=True, gc=False):
    """Creates or replaces a record. A `ttl_s` of None means that it never expires; there is no
    default, so that each writer decides."""

    key: str
    value: bytes
    expect: Condition
    ttl_s: float | None
    silent: bool = False
    token: str = ""
    """Unique to this write. It becomes the version where the store allows that."""


class Delete(msgspec.Struct, frozen=True):
    """Removes a record and its place in the index. Succeeds if the record is gone already. With
    `ABSENT` it removes only the place of an expired record from the index."""

    key: str
    expect: Condition
    silent: bool = False


class Check(msgspec.Struct, frozen=True):
    """Writes nothing, but the batch fails if the condition does not hold. Without transactions it
    is only a read before the writes that follow."""

    key: str
    expect: Condition


class Append(msgspec.Struct, frozen=True):
    """Adds an item at the end. The result is its cursor, also if the id was appended before. Ids
    consist of the characters of keys."""

    stream: str
    id: str
    value: bytes
    ttl_s: float
    limit: int = 1000
    """Of unremoved items; `StreamFullError` beyond it. Exact only with transactions."""
    carried: bool = False
    """The store may push the item to a listener, which then needs no `read`."""
    versions_of: tuple[str, ...] = ()
    """Keys. A pushed item brings along the versions that these records had just before it was
    appended, so that the listener need not ask for them."""


class Extend(msgspec.Struct, frozen=True):
    """Holds a taken item for `lease_s` from now; 0 gives it back."""

    stream: str
    cursor: str
    claim: str
    lease_s: float


class Remove(msgspec.Struct, frozen=True):
    """Removes an item. A claim must be the one that holds the item, or that removed it. Without a
    claim, as for inboxes, it succeeds if the item is gone already."""

    stream: str
    cursor: str
    claim: str = ""


Write = Put | Delete | Check | Append | Extend | Remove
StreamWrite = Append | Extend | Remove


class Changed(msgspec.Struct, frozen=True):
    """The record no longer has this version; "" stands for an absent record."""

    key: str
    version: str = ""


class Appended(msgspec.Struct, frozen=True):
    """The stream has unremoved items after the cursor."""

    stream: str
    after: str = ""


class Takeable(msgspec.Struct, frozen=True):
    """The stream has an item without a holder, also because a claim ran out."""

    stream: str


Watch = Changed | Appended | Takeable


class Item(msgspec.Struct, frozen=True, kw_only=True):
    cursor: str
    """Its place, opaque. `read(after=cursor)` continues after it."""
    id: str
    value: bytes
    appended_ms: int
    read_ms: int
    versions: Mapping[str, str] = {}
    """What a pushed item brings along: versions by key, "" for an absent record."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """An item that one owner holds until `until_ms` of store time."""

    item: Item
    claim: str
    attempt: int
    """1 for the first claim of the item."""
    until_ms: int


class Listed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One entry of the index. Without garbage collection (`gc=False`): a page has a thousand."""

    key: str
    modified_ms: int
    idle_ms: int


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the index, in an order that the store chooses. `after` is "" at the end."""

    entries: tuple[Listed, ...]
    after: str


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """How full a stream is. `oldest_ms` is the age of the first unremoved item, 0 if none."""

    items: int
    held: int
    oldest_ms: int


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a store can do. The probe may switch `conditional_delete` off."""

    transactions: bool
    """Batches are atomic, and so are fences."""
    blocking_wait: bool
    """`wait` is woken by the store; otherwise it polls."""
    native_expiry: bool
    """Expired records vanish by themselves; otherwise `sweep` removes them."""
    store_clock: bool
    """Store time comes from the store; otherwise from the machine."""
    conditional_delete: bool
    cross_process: bool
    cross_host: bool


class Store(Protocol):
    """One prefix of one store. All methods may raise `StoreUnavailableError`."""

    @property
    def url(self) -> str:
        """The URL without secrets, for logs and messages."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    async def now_ms(self) -> int: ...

    async def get(self, *keys: str) -> tuple[Record | None, ...]:
        """The records in the order of the keys; None for an absent or expired one. One round trip
        where the store can."""
        ...

    async def write(self, *writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
        """Returns the new version of each `Put`, the cursor of each `Append`, and "" for other
        writes. Raises `VersionConflict`, `StaleClaimError`, `StaleEpochError`,
        `StreamFullError`."""
        ...

    async def list(self, kind: str, *, idle_ms: int = 0, after: str = "", limit: int = 100) -> Page:
        """The keys of one kind that were not written for `idle_ms`."""
        ...

    async def sweep(self, kind: str, *, limit: int = 100, idle_ms: int = 0) -> int:
        """Removes expired records and streams of one kind, and their places in the index. A record
        that was written after the sweep read it stays. Returns how many it removed. The caller
        states that no record of the kind expires within `idle_ms` of its last write, so that the
        store need not read younger ones."""
        ...

    async def count(self) -> Mapping[str, int]:
        """How many keys and streams there are of each kind, for operators."""
        ...

    async def read(self, stream: str, *, after: str = "", limit: int = 100) -> Sequence[Item]: ...

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
        """Claims up to `limit` items without a holder, oldest first. A repeat with the same owner
        and request returns the same claims, for `TAKE_REMEMBERED_S`. Raises `VersionConflict` if
        `provided` does not hold; a store need not check it when there is nothing to take."""
        ...

    async def depth(self, stream: str) -> Depth: ...

    async def wait(self, *watches: Watch, timeout_s: float) -> frozenset[Watch]:
        """Returns the watches that hold, none at the timeout. All waits of a process share one
        connection or one poll loop."""
        ...

    async def probe(self) -> None:
        """Tests the conditions in a scratch record. Raises `UnsafeStoreError` if one fails."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class PushStore(Protocol):
    """A store that pushes new items to a listener."""

    async def listen(self, stream: str, *, after: str, timeout_s: float) -> Sequence[Item]: ...


@runtime_checkable
class WriteAndGetStore(Protocol):
    """A store that can write and then read in one round trip."""

    async def write_and_get(
        self, writes: Sequence[Write], keys: Sequence[str]
    ) -> tuple[tuple[str, ...], tuple[Record | None, ...]]: ...


@lru_cache(maxsize=8192)
def make_key(kind: str, *parts: str) -> str:
    """Builds a key or stream name; the first part is the kind. Refuses characters that a store
    uses for its own names."""
    for part in (kind, *parts):
        if not IDENTIFIER.fullmatch(part) or part in {".", ".."}:
            raise InvalidIdentifierError(
                f"{part!r} cannot be part of a key: use 1 to 128 of A-Z a-z 0-9 _ . -"
            )
    return "/".join((kind, *parts))


def check_key(key: str) -> str:
    """Refuses a key that `make_key` could not have made. Stores build their own names from keys:
    `a:b` would be the record `a/b` in Redis, and `../a` a record of another namespace on S3."""
    if not KEY.fullmatch(key):
        raise InvalidIdentifierError(
            f"{key!r} is not a key: write kind/id, each part 1 to 128 of A-Z a-z 0-9 _ . -"
        )
    return key


def check_ids(writes: Sequence[Write]) -> None:
    """Checks the keys and ids of a batch. Stores call it before they build names from them."""
    for write in writes:
        if isinstance(write, Append):
            check_key(write.stream)
            make_key(write.id)
            for key in write.versions_of:
                check_key(key)
        elif isinstance(write, Extend | Remove):
            check_key(write.stream)
        else:
            check_key(write.key)
            if (
                isinstance(write, Put)
                and write.ttl_s is None
                and kind_of(write.key) in ENDING_KINDS
            ):
                raise ConfigurationError(
                    f"ttl_s is None: a record of kind {kind_of(write.key)} must end;"
                    " use ttl_s=3600.0"
                )


def check_own_writes(writes: Sequence[Write]) -> None:
    """Refuses writes of an application to the records and streams of the library. Checks are
    allowed: they change nothing."""
    for write in writes:
        if not isinstance(write, Check):
            check_own_name(write.stream if isinstance(write, StreamWrite) else write.key)


def check_own_name(name: str) -> None:
    kind = kind_of(name)
    if kind in RESERVED_KINDS:
        raise ConfigurationError(
            f"{name!r} belongs to the library: only it writes records of kind {kind!r};"
            f" use another first word for yours, such as 'my-{kind}'"
        )


def kind_of(key: str) -> str:
    return key.partition("/")[0]


def check_prefix(prefix: str) -> str:
    """Refuses a prefix that is not one identifier. A second namespace has a longer one, such as
    `blocking.team1`."""
    return make_key(prefix)
