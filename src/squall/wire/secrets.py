"""Secrets: one of the cluster, and what is derived from it for each role.

A node is given the cluster's secret; a worker or client is given a credential that was
derived from it and from which nothing else can be. Several secrets may be accepted while
one is sent with, so that a secret is changed without a moment in which nodes cannot read
each other: add the new one everywhere, send with it, take the old one away.

Where a secret comes from (file, environment) is decided elsewhere. Nothing here may show a
secret in a text, a `repr` or an error.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from squall.api.errors import ConfigError
from squall.wire.roles import Role

SECRET_MIN_CHARACTERS = 16
ACCEPTED_MAX = 8
"""Each one costs a key derivation per unknown sender."""
NAME_MAX_CHARACTERS = 64
KEY_SIZE = 32
_CREDENTIAL = "squall1"


class Secrets:
    """What one process holds: for which roles it can make keys, the sending secret first."""

    def __init__(self, role: Role, name: str, secrets: Sequence[bytes]) -> None:
        """Use `of_node` or `of_credential`."""
        self.role = role
        self.name = name
        self._secrets = tuple(secrets)
        self._derived: dict[tuple[Role, str], tuple[bytes, ...]] = {}

    def __repr__(self) -> str:
        return f"Secrets({self.role.label}, {len(self._secrets)} accepted)"

    @classmethod
    def of_node(cls, sending: str, accepted: Sequence[str] = ()) -> Secrets:
        """`accepted` are the other secrets that senders may still, or already, use."""
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
        """From what `client_credential` or `worker_credential` gave."""
        read = [_read_credential(text) for text in dict.fromkeys((sending, *accepted))]
        kinds = {(role, name) for role, name, _ in read}
        if len(kinds) > 1:
            raise ConfigError("the credentials are of different roles or names: give those of one")
        role, name, _ = read[0]
        return cls(role, name, [secret for _, _, secret in read])

    def for_role(self, role: Role, name: str = "") -> tuple[bytes, ...]:
        """The role's secrets, the sending one first; none if this process cannot make them."""
        if self.role is not Role.NODE:
            return self._secrets if (role, name) == (self.role, self.name) else ()
        known = self._derived.get((role, name))
        if known is None:
            known = tuple(_role_secret(secret, role, name) for secret in self._secrets)
            # Names come from peers that are not authenticated yet: never keep those.
            if not name:
                self._derived[role, name] = known
        return known


def check_secret(secret: str) -> None:
    if len(secret) < SECRET_MIN_CHARACTERS:
        raise ConfigError(
            f"the cluster secret has {len(secret)} characters, at least "
            f"{SECRET_MIN_CHARACTERS} are needed: make one with `openssl rand -hex 32`"
        )


def client_credential(cluster_secret: str, name: str) -> str:
    """What a client is given. `name` is the principal of everything it submits; it is
    bound to the credential and stays the same when the cluster's secret changes."""
    _check_name(name)
    return _credential(cluster_secret, Role.CLIENT, name)


def worker_credential(cluster_secret: str) -> str:
    """What a worker is given: the same for all, because workers probe each other."""
    return _credential(cluster_secret, Role.WORKER, "")


def derive(secret: bytes, *, salt: bytes, info: Sequence[str | bytes]) -> bytes:
    """A key; the parts of `info` are joined so that no two lists give the same bytes."""
    joined = bytearray()
    for part in info:
        raw = part.encode() if isinstance(part, str) else part
        joined += len(raw).to_bytes(4, "big") + raw
    return HKDF(hashes.SHA256(), KEY_SIZE, salt, bytes(joined)).derive(secret)


def _role_secret(cluster_secret: bytes, role: Role, name: str) -> bytes:
    return derive(cluster_secret, salt=b"", info=("squall role secret", role.label, name))


def _credential(cluster_secret: str, role: Role, name: str) -> str:
    check_secret(cluster_secret)
    secret = _role_secret(cluster_secret.encode(), role, name)
    encoded = base64.urlsafe_b64encode(secret).decode().rstrip("=")
    return ":".join((_CREDENTIAL, role.label, name, encoded))


def _read_credential(text: str) -> tuple[Role, str, bytes]:
    parts = text.strip().split(":")
    roles = {role.label: role for role in (Role.CLIENT, Role.WORKER)}
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
    return roles[label], name, secret


def _check_name(name: str) -> None:
    usable = name.isprintable() and ":" not in name and " " not in name
    if not (usable and 0 < len(name) <= NAME_MAX_CHARACTERS):
        raise ConfigError(
            f"client name {name!r} cannot be used: 1 to {NAME_MAX_CHARACTERS} printable "
            "characters without space and colon"
        )
