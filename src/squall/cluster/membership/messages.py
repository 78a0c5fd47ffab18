"""The messages of membership: type numbers 230 to 249.

All but `Sync` travel as sealed datagrams and may be lost, repeated and reordered. `Sync` travels
over the control link to its receiver. Every message carries the sender's own record, so each one
is direct evidence of its boot and incarnation. The driver drops a message whose `sender.boot` is
not the boot that sealed it.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from squall.cluster.wire.catalogue import SizeClass, message
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.roles import Role
from squall.runtime.interfaces import Address, BootId, NodeId

MEMBERS = (Role.NODE, Role.WORKER)
EMBEDDED_MAX = 256
"""Bytes of state that a member may embed in its probes and answers."""
NAME_MAX = 128
"""Bytes of a node id, a boot id or a host in a record; a longer one is refused."""
SUSPECTORS_MAX = 4
"""Suspectors that a record names: one begins a suspicion, three confirm it."""


class MemberRole(IntEnum):
    """What a member does. Not the role of a secret: gates and managers share that of nodes."""

    WORKER = 1
    MANAGER = 2
    GATE = 3

    @property
    def label(self) -> str:
        return self.name.lower()

    @property
    def secret(self) -> Role:
        """The role whose secret a datagram to this member is sealed with."""
        return Role.WORKER if self is MemberRole.WORKER else Role.NODE


class PeerStatus(IntEnum):
    """What a record claims. Of two records of one boot and incarnation, the higher rank wins."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3

    @property
    def rank(self) -> int:
        """DEAD and LEFT end an incarnation alike: neither replaces the other."""
        return min(self.value, 2)


class PeerRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One claim about one boot of one member; the unit of gossip."""

    node: NodeId
    boot: BootId
    incarnation: int
    status: PeerStatus
    role: MemberRole
    address: Address
    """Where it receives datagrams."""
    suspectors: tuple[NodeId, ...] = ()
    """With SUSPECT: who probed it in vain. Each counts once, however often it is repeated."""


@message(230, MessageClass.CONTROL, size=SizeClass.DATAGRAM, senders=MEMBERS)
class Ping(msgspec.Struct, frozen=True, omit_defaults=True):
    """Asks `target` for an `Ack` with the same `seq`. If `target` is empty, every receiver
    answers."""

    seq: int
    sender: PeerRecord
    target: NodeId
    health: int = 0
    """The sender's local health score, 0 (healthy) to 8."""
    coordinate: bytes = b""
    rtt_s: float = 0.0
    """The sender's last round trip to the target; 0 if it has none. The target updates its own
    coordinate with it."""
    state: bytes = b""
    gossip: tuple[PeerRecord, ...] = ()


@message(231, MessageClass.CONTROL, size=SizeClass.DATAGRAM, senders=MEMBERS)
class PingReq(msgspec.Struct, frozen=True, omit_defaults=True):
    """Asks the receiver to ping `target` and to answer with an `Ack` or a `Nack`."""

    seq: int
    sender: PeerRecord
    target: PeerRecord
    timeout_s: float
    """How long the receiver waits for the target before it answers with a `Nack`."""
    gossip: tuple[PeerRecord, ...] = ()


@message(232, MessageClass.CONTROL, size=SizeClass.DATAGRAM, senders=MEMBERS)
class Ack(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answers a `Ping`, or a `PingReq` whose target answered."""

    seq: int
    sender: PeerRecord
    reached: PeerRecord | None = None
    """Relayed: what the target said of itself. None: the sender is the target."""
    health: int = 0
    coordinate: bytes = b""
    state: bytes = b""
    gossip: tuple[PeerRecord, ...] = ()


@message(233, MessageClass.CONTROL, size=SizeClass.DATAGRAM, senders=MEMBERS)
class Nack(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answers a `PingReq` whose target was silent. It proves that the requester's own network
    works, so the failed probe does not lower the requester's health."""

    seq: int
    sender: PeerRecord
    gossip: tuple[PeerRecord, ...] = ()


@message(234, MessageClass.CONTROL, size=SizeClass.DATAGRAM, senders=MEMBERS)
class Gossip(msgspec.Struct, frozen=True):
    """Records only; needs no answer."""

    sender: PeerRecord
    gossip: tuple[PeerRecord, ...]


@message(235, MessageClass.CONTROL, senders=MEMBERS)
class Sync(msgspec.Struct, frozen=True, omit_defaults=True):
    """Compares two whole views, over the control link. It needs no answer on the link: the
    receiver's core sends its own `Sync` if it must.

    The first one carries the digest alone. A receiver with another digest answers with its
    records, which the first sender answers with its own."""

    sender: PeerRecord
    digest: int
    records: tuple[PeerRecord, ...] = ()
    reply: bool = True
    """The receiver answers with its own records if the digests differ."""


Message = Ping | PingReq | Ack | Nack | Gossip | Sync
