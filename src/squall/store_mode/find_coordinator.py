"""Finds the current coordinator by its lease in the store.

The member id of an agent is the name of its mailbox, so the lease names the coordinator's mailbox.
The reader does not trust the lease: the process that answers there must prove itself in the
handshake. A lease has expired if it was not renewed within its own length, by the store's clock.
"""

from __future__ import annotations

from squall.coordination.errors import StoreUnavailableError
from squall.coordination.records.keys import LEADER
from squall.coordination.records.schemas import Codec, LeaseRecord
from squall.coordination.stores.interface import Store
from squall.runtime.interfaces import Address

LEADER_ADDRESS: Address = ("leader", 0)
"""The address that workers and clients dial; `resolve` finds the agent behind it."""
NO_AGENT_YET = "no agent was ever there"
NO_COORDINATOR_NOW = "no agent coordinates at the moment"
CLOCK_SLACK_S = 1.0
"""Some stores report their time in whole seconds."""


async def find_leader(store: Store) -> str:
    """Returns the mailbox of the coordinator; raises `ConnectionError` with the reason if there
    is none."""
    try:
        (record,) = await store.get(LEADER)
    except StoreUnavailableError as error:
        raise ConnectionError(str(error)) from None
    if record is None:
        raise ConnectionError(NO_AGENT_YET)
    lease = Codec(None).read(LeaseRecord, record.value, signed=False)
    held = lease is not None and not lease.released and bool(lease.member_id)
    if lease is None or not held or record.age_s > lease.lease_ttl + CLOCK_SLACK_S:
        raise ConnectionError(NO_COORDINATOR_NOW)
    return lease.member_id
