"""A submission that waits in a store for its due times: readable by the agents only.

It holds the values of the environment and the author's secrets, and it says which code is
run. So it is encrypted with a key that only its client and the agents can make: from the
client's credential, which an agent derives from the cluster's secret and the client's name.
The schedule is bound to it: who changes the cron text or the bundle in the store makes a
submission that does not open. It must never give out what does not verify.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from squall.api.errors import SquallError
from squall.nodes.agent.schedules_records import Schedule
from squall.nodes.submission import Submission
from squall.wire.roles import Role
from squall.wire.secrets import Secrets, derive

_NONCE = 12


class Unsealable(SquallError):
    """Not sealed by who is named, or not for this schedule."""


def seal(
    submission: Submission,
    schedule: Schedule,
    secrets: Secrets,
    cluster: str,
    entropy: Callable[[int], bytes],
) -> bytes:
    nonce = entropy(_NONCE)
    cipher = _ciphers(secrets, cluster, schedule.principal)[0]
    plain = msgspec.msgpack.encode(submission)
    return nonce + cipher.encrypt(nonce, plain, _bound(schedule))


def unseal(sealed: bytes, schedule: Schedule, secrets: Secrets, cluster: str) -> Submission:
    """With any of the accepted secrets, so that a schedule survives a rotation."""
    for cipher in _ciphers(secrets, cluster, schedule.principal):
        try:
            plain = cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], _bound(schedule))
        except (InvalidTag, ValueError):
            continue
        try:
            return msgspec.msgpack.decode(plain, type=Submission)
        except msgspec.MsgspecError as error:
            raise Unsealable(
                f"another version of Squall added it ({error}): remove it and add it again"
            ) from None
    raise Unsealable(
        "it was added with another secret than the agents have now: remove it and add it again"
    )


def _ciphers(secrets: Secrets, cluster: str, principal: str) -> list[AESGCM]:
    return [
        AESGCM(derive(secret, salt=cluster.encode(), info=("scheduled submissions",)))
        for secret in secrets.for_role(Role.CLIENT, principal)
    ]


def _bound(schedule: Schedule) -> bytes:
    return msgspec.msgpack.encode(msgspec.structs.replace(schedule, submission=""))
