"""What a store can do: versioned records, small streams, and waiting for a change.

Elections, fences, members, signals, queues, expiry and schedules are all built on this and
on nothing else. It is small enough for S3 (create-if-absent, replace-if-match, no
transactions, no server time but a header) and direct enough for one script in Redis.

**Records** have a key, bytes, an opaque `version` that differs after every write, the
`epoch` under which they were written (0: none) and times in *store time*. Nobody compares
its own clock with a time that another process wrote.

**One write call** takes a batch of writes. Each has a condition (`ABSENT`, a version, or
`ANY`). On stores with `capabilities.transactions` the batch is atomic. On S3 the writes
are done in order and the first failed condition ends the batch; deletes alone, without
conditions, are done at once in any order. So everywhere: *put the
write that decides first, and make the others repeatable by whoever sees the decision.* A
batch names each key and each item once; conditions are about the state before the batch.

**The fence.** A coordinator passes `Fence(scope, epoch)` with every write. `scope` is the
key of its lease record. The store refuses with `StaleEpochError` unless the record at
`scope` has exactly that epoch, and stamps the epoch on what is written. A record never
goes back to a lower epoch; a write without a fence leaves its epoch as it is. With
transactions the check and the write are one step. On S3 the check of the scope is a read
before the write; what holds there is the chain: a record that was written under epoch 8
cannot be replaced under epoch 7, because the replace names the version that was read. So a
new coordinator first rewrites the *head* record of each component under its epoch
(`Put(head, expect=version)`), and only what a head refers to counts. Code written that way
is right on all stores.

**Election** needs no operation of its own: `get` the lease record, and `Put` it with
`expect=version` (or `ABSENT`) and `fence=Fence(key_of_the_lease, epoch + 1)`; a renewal is
the same with the same epoch. A fence whose scope is the record that is written only checks
that the epoch does not fall. Lease records have no expiry in the store: a follower counts
on its own clock how long the version has not changed.

**Heartbeats** are `Put(heartbeat, expect=last_version, silent=True)`. Whoever declares a
member dead replaces that very record; the next heartbeat of the dead then conflicts. That
fences a dead incarnation on all stores with one condition on one key. `list(kind, idle_ms)`
is the liveness index: keys not written for so long, by store time. It also names keys whose
record has expired, until somebody deletes them: an expired heartbeat is a stale member, not
an unknown one.

**Streams** are ordered lists of small items: an inbox, or the tickets that may be taken.
`Append` carries an id, and a repeat with the same id changes nothing. `read` shows what is
not removed, in order. `take` gives items to one owner each until a time limit; `Extend` and
`Remove` name the claim and fail with `StaleClaimError` when it is not the present one.
`Extend` with 0 seconds gives an item back. Streams expire as a whole after `ttl_s` without
an append. A cursor from before a loss of data reads from the beginning.

**Waiting**: `wait(Changed(key, version), Appended(stream, cursor), Takeable(stream))` ends
when one of them holds, with those that do, or with nothing at the timeout. It may end
early: read again after it. Writes that are `silent` wake nobody.

**Lost replies.** After `StoreUnavailableError` a write may have happened. A repeat of the
same batch *with the same tokens* is safe: a write that took effect is recognised by its
token and is a success. `squall.coordination.stores.guard` fills tokens in and repeats;
`take` carries a request id for the same purpose.

A store must never answer from a cache, report a write that is not durable by its own
guarantee (docs/coordination/stores.md), or list keys on the way of any call but `list`,
`sweep` and `count`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Protocol, runtime_checkable

import msgspec

from squall.coordination.errors import ConfigurationError
from squall.coordination.stores.errors import InvalidIdentifierError

IDENTIFIER = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_PART = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9_.-]{1,128}"
KEY = re.compile(rf"{_PART}(?:/{_PART})*")
ENDING_KINDS = frozenset(
    {
        *("heartbeat", "member", "tombstone", "warning", "ack", "idempotency", "state"),
        *("quarantine", "durations", "final", "dedup", "payload", "late", "cleanup", "probe"),
    }
)
"""Records of the library that must not stay for ever."""
STREAM_KINDS = ("signal", "queued", "ready", "deadletter", "orders")
"""Streams of the library."""
DEFAULT_PREFIX = "blocking"
VALUE_MAX_BYTES = 16 * 1024 * 1024
REMEMBERED_S = 600.0
"""How long a store knows the ids of removed items, to recognise a repeat."""
TAKE_REMEMBERED_S = 300.0
"""How long a store knows the last take of an owner. All tries of one call need about a minute."""


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
    """Store time of this reading: the difference is an age that no skew can spoil."""
    expires_ms: int | None

    @property
    def age_s(self) -> float:
        return max(0, self.read_ms - self.modified_ms) / 1000.0


class Fence(msgspec.Struct, frozen=True):
    """Leave to write, given by an election."""

    scope: str
    epoch: int


class Put(msgspec.Struct, frozen=True, gc=False):
    """Creates or replaces a record. `ttl_s` None means never: it has no default."""

    key: str
    value: bytes
    expect: Condition
    ttl_s: float | None
    silent: bool = False
    token: str = ""
    """Unique to this write. It becomes the version where the store allows."""


class Delete(msgspec.Struct, frozen=True):
    """Removes a record and its place in the index. A record that is gone is a success.
    With `ABSENT` only the place in the index of an expired record goes."""

    key: str
    expect: Condition
    silent: bool = False


class Check(msgspec.Struct, frozen=True):
    """Writes nothing; the batch fails if the condition does not hold. Without transactions
    it is only a read before the writes that follow."""

    key: str
    expect: Condition


class Append(msgspec.Struct, frozen=True):
    """Adds an item at the end. The result is its cursor, also when the id is known. Ids are
    made of the characters of keys."""

    stream: str
    id: str
    value: bytes
    ttl_s: float
    limit: int = 1000
    """Of unremoved items; beyond it `StreamFullError`. Exact with transactions."""
    carried: bool = False
    """Whoever listens to the stream may be given it at once, without a `read`."""
    beside: tuple[str, ...] = ()
    """Keys. An item that is carried brings along which versions these records had just before
    the step that added it: who gets it need not ask."""


class Extend(msgspec.Struct, frozen=True):
    """Holds a taken item for `lease_s` more from now; 0 gives it back."""

    stream: str
    cursor: str
    claim: str
    lease_s: float


class Remove(msgspec.Struct, frozen=True):
    """Takes an item out. With a claim it must be the present one, or the one that removed
    it; without one (inboxes) an item that is gone is a success."""

    stream: str
    cursor: str
    claim: str = ""


Write = Put | Delete | Check | Append | Extend | Remove


class Changed(msgspec.Struct, frozen=True):
    """The record does not have this version any more; "" waits for one that is absent."""

    key: str
    version: str = ""


class Appended(msgspec.Struct, frozen=True):
    """The stream has unremoved items after the cursor."""

    stream: str
    after: str = ""


class Takeable(msgspec.Struct, frozen=True):
    """The stream has an item that nobody holds, also because a claim ran out."""

    stream: str


Watch = Changed | Appended | Takeable


class Item(msgspec.Struct, frozen=True, kw_only=True):
    cursor: str
    """Its place; opaque. `read(after=cursor)` goes on behind it."""
    id: str
    value: bytes
    appended_ms: int
    read_ms: int
    beside: Mapping[str, str] = {}
    """What an item that was carried brings along: versions by key, "" for an absent record."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """An item that one owner holds until `until_ms` of store time."""

    item: Item
    claim: str
    attempt: int
    """1 for the first claim of the item."""
    until_ms: int


class Listed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A page has a thousand: the collector of garbage would run for each."""

    key: str
    modified_ms: int
    idle_ms: int


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Keys in an order that the store chooses. `after` is "" at the end."""

    entries: tuple[Listed, ...]
    after: str


class Depth(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream holds. `oldest_ms` is the age of the first unremoved item, 0 if none."""

    items: int
    held: int
    oldest_ms: int


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a feature may rely on. The probe may switch `conditional_delete` off."""

    transactions: bool
    """Batches are atomic, and so are fences."""
    blocking_wait: bool
    """`wait` is woken by the store; otherwise it polls."""
    native_expiry: bool
    """Expired records vanish by themselves; otherwise `sweep` removes them."""
    store_clock: bool
    """Store time comes from the store; otherwise from the one machine."""
    conditional_delete: bool
    cross_process: bool
    cross_host: bool


class Store(Protocol):
    """One prefix of one store. All methods may raise `StoreUnavailableError`."""

    @property
    def url(self) -> str:
        """Without any secret; for people."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    async def now_ms(self) -> int: ...

    async def get(self, *keys: str) -> tuple[Record | None, ...]:
        """In the order of the keys; one round trip where the store can. Expired is None."""
        ...

    async def write(self, *writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
        """Per write its new version or cursor, "" for the others. Raises
        `VersionConflict`, `StaleClaimError`, `StaleEpochError`, `StreamFullError`."""
        ...

    async def list(self, kind: str, *, idle_ms: int = 0, after: str = "", limit: int = 100) -> Page:
        """Keys of one kind that were not written for `idle_ms`."""
        ...

    async def sweep(self, kind: str, *, limit: int = 100, idle_ms: int = 0) -> int:
        """Removes expired records and streams of one kind for good, and their places in the
        index, as they were seen: what was written meanwhile stays. How many it removed. No record
        of the kind expires sooner than `idle_ms` after its last write: nobody need look at those
        that are younger."""
        ...

    async def count(self) -> Mapping[str, int]:
        """Places in the index by kind; streams count by their kind, one each. For people."""
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
        """Up to `limit` items that nobody holds, oldest first. A repeat with the same
        owner and request gets the same claims, for `TAKE_REMEMBERED_S`. Nothing is given where
        `provided` does not hold (`VersionConflict`); where there is nothing to give, nobody need
        look at it."""
        ...

    async def depth(self, stream: str) -> Depth: ...

    async def wait(self, *watches: Watch, timeout_s: float) -> frozenset[Watch]:
        """Those that hold, none at the timeout. Any number of waits of one process share
        one connection or one poll loop."""
        ...

    async def probe(self) -> None:
        """Tries the conditions in a scratch key. `UnsafeStoreError` names what failed."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class CarryingStore(Protocol):
    """A store that brings new items to who waits for them."""

    async def listen(self, stream: str, *, after: str, timeout_s: float) -> Sequence[Item]: ...


@lru_cache(maxsize=8192)
def make_key(kind: str, *parts: str) -> str:
    """The only way to a key or a stream name. The first part is the kind."""
    for part in (kind, *parts):
        if not IDENTIFIER.fullmatch(part) or part in {".", ".."}:
            raise InvalidIdentifierError(
                f"{part!r} cannot be part of a key: use 1 to 128 of A-Z a-z 0-9 _ . -"
            )
    return "/".join((kind, *parts))


def check_key(key: str) -> str:
    """One that `make_key` could have made. Stores build their own names from keys: `a:b` would be
    the record `a/b` on one of them, and `../a` that of another namespace."""
    if not KEY.fullmatch(key):
        raise InvalidIdentifierError(
            f"{key!r} is no key: write kind/id, each part 1 to 128 of A-Z a-z 0-9 _ . -"
        )
    return key


def check_ids(writes: Sequence[Write]) -> None:
    """Stores call it before they build their own texts from keys and ids."""
    for write in writes:
        if isinstance(write, Append):
            check_key(write.stream)
            make_key(write.id)
            for key in write.beside:
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
                    " ttl_s=3600.0 is right"
                )


def kind_of(key: str) -> str:
    return key.partition("/")[0]


def check_prefix(prefix: str) -> str:
    """A prefix is one identifier: another namespace extends it, as `blocking.team1`."""
    return make_key(prefix)
