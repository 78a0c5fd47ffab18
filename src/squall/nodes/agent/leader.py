"""Who coordinates, as anybody can read it in the store.

A member of the election is named like its mailbox, so the lease itself says where the
coordinator is. It is not believed for anything: who answers there must prove itself in the
handshake. A lease that was not renewed for its own length, by the store's clock, is nobody's.
"""

from __future__ import annotations

from squall.coordination.errors import StoreUnavailableError
from squall.coordination.keys import LEADER
from squall.coordination.records import Codec, LeaseRecord
from squall.coordination.stores.interface import Store
from squall.runtime.interfaces import Address

LEADER_ADDRESS: Address = ("leader", 0)
"""Where workers and clients dial: `resolve` says who that is at the moment."""
NOBODY_YET = "no agent was ever there"
NOBODY_NOW = "no agent coordinates at the moment"
CLOCK_SLACK_S = 1.0
"""Some stores tell their time in whole seconds."""


async def find_leader(store: Store) -> str:
    """The mailbox of the coordinator; `ConnectionError` says why there is none."""
    try:
        (record,) = await store.get(LEADER)
    except StoreUnavailableError as error:
        raise ConnectionError(str(error)) from None
    if record is None:
        raise ConnectionError(NOBODY_YET)
    lease = Codec(None).read(LeaseRecord, record.value, signed=False)
    held = lease is not None and not lease.released and bool(lease.worker_id)
    if lease is None or not held or record.age_s > lease.lease_ttl + CLOCK_SLACK_S:
        raise ConnectionError(NOBODY_NOW)
    return lease.worker_id
