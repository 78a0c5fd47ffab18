"""Reports at once if agents and clients in one store have different secrets.

The store holds a proof that is derived from the cluster's secret and reveals nothing else. The
first agent writes it; later processes compare. Security does not depend on it: the wire seals and
the election signs everything that matters. Without this record a wrong secret would only show as
silence. During a rotation an agent accepts several secrets, and the coordinator writes the proof
of the one that it sends with.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from squall.api.errors import ConfigError
from squall.cluster.wire.seal.secrets import derive
from squall.coordination.errors import VersionConflict
from squall.coordination.stores.interface import ABSENT, Put, Store, make_key

KEY = make_key("secret-check")
_PROOF = "squall store mode: the proof of a secret"
_SIGNING = "squall store mode: signatures of the election"


class WrongSecret(ConfigError):
    """The process has another secret than the agents in this store."""


def proof_of(secret: str, cluster: str) -> str:
    return derive(secret.encode(), salt=b"", info=(_PROOF, cluster)).hex()


def signing_secret(secret: str, cluster: str) -> str:
    """The election's signing secret, derived from the cluster's so that users keep only one."""
    return derive(secret.encode(), salt=b"", info=(_SIGNING, cluster)).hex()


async def check_secret(store: Store, proofs: Sequence[str], *, shown: str) -> None:
    """Compares and writes nothing: for clients, which may start before any agent."""
    (found,) = await store.get(KEY)
    if found is not None and proofs and not _matches(found.value, proofs):
        raise _wrong(shown)


async def settle_secret(store: Store, proofs: Sequence[str], *, shown: str) -> None:
    """Called by an agent at its start: writes the proof, or compares with the existing one."""
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
    """Called by the coordinator: writes the proof of the sending secret again after a rotation,
    or after the store lost its data."""
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
        f"{shown}: the agents there have another secret or cluster id: use theirs with "
        "--secret-file and --cluster, or choose another --prefix"
    )
