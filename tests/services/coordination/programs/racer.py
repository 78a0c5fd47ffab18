"""One process of the race in `stores/test_processes.py`: takes tickets, does each once.

python -m tests.services.coordination.programs.racer URL PREFIX NAME
"""

from __future__ import annotations

import asyncio
import random
import sys

from squall.coordination.store_errors import StaleClaimError, VersionConflict
from squall.coordination.stores.interface import ABSENT, Append, Fence, Put, Remove, Store, Takeable
from squall.coordination.stores.open import make_store
from squall.runtime.real.runtime import RealClock

QUEUE = "tickets/q"
LEASE_S = 1.0


async def race(url: str, prefix: str, name: str) -> None:
    store = make_store(url, RealClock(), random.Random(), prefix=prefix)
    print("ready", flush=True)
    await elect(store, name)
    while True:
        claims = await store.take(QUEUE, name, lease_s=LEASE_S, limit=3)
        for claim in claims:
            remove = Remove(QUEUE, claim.item.cursor, claim.claim)
            try:
                # The decision first; a process that finds it can repeat the rest.
                await store.write(
                    Put(f"done/{claim.item.id}", name.encode(), expect=ABSENT, ttl_s=600.0),
                    remove,
                    Append("log/all", f"{claim.item.id}.{claim.attempt}", b"", ttl_s=600.0),
                )
            except StaleClaimError:
                continue
            except VersionConflict:
                await store.write(remove)
        if not claims:
            await store.wait(Takeable(QUEUE), timeout_s=2.0)


async def elect(place: Store, name: str) -> None:
    """All processes compete for the next epoch, round by round; the winner records it."""
    for _ in range(30 if place.capabilities.transactions else 6):
        (lease,) = await place.get("leader")
        epoch = 1 if lease is None else lease.epoch + 1
        expect = ABSENT if lease is None else lease.version
        try:
            await place.write(
                Put("leader", name.encode(), expect=expect, ttl_s=None),
                Append("log/epochs", f"{epoch}.{name}", b"", ttl_s=600.0),
                fence=Fence("leader", epoch),
            )
        except VersionConflict:
            continue


if __name__ == "__main__":
    asyncio.run(race(*sys.argv[1:4]))
