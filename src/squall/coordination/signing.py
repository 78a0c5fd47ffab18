"""Signatures over records in a store that others can write to as well.

A signature covers every field except itself, in one canonical form, and the kind of the
record. Keys are derived from the secret for one environment and one namespace: what was
copied from another one does not verify. Several keys are accepted while one signs, so that
a secret is changed while everything runs.

A wrong signature is an answer, never an exception. Nothing here may show a secret, a key
or a signature in a text, a `repr` or an error.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from squall.coordination.errors import ConfigurationError

KEY_BYTES = 32
SIGNATURE_CHARACTERS = 64
UNSIGNED = ("signature",)
_HEX = frozenset("0123456789abcdef")
_SORTED = msgspec.json.Encoder(order="sorted")


class Key:
    """One derived key and the public name that signatures carry."""

    __slots__ = ("_mac", "key_id")

    def __init__(self, secret: str, environment: str, namespace: str) -> None:
        scope = json.dumps([environment, namespace])
        derived = HKDF(
            algorithm=hashes.SHA256(),
            length=KEY_BYTES,
            salt=b"squall.coordination",
            info=scope.encode(),
        ).derive(secret.encode())
        self._mac = hmac.new(derived, digestmod=hashlib.sha256)
        """Begun with the key; each signature goes on from a copy."""
        self.key_id = hashlib.sha256(b"key id\0" + derived).hexdigest()[:16]

    def sign(self, content: bytes) -> str:
        mac = self._mac.copy()
        mac.update(content)
        return mac.hexdigest()

    def __repr__(self) -> str:
        return f"Key({self.key_id})"


class Keyring:
    """What one member signs with and accepts."""

    def __init__(self, keys: Sequence[Key], signing: str | None = None) -> None:
        """`signing` names the key that signs; the first one without it."""
        if not keys:
            raise ConfigurationError("there is no signing secret: give one as `secret`")
        self._keys = {key.key_id: key for key in keys}
        self._signing = self._keys[signing] if signing else keys[0]
        self._scope = ("", "")

    @classmethod
    def of(cls, secrets: Sequence[str], environment: str, namespace: str) -> Keyring:
        """The first secret signs, all are accepted."""
        made = cls([Key(secret, environment, namespace) for secret in secrets])
        made._scope = (environment, namespace)
        return made

    def replace(self, secrets: Sequence[str]) -> None:
        """Accepts these from now on, the newest last. The key that signs stays while it is
        among them: who signs with what is agreed on by all members, not by one."""
        keys = [Key(secret, *self._scope) for secret in secrets]
        if not keys:
            raise ConfigurationError("no secret is left: give at least one")
        self._keys = {key.key_id: key for key in keys}
        self._signing = self._keys.get(self._signing.key_id, keys[0])

    @property
    def signing_id(self) -> str:
        return self._signing.key_id

    @property
    def key_ids(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def accepts(self, key_id: str) -> bool:
        """Names are made from the keys: the same name is the same key."""
        return key_id in self._keys

    def sign_with(self, key_id: str) -> bool:
        """From now on; False when there is no such key."""
        if key_id not in self._keys:
            return False
        self._signing = self._keys[key_id]
        return True

    def seal(self, kind: str, fields: dict[str, Any]) -> bytes:
        """The record as it is stored: the canonical form of its fields, the name of the key
        among them, and the signature last."""
        fields["key_id"] = self._signing.key_id
        body = _SORTED.encode(fields)
        signature = self._signing.sign(content_of(kind, body))
        return b'%b,"signature":"%b"}' % (body[:-1], signature.encode())

    def is_sealed(self, kind: str, value: bytes, key_id: str, signature: str) -> bool:
        """Whether these very bytes are what `seal` made; `refusal` says why not, and knows the
        same record in other bytes too."""
        key, tail = self._keys.get(key_id), b',"signature":"%b"}' % signature.encode()
        if key is None or not value.endswith(tail):
            return False
        content = content_of(kind, b"%b}" % value[: -len(tail)])
        return hmac.compare_digest(key.sign(content), signature)

    def refusal(self, kind: str, fields: Mapping[str, Any]) -> str | None:
        """Why the record is not believed: `missing`, `malformed`, `unknown_key` or
        `bad_signature`; None when it is."""
        signature = fields.get("signature")
        if signature is None or signature == "":
            return "missing"
        if not isinstance(signature, str) or not is_hex_digest(signature):
            return "malformed"
        try:
            content = canonical(kind, fields)
        except (TypeError, ValueError):
            return "malformed"
        key_id = fields.get("key_id")
        key = self._keys.get(key_id) if isinstance(key_id, str) else None
        if key is None:
            return "unknown_key"
        return None if hmac.compare_digest(key.sign(content), signature) else "bad_signature"

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self._keys)}; signs with {self.signing_id})"


def content_of(kind: str, body: bytes) -> bytes:
    """What is signed, from fields that are in their canonical form already."""
    return b'["%b",%b]' % (kind.encode(), body)


def canonical(kind: str, fields: Mapping[str, Any]) -> bytes:
    """Sorted keys, no spaces, UTF-8, led by the kind: no two different records of any kinds
    have the same form. NaN and infinity must not be in them: they have none."""
    signed = {name: value for name, value in fields.items() if name not in UNSIGNED}
    return _SORTED.encode([kind, signed])


def is_hex_digest(text: str) -> bool:
    return len(text) == SIGNATURE_CHARACTERS and _HEX.issuperset(text)
