"""The coordinator is found by its lease, and only while that lease is held."""

from __future__ import annotations

import pytest

from squall.coordination.errors import StoreUnavailableError
from squall.coordination.records.keys import LEADER
from squall.coordination.records.schemas import Codec, LeaseRecord
from squall.coordination.secrets.signing import Keyring
from squall.coordination.stores.interface import ANY, Put, Record
from squall.coordination.stores.memory.store import MemoryStore
from squall.store_mode.find_coordinator import NO_AGENT_YET, NO_COORDINATOR_NOW, find_leader
from squall.store_mode.secret_check import signing_secret


class HandClock:
    """Time is what the test says."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def boot_time(self) -> float:
        return self.time

    def kernel_boot(self) -> str:
        return ""

    def wall(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


def lease(**changed: object) -> bytes:
    fields: dict[str, object] = {
        "epoch": 3,
        "member_id": "a1-1234",
        "boot": 1,
        "token": "t",
        "elected_at": 0.0,
        "renewals": 0,
        "lease_ttl": 4.0,
        "term_ends_at": 0.0,
    }
    keyring = Keyring.of((signing_secret("the secret of agents", "lab"),), "staging", "store")
    return Codec(keyring).encode(LeaseRecord(**(fields | changed)))  # pyright: ignore[reportArgumentType]


@pytest.mark.asyncio
async def test_the_holder_of_a_lease_is_found_without_the_secret_until_it_runs_out() -> None:
    clock = HandClock()
    store = MemoryStore(clock)
    with pytest.raises(ConnectionError, match=NO_AGENT_YET):
        await find_leader(store)
    await store.write(Put(LEADER, lease(), expect=ANY, ttl_s=None))
    assert await find_leader(store) == "a1-1234"
    clock.time += 4.0
    assert await find_leader(store) == "a1-1234"
    clock.time += 2.0
    with pytest.raises(ConnectionError, match=NO_COORDINATOR_NOW):
        await find_leader(store)


@pytest.mark.asyncio
@pytest.mark.parametrize("value", [lease(released=True), lease(member_id=""), b"not a lease"])
async def test_a_lease_without_a_holder_names_no_coordinator(value: bytes) -> None:
    store = MemoryStore(HandClock())
    await store.write(Put(LEADER, value, expect=ANY, ttl_s=None))
    with pytest.raises(ConnectionError, match=NO_COORDINATOR_NOW):
        await find_leader(store)


class Away(MemoryStore):
    async def get(self, *keys: str) -> tuple[Record | None, ...]:
        raise StoreUnavailableError("redis://h: no answer")


@pytest.mark.asyncio
async def test_a_store_that_is_away_is_a_connection_that_fails() -> None:
    with pytest.raises(ConnectionError, match="redis://h: no answer"):
        await find_leader(Away(HandClock()))
