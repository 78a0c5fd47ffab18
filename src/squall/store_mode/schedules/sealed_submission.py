"""The submission of a schedule, encrypted in the store so that only agents can read it.

It holds values of environment variables and the author's secrets, and it names the code to run.
So it is encrypted with a key that only its client and the agents can derive: from the client's
credential, which an agent derives from the cluster's secret and the client's name. The schedule
is authenticated with it: if the cron text or the bundle is changed in the store, the
submission does not open. It must never return what does not verify.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from squall.api.errors import SquallError
from squall.cluster.protocol.submission import Submission
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.secrets import Secrets, derive, key_name
from squall.store_mode.schedules.records import Schedule

_NONCE = 12


class Unsealable(SquallError):
    """The submission was not sealed by the named client, or not for this schedule."""


def seal(
    submission: Submission,
    schedule: Schedule,
    secrets: Secrets,
    cluster: str,
    entropy: Callable[[int], bytes],
) -> bytes:
    nonce = entropy(_NONCE)
    cipher = _ciphers(secrets, cluster, schedule)[0]
    plain = msgspec.msgpack.encode(submission)
    return nonce + cipher.encrypt(nonce, plain, _bound(schedule))


def unseal(sealed: bytes, schedule: Schedule, secrets: Secrets, cluster: str) -> Submission:
    """Tries all accepted secrets, so that a schedule survives a rotation."""
    for cipher in _ciphers(secrets, cluster, schedule):
        try:
            plain = cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], _bound(schedule))
        except (InvalidTag, ValueError):
            continue
        try:
            return msgspec.msgpack.decode(plain, type=Submission)
        except msgspec.MsgspecError as error:
            raise Unsealable(
                f"it was added by another version of Squall ({error}): remove it and add it again"
            ) from None
    raise Unsealable(
        "it was added with a secret that the agents no longer accept: remove it and add it again"
    )


def _ciphers(secrets: Secrets, cluster: str, schedule: Schedule) -> list[AESGCM]:
    name = key_name(schedule.principal, operator=schedule.operator)
    return [
        AESGCM(derive(secret, salt=cluster.encode(), info=("scheduled submissions",)))
        for secret in secrets.for_role(Role.CLIENT, name)
    ]


def _bound(schedule: Schedule) -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(schedule, submission=""))
