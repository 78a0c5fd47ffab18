"""Whether everybody who meets in a store has the same secret: told at once, in one line.

The store holds a proof that can be made from the cluster's secret and leads to nothing else.
Who comes first leaves it, who comes later compares. Everything that matters is sealed by the
wire and signed by the election; this record only turns a silence, which is all that a wrong
secret would give, into a sentence. While a secret is changed an agent accepts several, and
the coordinator leaves the proof of the one that it sends with.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from squall.api.errors import ConfigError
from squall.coordination.errors import VersionConflict
from squall.coordination.stores.interface import ABSENT, Put, Store, make_key
from squall.wire.secrets import derive

KEY = make_key("secret-check")
_PROOF = "squall store mode: the proof of a secret"
_SIGNING = "squall store mode: signatures of the election"


class WrongSecret(ConfigError):
    """Another secret than that of the agents in this store."""


def proof_of(secret: str, cluster: str) -> str:
    return derive(secret.encode(), salt=b"", info=(_PROOF, cluster)).hex()


def signing_secret(secret: str, cluster: str) -> str:
    """What the election signs with: made from the cluster's secret, so that there is one."""
    return derive(secret.encode(), salt=b"", info=(_SIGNING, cluster)).hex()


async def check_secret(store: Store, proofs: Sequence[str], *, shown: str) -> None:
    """Compares without leaving anything: for clients, who may come before any agent."""
    (found,) = await store.get(KEY)
    if found is not None and proofs and not _matches(found.value, proofs):
        raise _wrong(shown)


async def settle_secret(store: Store, proofs: Sequence[str], *, shown: str) -> None:
    """Of an agent at its start: leaves the proof, or compares with the one that is there."""
    (found,) = await store.get(KEY)
    if found is None:
        try:
            await store.write(Put(KEY, proofs[0].encode(), expect=ABSENT, ttl_s=None))
            return
        except VersionConflict:
            (found,) = await store.get(KEY)
    if found is not None and not _matches(found.value, proofs):
        raise _wrong(shown)


async def renew_secret(store: Store, proofs: Sequence[str]) -> None:
    """Of the coordinator: the proof is there, also after the store lost its data, and is
    that of the secret that is sent with."""
    (found,) = await store.get(KEY)
    if found is not None and found.value == proofs[0].encode():
        return
    expect = ABSENT if found is None else found.version
    try:
        await store.write(Put(KEY, proofs[0].encode(), expect=expect, ttl_s=None))
    except VersionConflict:
        return


def _matches(value: bytes, proofs: Sequence[str]) -> bool:
    return any(hmac.compare_digest(value, proof.encode()) for proof in proofs)


def _wrong(shown: str) -> WrongSecret:
    return WrongSecret(
        f"{shown}: the agents there have another secret or cluster id: give theirs with "
        "--secret-file and --cluster, or take another --prefix"
    )
