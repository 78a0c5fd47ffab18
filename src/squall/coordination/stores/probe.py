"""Whether a store gives the conditions that safety rests on; tried, not believed.

Runs at every start, in a scratch record of its own. A store that creates twice or replaces
a wrong version is refused. One that replaces what is missing, or deletes a wrong version,
is used with what it has: `missing` says so, and the store then reads before such a write.
"""

from __future__ import annotations

from squall.coordination.stores.errors import UnsafeStoreError, VersionConflict
from squall.coordination.stores.interface import (
    ABSENT,
    ANY,
    Delete,
    Put,
    Store,
    Write,
    make_key,
)

SCRATCH_TTL_S = 600.0


async def probe(store: Store, *, scratch: str) -> frozenset[str]:
    """Names of what the store lacks but can do without. `scratch` is unique to the caller."""
    key = make_key("probe", scratch)
    await store.write(Delete(key, ANY))
    (first,) = await store.write(_put(key, b"1", ABSENT))
    if not await _refused(store, _put(key, b"2", ABSENT)):
        raise _unsafe(store, "it created a record that exists (create-if-absent is ignored)")
    (second,) = await store.write(_put(key, b"3", first))
    if not await _refused(store, _put(key, b"4", first)):
        raise _unsafe(store, "it replaced a record of another version (if-match is ignored)")
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
    return UnsafeStoreError(
        f"{store.url} is not safe for coordination: {what}; use a store that keeps the condition"
    )
