"""Seals frames with AES-256-GCM: the choice of key and nonce.

    key   = HKDF(secret of the role, cluster id, purpose, sender boot id [, both nonces])
    nonce = sequence of the sender under that key, never used twice
    associated data = the clear header

A session has a key per direction, made of the random nonces of both sides: a recorded frame
fits into no other session. Its sequences must come without a gap. A datagram is sealed with
the key of its sender's boot and checked against a replay window.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from squall.cluster.wire.errors import NotAdmitted, SealBroken
from squall.cluster.wire.header import (
    HEADER_SIZE,
    LAYOUT_VERSION,
    NONCE_AT,
    OVERHEAD,
    PREFIX_SIZE,
    pack_frame_header,
)
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.secrets import RoleSecrets, derive
from squall.runtime.interfaces import BootId

NONCE_SIZE = 16
"""Bytes of the random value that each side gives to the session's keys."""
CIPHERS_MAX = 4_096
SEQUENCES_MAX = 1 << 40
"""Frames under one key, far below the limit of AES-GCM; then the link reconnects."""

_NONCE_IN_PREFIXED = PREFIX_SIZE + NONCE_AT


class SessionSeal:
    """Seals and opens the frames of one session, each direction with its own key."""

    __slots__ = ("_decrypt", "_encrypt", "received", "sent")

    def __init__(self, send_key: bytes, receive_key: bytes) -> None:
        self._encrypt = AESGCM(send_key).encrypt
        self._decrypt = AESGCM(receive_key).decrypt
        # Sequence of the next frame to send.
        self.sent = 0
        # Sequence that the next frame must have; the owner also counts frames that it drops.
        self.received = 0

    def seal(
        self,
        message_class: int,
        kind: int,
        type_number: int,
        correlation: int,
        budget_ms: int,
        body: bytes,
    ) -> tuple[bytes, bytes]:
        """The prefix with the header, and the sealed body; send them in this order."""
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
        """The body of a frame without prefix. The owner has checked its sequence."""
        try:
            return self._decrypt(
                frame[NONCE_AT:HEADER_SIZE], frame[HEADER_SIZE:], frame[:HEADER_SIZE]
            )
        except InvalidTag:
            raise SealBroken("a frame was changed, or sealed with another key") from None


class BootCiphers:
    """Ciphers by sender's boot; only those of authenticated senders are kept."""

    def __init__(
        self, secrets: RoleSecrets, cluster: str, purpose: str, *, ciphers_max: int = CIPHERS_MAX
    ) -> None:
        self._secrets = secrets
        self._cluster = cluster
        self._purpose = purpose
        self._ciphers_max = ciphers_max
        self._proven: OrderedDict[tuple[Role, str, BootId], tuple[AESGCM, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._proven)

    def sending(self, role: Role, boot: BootId, name: str = "") -> tuple[AESGCM, bytes]:
        """The cipher of our own boot, and the role secret that it was derived from."""
        secrets = self._secrets.for_role(role, name)
        if not secrets:
            raise SealBroken(f"a {self._secrets.role.label} has no secret of a {role.label}")
        return self._cipher(secrets[0], boot), secrets[0]

    def open(
        self,
        role: Role,
        name: str,
        boot: BootId,
        nonce: bytes,
        sealed: bytes,
        clear: bytes,
        *,
        may_derive: Callable[[], bool] = lambda: True,
    ) -> tuple[bytes, bytes]:
        """The body, and the role secret that sealed it. `may_derive` is asked before keys are
        derived for what no known key opens; if it says no, `NotAdmitted` is raised."""
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
        if not may_derive():
            raise NotAdmitted("too many frames of unknown senders")
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

    def forget(self) -> None:
        """Forgets all senders, so that secrets which are accepted no more open nothing."""
        self._proven.clear()

    def _cipher(self, secret: bytes, boot: BootId) -> AESGCM:
        return AESGCM(derive(secret, salt=b"", info=(self._cluster, self._purpose, boot)))
