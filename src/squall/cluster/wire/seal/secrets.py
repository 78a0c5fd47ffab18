"""The cluster's secret, and the credentials that are derived from it for each role.

A node holds the cluster's secret. A worker or client holds a credential that was derived from
it, from which no other secret can be derived. A process sends with one secret and may accept
several, so that the secret can be changed without an outage: add the new one everywhere, send
with it, then remove the old one.

No text, `repr` or error here may show a secret.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Protocol

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from squall.api.errors import ConfigError
from squall.cluster.wire.roles import Role

SECRET_MIN_CHARACTERS = 16
ACCEPTED_MAX = 8
"""Each accepted secret costs a key derivation per unknown sender."""
NAME_MAX_CHARACTERS = 64
OPERATOR = "operator"
_OPERATOR_MARK = f":{OPERATOR}"
KEY_SIZE = 32
_CREDENTIAL = "squall1"


class RoleSecrets(Protocol):
    """What keys are derived from."""

    @property
    def role(self) -> Role:
        """The role of the process that has them."""
        ...

    def for_role(self, role: Role, name: str = "") -> tuple[bytes, ...]:
        """The role's secrets, the sending one first; none if this process has none."""
        ...


class Secrets:
    """The secrets of one process, the sending one first, and the roles it can make keys for."""

    def __init__(
        self, role: Role, name: str, secrets: Sequence[bytes], *, operator: bool = False
    ) -> None:
        """Use `of_node` or `of_credential`."""
        self.role = role
        self.name = name
        self.operator = operator
        self._secrets = tuple(secrets)
        self._derived: dict[tuple[Role, str], tuple[bytes, ...]] = {}

    def __repr__(self) -> str:
        return f"Secrets({self.role.label}, {len(self._secrets)} accepted)"

    @classmethod
    def of_node(cls, sending: str, accepted: Sequence[str] = ()) -> Secrets:
        """`accepted` are further secrets that peers may use while the secret is changed."""
        ordered = list(dict.fromkeys((sending, *accepted)))
        if len(ordered) > ACCEPTED_MAX:
            raise ConfigError(
                f"{len(ordered)} cluster secrets are accepted, at most {ACCEPTED_MAX} may be: "
                "remove those that no node sends with any more"
            )
        for secret in ordered:
            check_secret(secret)
        return cls(Role.NODE, "", [secret.encode() for secret in ordered])

    @classmethod
    def of_credential(cls, sending: str, accepted: Sequence[str] = ()) -> Secrets:
        """From the result of `client_credential` or `worker_credential`."""
        read = [_read_credential(text) for text in dict.fromkeys((sending, *accepted))]
        kinds = {(role, key_name) for role, key_name, _ in read}
        if len(kinds) > 1:
            raise ConfigError("the credentials are of different roles or names: give those of one")
        role, key_name, _ = read[0]
        name, operator = split_key_name(key_name)
        return cls(role, name, [secret for _, _, secret in read], operator=operator)

    def for_role(self, role: Role, name: str = "") -> tuple[bytes, ...]:
        """The role's secrets, the sending one first; none if this process cannot make them. `name`
        is the name of a key (`key_name`)."""
        if self.role is not Role.NODE:
            own = (self.role, key_name(self.name, operator=self.operator))
            return self._secrets if (role, name) == own else ()
        known = self._derived.get((role, name))
        if known is None:
            known = tuple(_role_secret(secret, role, name) for secret in self._secrets)
            # Names come from peers that are not authenticated yet: never keep those.
            if not name:
                self._derived[role, name] = known
        return known

    def membership_keys(self, group: str) -> tuple[bytes, ...]:
        """The keys of the datagrams between a group's nodes and its workers, one for each accepted
        secret. Only a node can make them. No other key follows from them."""
        if self.role is not Role.NODE:
            return ()
        info = ("squall membership key", group)
        return tuple(derive(secret, salt=b"", info=info) for secret in self._secrets)


class DatagramSecrets:
    """The secrets of one process's datagrams: between nodes those of their role, to and among
    workers the membership keys of their group.

    A worker's credential is of no use here: one that is bound to a name is shared with nobody but
    the nodes. The nodes give all workers the membership keys."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self.membership_keys: tuple[bytes, ...] = ()

    @property
    def role(self) -> Role:
        return self._secrets.role

    def for_role(self, role: Role, name: str = "") -> tuple[bytes, ...]:
        return self.membership_keys if role is Role.WORKER else self._secrets.for_role(role, name)


def check_secret(secret: str) -> None:
    if len(secret) < SECRET_MIN_CHARACTERS:
        raise ConfigError(
            f"the cluster secret has {len(secret)} characters, at least "
            f"{SECRET_MIN_CHARACTERS} are needed: make one with `openssl rand -hex 32`"
        )


def key_name(name: str, *, operator: bool) -> str:
    """The name that a secret is derived for. An operator's has a mark that no name can have, so a
    client cannot turn its own secret into an operator's."""
    return f"{name}{_OPERATOR_MARK}" if operator else name


def split_key_name(text: str) -> tuple[str, bool]:
    """(name, whether it is an operator's) of a `key_name`."""
    return text.removesuffix(_OPERATOR_MARK), text.endswith(_OPERATOR_MARK)


def client_credential(cluster_secret: str, name: str, *, operator: bool = False) -> str:
    """The credential of a client. `name` is the principal of everything it submits; it is part
    of the credential and stays the same when the cluster's secret changes. An `operator` may also
    change what other clients submitted, and the nodes."""
    _check_name(name)
    return _credential(cluster_secret, Role.CLIENT, name, operator=operator)


def worker_credential(cluster_secret: str, name: str = "") -> str:
    """The credential of one worker, which registers under no other name; without a name, one that
    all workers may share."""
    if name:
        _check_name(name)
    return _credential(cluster_secret, Role.WORKER, name)


def derive(secret: bytes, *, salt: bytes, info: Sequence[str | bytes]) -> bytes:
    """Derives a key. The parts of `info` are joined so that no two lists give the same bytes."""
    joined = bytearray()
    for part in info:
        raw = part.encode() if isinstance(part, str) else part
        joined += len(raw).to_bytes(4, "big") + raw
    return HKDF(hashes.SHA256(), KEY_SIZE, salt, bytes(joined)).derive(secret)


def _role_secret(cluster_secret: bytes, role: Role, name: str) -> bytes:
    return derive(cluster_secret, salt=b"", info=("squall role secret", role.label, name))


def _credential(cluster_secret: str, role: Role, name: str, *, operator: bool = False) -> str:
    check_secret(cluster_secret)
    secret = _role_secret(cluster_secret.encode(), role, key_name(name, operator=operator))
    encoded = base64.urlsafe_b64encode(secret).decode().rstrip("=")
    return ":".join((_CREDENTIAL, OPERATOR if operator else role.label, name, encoded))


def _read_credential(text: str) -> tuple[Role, str, bytes]:
    """(role, key name, secret)"""
    parts = text.strip().split(":")
    roles = {role.label: role for role in (Role.CLIENT, Role.WORKER)} | {OPERATOR: Role.CLIENT}
    try:
        version, label, name, encoded = parts
        secret = base64.b64decode(encoded + "=" * (-len(encoded) % 4), b"-_", validate=True)
    except (ValueError, binascii.Error):
        version, label, name, secret = "", "", "", b""
    if version != _CREDENTIAL or label not in roles or len(secret) != KEY_SIZE:
        raise ConfigError(
            "this is not a Squall credential: give the whole line that "
            "`squall secret client` or `squall secret worker` printed"
        )
    return roles[label], key_name(name, operator=label == OPERATOR), secret


def _check_name(name: str) -> None:
    usable = name.isprintable() and ":" not in name and " " not in name
    if not (usable and 0 < len(name) <= NAME_MAX_CHARACTERS):
        raise ConfigError(
            f"the name {name!r} cannot be used: 1 to {NAME_MAX_CHARACTERS} printable "
            "characters without space and colon"
        )
