"""The keys of one boot of a node. There is exactly one keyring per boot.

It hands out the sequences that make nonces unique under the keys of this boot, so a second
keyring for the same boot would repeat nonces. The cluster id is part of every key: nodes of another
cluster are rejected even if they share the secret.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from squall.api.errors import ConfigError
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.ciphers import NONCE_SIZE, BootCiphers, SessionSeal
from squall.cluster.wire.seal.replay import ReplayGuard
from squall.cluster.wire.seal.secrets import DatagramSecrets, Secrets, derive, key_name
from squall.runtime.interfaces import BootId, NodeId

BOOT_ID_MAX_BYTES = 64
LANES_MAX = 0xFFFF_FFFF


class Identity(NamedTuple):
    """The authenticated identity of a peer. `name` is the principal of a client, or the only name
    that a worker's credential may register; else "". `operator` is a right of a client that its
    credential proves."""

    role: Role
    node: NodeId
    boot: BootId
    name: str = ""
    operator: bool = False

    @property
    def key_name(self) -> str:
        return key_name(self.name, operator=self.operator)


class Keyring:
    """Derives the keys of this boot and hands out their nonces."""

    def __init__(
        self,
        secrets: Secrets,
        *,
        cluster: str,
        node: NodeId,
        boot: BootId,
        entropy: Callable[[int], bytes],
    ) -> None:
        if not cluster:
            raise ConfigError("the cluster has no id: set one, the same on all of its nodes")
        if not 0 < len(boot.encode()) <= BOOT_ID_MAX_BYTES:
            raise ConfigError(f"boot id {boot!r} must have 1 to {BOOT_ID_MAX_BYTES} bytes")
        self.identity = Identity(secrets.role, node, boot, secrets.name, secrets.operator)
        self.cluster = cluster
        self.hellos = BootCiphers(secrets, cluster, "hello")
        self._datagram_secrets = DatagramSecrets(secrets)
        self.datagrams = BootCiphers(self._datagram_secrets, cluster, "datagram")
        self.hello_replays = ReplayGuard()
        self.datagram_replays = ReplayGuard()
        self._entropy = entropy
        self._hellos_sent = 0
        self._lanes = 0

    def fresh_nonce(self) -> bytes:
        return self._entropy(NONCE_SIZE)

    def set_membership_keys(self, keys: tuple[bytes, ...]) -> bool:
        """Uses these keys for datagrams to and among workers, the sending one first. True: they are
        others than before."""
        if keys == self._datagram_secrets.membership_keys:
            return False
        self._datagram_secrets.membership_keys = keys
        self.datagrams.forget()
        return True

    def next_hello(self) -> int:
        sequence = self._hellos_sent
        self._hellos_sent += 1
        return sequence

    def next_lane(self) -> int:
        """A lane for one destination of datagrams. Never handed out twice, so no nonce repeats."""
        lane = self._lanes
        if lane > LANES_MAX:
            raise ConfigError("this boot has used up its datagram lanes: restart the node")
        self._lanes += 1
        return lane


class SessionKeys:
    """The keys of one session; both sides derive the same from what they exchanged."""

    def __init__(
        self,
        secret: bytes,
        cluster: str,
        *,
        dialler: BootId,
        listener: BootId,
        dialler_nonce: bytes,
        listener_nonce: bytes,
    ) -> None:
        def key(purpose: str, sender: BootId, receiver: BootId) -> bytes:
            salt = dialler_nonce + listener_nonce
            return derive(secret, salt=salt, info=(cluster, purpose, sender, receiver))

        self._welcome = key("welcome", listener, dialler)
        self._from_dialler = key("session from dialler", dialler, listener)
        self._from_listener = key("session from listener", listener, dialler)

    def welcome(self) -> AESGCM:
        """Seals exactly one frame: the listener's nonce makes the key unique."""
        return AESGCM(self._welcome)

    def of_dialler(self) -> SessionSeal:
        return SessionSeal(self._from_dialler, self._from_listener)

    def of_listener(self) -> SessionSeal:
        return SessionSeal(self._from_listener, self._from_dialler)
