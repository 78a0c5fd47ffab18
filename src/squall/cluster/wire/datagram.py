"""Sealed datagrams of at most 1,200 bytes, which no path of the internet splits.

    offset  size
       0     1   version of this layout
       1     1   class
       2     1   role whose secret sealed it
       3     1   length of the sender's boot id
       4     2   message type
       6     4   lane, first part of the nonce
      10     8   sequence in the lane, second part of the nonce
      18         boot id, then the sealed body with its tag

The key is that of the sender's boot. Nodes use the secret of their role among themselves. What a
worker sends or receives is sealed with a membership key of its group. A lane is one destination of
one sender, so its sequences have no gaps and the whole replay window is usable. A malformed
datagram is counted and dropped. A datagram may reach another node than it was sent to, and one that
was recorded before the receiver's restart is accepted once more: its message must be harmless when
repeated.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

import msgspec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from squall.cluster.wire.catalogue import CATALOGUE, Catalogue
from squall.cluster.wire.counters import WireCounters
from squall.cluster.wire.errors import (
    BadFrame,
    DecodeError,
    MessageTooLarge,
    NotAdmitted,
    SealBroken,
    UnknownType,
)
from squall.cluster.wire.header import LAYOUT_VERSION, TAG_SIZE
from squall.cluster.wire.roles import Role, shared_role
from squall.cluster.wire.seal.keyring import Keyring
from squall.runtime.interfaces import Address, BootId, DatagramSocket, Network

DATAGRAM_MAX = 1_200
LANES_KEPT = 16_384
"""Destinations whose lane is kept; a forgotten destination gets a new lane."""

UNPROVEN_BURST = 1_024
UNPROVEN_PER_S = 256.0
"""Datagrams of senders that have proved nothing: as many at once, then per second. Each costs a key
derivation per accepted secret. A whole datacenter that starts sends one each."""

_HEAD = Struct(">BBBBHIQ")
_NONCE_AT = 6
_ROLES = {int(role): role for role in Role}


class Sender(NamedTuple):
    """The sender of a datagram. It has proved that it holds a secret of the role.

    The nodes and all workers of a group hold the same ones for WORKER, so each of them could use
    the boot of another."""

    role: Role
    boot: BootId
    address: Address


class DatagramSeal:
    """Seals and opens datagrams, without a socket."""

    def __init__(self, keyring: Keyring, catalogue: Catalogue = CATALOGUE) -> None:
        self._keyring = keyring
        self._catalogue = catalogue
        self._boot = keyring.identity.boot.encode()
        self._ciphers: dict[Role, AESGCM] = {}
        self._lanes: OrderedDict[tuple[Address, Role], list[int]] = OrderedDict()

    def set_membership_keys(self, keys: tuple[bytes, ...]) -> None:
        if self._keyring.set_membership_keys(keys):
            self._ciphers.clear()

    @property
    def room(self) -> int:
        """The largest encoded message that fits."""
        return DATAGRAM_MAX - _HEAD.size - len(self._boot) - TAG_SIZE

    def seal(self, message: msgspec.Struct, to: Address, receiver: Role) -> bytes:
        row, body = self._catalogue.encode(message)
        if len(body) > self.room:
            raise MessageTooLarge(
                f"{row.name} has {len(body)} bytes, a datagram takes {self.room}: "
                "send it over the control link"
            )
        role = shared_role(self._keyring.identity.role, receiver)
        cipher = self._ciphers.get(role)
        if cipher is None:
            cipher, _ = self._keyring.datagrams.sending(role, BootId(self._boot.decode()))
            self._ciphers[role] = cipher
        lane, sequence = self._next(to, role)
        head = _HEAD.pack(
            LAYOUT_VERSION, row.message_class, role, len(self._boot), row.number, lane, sequence
        )
        clear = head + self._boot
        return clear + cipher.encrypt(head[_NONCE_AT:], body, clear)

    def open(
        self, data: bytes, address: Address, may_derive: Callable[[], bool] = lambda: True
    ) -> tuple[Any, Sender]:
        """Raises `BadFrame`, `SealBroken`, `NotAdmitted`, `UnknownType` or `DecodeError`; drop it
        then. `may_derive` is asked for the datagram of a sender that no known key opens."""
        if len(data) < _HEAD.size + TAG_SIZE:
            raise BadFrame("too short")
        version, _, role_number, boot_size, number, lane, sequence = _HEAD.unpack_from(data)
        body_at = _HEAD.size + boot_size
        role = _ROLES.get(role_number)
        if version != LAYOUT_VERSION or role is None or body_at + TAG_SIZE > len(data):
            raise BadFrame("not a datagram of this protocol")
        try:
            boot = BootId(data[_HEAD.size : body_at].decode())
        except UnicodeDecodeError:
            raise BadFrame("not a boot id") from None
        body, _ = self._keyring.datagrams.open(
            role,
            "",
            boot,
            data[_NONCE_AT : _HEAD.size],
            data[body_at:],
            data[:body_at],
            may_derive=may_derive,
        )
        if not self._keyring.datagram_replays.accept((role, boot, lane), sequence):
            raise Replayed("a datagram was sent again")
        row = self._catalogue.by_number.get(number)
        if row is None:
            raise UnknownType(f"type {number}")
        # A node sends to a worker with a membership key, as workers do, so only nodes can check the
        # sender's role.
        if self._keyring.identity.role is Role.NODE and role not in row.senders:
            raise Forbidden(f"a {role.label} may not send {row.name}")
        return self._catalogue.decode(row, body), Sender(role, boot, address)

    def _next(self, to: Address, role: Role) -> tuple[int, int]:
        lane = self._lanes.get((to, role))
        if lane is None:
            lane = self._lanes[to, role] = [self._keyring.next_lane(), 0]
            if len(self._lanes) > LANES_KEPT:
                self._lanes.popitem(last=False)
        else:
            self._lanes.move_to_end((to, role))
            lane[1] += 1
        return lane[0], lane[1]


class Replayed(SealBroken):
    pass


class Forbidden(BadFrame):
    pass


class UnprovenQuota:
    """Admits datagrams whose sender has proved nothing: a token bucket for all of them together,
    because their addresses may be forged."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._tokens = float(UNPROVEN_BURST)
        self._at = now()

    def admit(self) -> bool:
        now = self._now()
        gained = max(now - self._at, 0.0) * UNPROVEN_PER_S
        self._tokens = min(self._tokens + gained, float(UNPROVEN_BURST))
        self._at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class SealedDatagrams:
    """A bound socket that sends and receives messages of the catalogue."""

    def __init__(
        self,
        keyring: Keyring,
        counters: WireCounters,
        on_message: Callable[[Any, Sender], None],
        *,
        now: Callable[[], float],
        catalogue: Catalogue = CATALOGUE,
    ) -> None:
        """`now` reads the node's clock, for the quota of senders that have proved nothing."""
        self._seal = DatagramSeal(keyring, catalogue)
        self._counters = counters
        self._on_message = on_message
        self._quota = UnprovenQuota(now)
        self._socket: DatagramSocket | None = None
        self.bytes_sent = 0
        self.bytes_received = 0
        """Of datagrams that were opened."""

    @property
    def room(self) -> int:
        return self._seal.room

    @property
    def address(self) -> Address:
        if self._socket is None:
            raise BadFrame("these datagrams are not bound")
        return self._socket.address

    def set_membership_keys(self, keys: tuple[bytes, ...]) -> None:
        """The keys of datagrams to and among workers from now on, the sending one first."""
        self._seal.set_membership_keys(keys)

    async def bind(self, network: Network, address: Address) -> None:
        self._socket = await network.bind_datagrams(address, self)

    def send(self, message: msgspec.Struct, to: Address, receiver: Role = Role.NODE) -> None:
        """Best effort. Raises `MessageTooLarge` for a message that fits no datagram."""
        if self._socket is not None:
            sealed = self._seal.seal(message, to, receiver)
            self._socket.send(sealed, to)
            self._counters.frames_sent += 1
            self.bytes_sent += len(sealed)

    def on_datagram(self, data: bytes, sender: Address) -> None:
        counters = self._counters
        if len(data) > DATAGRAM_MAX:
            counters.oversized += 1
            return
        try:
            message, who = self._seal.open(data, sender, self._quota.admit)
        except Replayed:
            counters.replay += 1
        except NotAdmitted:
            counters.shed += 1
        except SealBroken:
            counters.bad_seal += 1
        except Forbidden:
            counters.forbidden += 1
        except BadFrame:
            counters.bad_frame += 1
        except UnknownType:
            counters.unknown_type += 1
        except DecodeError:
            counters.decode_error += 1
        else:
            counters.frames_received += 1
            self.bytes_received += len(data)
            self._on_message(message, who)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
