"""A wrong secret is reported in one line; the command does not hang."""

from __future__ import annotations

import pytest

from squall.coordination.secrets.sources import check_secret as check_signing_secret
from squall.coordination.stores.memory.store import MemoryStore
from squall.runtime.real.runtime import RealClock
from squall.store_mode.secret_check import (
    KEY,
    WrongSecret,
    check_secret,
    proof_of,
    renew_secret,
    settle_secret,
    signing_secret,
)

OURS = proof_of("the secret of these agents", "lab")
THEIRS = proof_of("the secret of other agents", "lab")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(RealClock())


@pytest.mark.asyncio
async def test_the_first_agent_leaves_a_proof_and_the_next_ones_compare(store: MemoryStore) -> None:
    await check_secret(store, [THEIRS], shown="here")
    await settle_secret(store, [OURS], shown="here")
    await settle_secret(store, [OURS], shown="here")
    await check_secret(store, [OURS], shown="here")
    with pytest.raises(WrongSecret, match="here: the agents there have another secret"):
        await settle_secret(store, [THEIRS], shown="here")
    with pytest.raises(WrongSecret):
        await check_secret(store, [THEIRS], shown="here")


@pytest.mark.asyncio
async def test_a_credential_proves_nothing_and_is_left_to_the_handshake(store: MemoryStore) -> None:
    await settle_secret(store, [OURS], shown="here")
    await check_secret(store, [], shown="here")


@pytest.mark.asyncio
async def test_while_a_secret_is_changed_both_are_accepted(store: MemoryStore) -> None:
    await settle_secret(store, [OURS], shown="here")
    await settle_secret(store, [THEIRS, OURS], shown="here")
    await renew_secret(store, [THEIRS, OURS])
    await settle_secret(store, [THEIRS], shown="here")
    with pytest.raises(WrongSecret):
        await settle_secret(store, [OURS], shown="here")


@pytest.mark.asyncio
async def test_a_store_that_lost_the_proof_gets_it_again(store: MemoryStore) -> None:
    await renew_secret(store, [OURS])
    (record,) = await store.get(KEY)
    assert record is not None and record.value == OURS.encode()


def test_the_cluster_is_part_of_it_and_nothing_shows_the_secret() -> None:
    assert proof_of("a secret of some length", "lab") != proof_of("a secret of some length", "x")
    made = signing_secret("a secret of some length", "lab")
    check_signing_secret(made)
    assert made != proof_of("a secret of some length", "lab")
