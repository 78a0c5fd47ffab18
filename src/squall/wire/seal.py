"""AES-256-GCM around frames: which key, which nonce, and what a broken tag means.

    key   = HKDF(secret of the role, cluster id, purpose, sender boot id [, both nonces])
    nonce = sequence of the sender under that key, never used twice
    associated data = the clear header

A session of a stream has a key per direction that mixes the random nonces of both sides,
so nothing recorded fits into another session, and its sequences must come without a gap.
A datagram has the key of its sender's boot and is checked against a replay window.
"""

from __future__ import annotations

from collections import OrderedDict

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from squall.runtime.interfaces import BootId
from squall.wire.errors import SealBroken
from squall.wire.header import (
    HEADER_SIZE,
    LAYOUT_VERSION,
    NONCE_AT,
    OVERHEAD,
    PREFIX_SIZE,
    pack_frame_header,
)
from squall.wire.roles import Role
from squall.wire.secrets import Secrets, derive

NONCE_SIZE = 16
"""Of the random values that both sides of a handshake give to the session's keys."""
CIPHERS_MAX = 4_096
SEQUENCES_MAX = 1 << 40
"""Frames under one key, far below what AES-GCM allows; a link closes and begins anew."""

_NONCE_IN_PREFIXED = PREFIX_SIZE + NONCE_AT


class SessionSeal:
    """The two directions of one established stream."""

    __slots__ = ("_decrypt", "_encrypt", "received", "sent")

    def __init__(self, send_key: bytes, receive_key: bytes) -> None:
        self._encrypt = AESGCM(send_key).encrypt
        self._decrypt = AESGCM(receive_key).decrypt
        self.sent = 0
        """Sequence of the next frame to send."""
        self.received = 0
        """Sequence that the next frame must have; its owner counts on for frames given up."""

    def seal(
        self,
        message_class: int,
        kind: int,
        type_number: int,
        correlation: int,
        budget_ms: int,
        body: bytes,
    ) -> tuple[bytes, bytes]:
        """Prefix with header, and the sealed body: to be sent one after the other."""
        sequence = self.sent
        self.sent = sequence + 1
        head = pack_frame_header(
            OVERHEAD + len(body),
            LAYOUT_VERSION,
            message_class,
            kind,
            type_number,
            correlation,
            budget_ms,
            sequence,
        )
        return head, self._encrypt(head[_NONCE_IN_PREFIXED:], body, head[PREFIX_SIZE:])

    def open(self, frame: bytes) -> bytes:
        """The body of a frame without prefix. Its sequence was checked by the owner."""
        try:
            return self._decrypt(
                frame[NONCE_AT:HEADER_SIZE], frame[HEADER_SIZE:], frame[:HEADER_SIZE]
            )
        except InvalidTag:
            raise SealBroken("a frame was changed, or sealed with another key") from None


class BootCiphers:
    """Ciphers of senders by boot, kept for those that proved themselves."""

    def __init__(
        self, secrets: Secrets, cluster: str, purpose: str, *, ciphers_max: int = CIPHERS_MAX
    ) -> None:
        self._secrets = secrets
        self._cluster = cluster
        self._purpose = purpose
        self._ciphers_max = ciphers_max
        self._proven: OrderedDict[tuple[Role, str, BootId], tuple[AESGCM, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._proven)

    def sending(self, role: Role, boot: BootId, name: str = "") -> tuple[AESGCM, bytes]:
        """For our own boot: the cipher, and the role secret that it was made from."""
        secrets = self._secrets.for_role(role, name)
        if not secrets:
            raise SealBroken(f"a {self._secrets.role.label} has no secret of a {role.label}")
        return self._cipher(secrets[0], boot), secrets[0]

    def open(
        self, role: Role, name: str, boot: BootId, nonce: bytes, sealed: bytes, clear: bytes
    ) -> tuple[bytes, bytes]:
        """The body, and the role secret with which it was sealed."""
        sender = (role, name, boot)
        known = self._proven.get(sender)
        if known is not None:
            cipher, secret = known
            try:
                body = cipher.decrypt(nonce, sealed, clear)
            except InvalidTag:
                pass  # A boot may send with another accepted secret after a change.
            else:
                self._proven.move_to_end(sender)
                return body, secret
        for secret in self._secrets.for_role(role, name):
            cipher = self._cipher(secret, boot)
            try:
                body = cipher.decrypt(nonce, sealed, clear)
            except InvalidTag:
                continue
            self._proven[sender] = (cipher, secret)
            self._proven.move_to_end(sender)
            if len(self._proven) > self._ciphers_max:
                self._proven.popitem(last=False)
            return body, secret
        raise SealBroken("not sealed with a secret of this cluster")

    def _cipher(self, secret: bytes, boot: BootId) -> AESGCM:
        return AESGCM(derive(secret, salt=b"", info=(self._cluster, self._purpose, boot)))
