"""Signs and verifies records, because other programs can write to the store as well.

A signature covers the kind of the record and every field except itself, in one canonical form. Keys
are derived from the secret for one environment and one namespace, so a record that was copied from
another one does not verify. One key signs and several are accepted, so that a secret can be rotated
while members run.

A wrong signature is a result, not an exception. No text, `repr` or error shows a secret, a key or a
signature.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from squall.coordination.errors import ConfigurationError

SALT = b"squall.coordination"
SIGNATURE_CHARACTERS = 64
UNSIGNED = ("signature",)
_HEX = frozenset("0123456789abcdef")
_SORTED = msgspec.json.Encoder(order="sorted")


def _derived(secret: bytes, info: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) for 32 bytes, which are one block of it. Written out, so that the
    library needs no package for it."""
    extracted = hmac.digest(SALT, secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


class Key:
    """A derived key and its id, which signed records name."""

    __slots__ = ("_mac", "key_id")

    def __init__(self, secret: str, environment: str, namespace: str) -> None:
        scope = json.dumps([environment, namespace])
        derived = _derived(secret.encode(), scope.encode())
        # Keyed once; each signature continues from a copy.
        self._mac = hmac.new(derived, digestmod=hashlib.sha256)
        self.key_id = hashlib.sha256(b"key id\0" + derived).hexdigest()[:16]

    def sign(self, content: bytes) -> str:
        mac = self._mac.copy()
        mac.update(content)
        return mac.hexdigest()

    def __repr__(self) -> str:
        return f"Key({self.key_id})"


class Keyring:
    """The keys that one member accepts, and the one that it signs with."""

    def __init__(self, keys: Sequence[Key], signing: str | None = None) -> None:
        """`signing` is the id of the key that signs; by default the first."""
        if not keys:
            raise ConfigurationError("there is no signing secret: pass one as `secret`")
        self._keys = {key.key_id: key for key in keys}
        self._signing = self._keys[signing] if signing else keys[0]
        self._scope = ("", "")

    @classmethod
    def of(cls, secrets: Sequence[str], environment: str, namespace: str) -> Keyring:
        """The first secret signs; all are accepted."""
        made = cls([Key(secret, environment, namespace) for secret in secrets])
        made._scope = (environment, namespace)
        return made

    def replace(self, secrets: Sequence[str]) -> None:
        """Accepts these secrets from now on, the newest last. The key that signs stays if it is
        among them: all members agree on it through the lease, none chooses it alone."""
        keys = [Key(secret, *self._scope) for secret in secrets]
        if not keys:
            raise ConfigurationError("no secret is left: pass at least one")
        self._keys = {key.key_id: key for key in keys}
        self._signing = self._keys.get(self._signing.key_id, keys[0])

    @property
    def signing_id(self) -> str:
        return self._signing.key_id

    @property
    def key_ids(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def accepts(self, key_id: str) -> bool:
        """Ids are derived from the keys: the same id is the same key."""
        return key_id in self._keys

    def sign_with(self, key_id: str) -> bool:
        """Signs with this key from now on; False if it is unknown."""
        if key_id not in self._keys:
            return False
        self._signing = self._keys[key_id]
        return True

    def seal(self, kind: str, fields: dict[str, Any]) -> bytes:
        """The record as stored: its fields in canonical form, with the key id among them, and the
        signature last."""
        fields["key_id"] = self._signing.key_id
        body = _SORTED.encode(fields)
        signature = self._signing.sign(content_of(kind, body))
        return b'%b,"signature":"%b"}' % (body[:-1], signature.encode())

    def is_sealed(self, kind: str, value: bytes, key_id: str, signature: str) -> bool:
        """Whether `seal` made exactly these bytes. If not, `refusal` decides: the same record may
        stand in other bytes."""
        key, tail = self._keys.get(key_id), b',"signature":"%b"}' % signature.encode()
        if key is None or not value.endswith(tail):
            return False
        content = content_of(kind, b"%b}" % value[: -len(tail)])
        return hmac.compare_digest(key.sign(content), signature)

    def refusal(self, kind: str, fields: Mapping[str, Any]) -> str | None:
        """Why the record is refused: `missing`, `malformed`, `unknown_key` or `bad_signature`; None
        if its signature is valid."""
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
    """The bytes to sign, from fields that are already in canonical form."""
    return b'["%b",%b]' % (kind.encode(), body)


def canonical(kind: str, fields: Mapping[str, Any]) -> bytes:
    """The bytes to sign: the kind, then the fields with sorted keys, no spaces, UTF-8. No two
    different records have the same form. NaN and infinity have none."""
    signed = {name: value for name, value in fields.items() if name not in UNSIGNED}
    return _SORTED.encode([kind, signed])


def is_hex_digest(text: str) -> bool:
    return len(text) == SIGNATURE_CHARACTERS and _HEX.issuperset(text)
