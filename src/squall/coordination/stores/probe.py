"""Tests whether a store keeps the conditions that safety depends on.

Runs at every start, in a scratch record. A store that creates a record twice, or replaces a wrong
version, is refused. A store that only replaces missing records, or deletes a wrong version, is
used; the result names what it lacks, and the store then reads before such a write.
"""

from __future__ import annotations

from squall.coordination.store_errors import UnsafeStoreError, VersionConflict
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Delete,
    Put,
    Store,
    Write,
    make_key,
)
from squall.coordination.stores.kinds import kept_s

SCRATCH_TTL_S = kept_s("probe")


async def probe(store: Store, *, scratch: str) -> frozenset[str]:
    """What the store lacks and can do without. `scratch` must be unique to the caller."""
    key = make_key("probe", scratch)
    await store.write(Delete(key, ANY))
    (first,) = await store.write(_put(key, b"1", ABSENT))
    if not await _refused(store, _put(key, b"2", ABSENT)):
        raise _unsafe(store, "it created a record that existed (it ignores create-if-absent)")
    (second,) = await store.write(_put(key, b"3", first))
    if not await _refused(store, _put(key, b"4", first)):
        raise _unsafe(store, "it replaced a record of another version (it ignores if-match)")
    missing: set[str] = set()
    if not await _refused(store, Delete(key, first)):
        missing.add("conditional_delete")
    await store.write(Delete(key, ANY))
    if not await _refused(store, _put(key, b"5", second)):
        missing.add("replace_missing")
    await store.write(Delete(key, ANY))
    return frozenset(missing)


async def _refused(store: Store, write: Write) -> bool:
    try:
        await store.write(write)
    except VersionConflict:
        return True
    return False


def _put(key: str, value: bytes, expect: object) -> Put:
    assert expect is ABSENT or isinstance(expect, str)
    return Put(key, value, expect=expect, ttl_s=SCRATCH_TTL_S)


def _unsafe(store: Store, what: str) -> UnsafeStoreError:
    return UnsafeStoreError(f"{store.url} is not safe for coordination: {what}; use another store")
