"""Encrypts the secrets of a submission for the log, so that only managers of this cluster can
read them.

The key is derived from the cluster's secret. `open` tries every accepted secret, so a job
survives a rotation. The job's key is bound as associated data: a ciphertext cannot be moved
to another job.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from squall.api.errors import SquallError
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.secrets import Secrets, derive

_NONCE = 12


class SecretSealer:
    """Seals and opens the secrets of jobs."""

    def __init__(self, secrets: Secrets, cluster: str, entropy: Callable[[int], bytes]) -> None:
        self._ciphers = [
            AESGCM(derive(secret, salt=cluster.encode(), info=("job secrets",)))
            for secret in secrets.for_role(Role.NODE)
        ]
        self._entropy = entropy

    def seal(self, values: dict[str, str], bound_to: str) -> bytes:
        if not values:
            return b""
        nonce = self._entropy(_NONCE)
        plain = msgspec.msgpack.encode(values)
        return nonce + self._ciphers[0].encrypt(nonce, plain, bound_to.encode())

    def open(self, sealed: bytes, bound_to: str) -> dict[str, str]:
        if not sealed:
            return {}
        for cipher in self._ciphers:
            try:
                plain = cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], bound_to.encode())
            except InvalidTag:
                continue
            return msgspec.msgpack.decode(plain, type=dict[str, str])
        raise SquallError(
            "the secrets of the job cannot be decrypted because the cluster's secret changed: "
            "submit the job again"
        )
