"""Groups of members for the figures: all of them know each other from the start."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from lab.membership.event_queue import Core, EventQueue, SimulatedNode
from lab.membership.plain_swim import PlainSwim
from squall.cluster.membership.core import MembershipCore
from squall.cluster.membership.effects import OwnIdentity, Seed, State
from squall.cluster.membership.messages import MemberRole, PeerRecord, PeerStatus
from squall.cluster.membership.parameters import Parameters
from squall.cluster.membership.swim.peers import KnownPeer
from squall.runtime.interfaces import Address, BootId, NodeId

SEEDS = 3
Make = Callable[[OwnIdentity, Random, float, list[PeerRecord]], Core]


def address_of(number: int) -> Address:
    return f"10.0.{number // 250}.{number % 250 + 1}", 7000


def identity_of(number: int, boot: int = 0) -> OwnIdentity:
    return OwnIdentity(
        NodeId(f"n{number}"),
        BootId(f"{boot:04x}{number:012x}"),
        MemberRole.MANAGER,
        address_of(number),
    )


def record_of(identity: OwnIdentity) -> PeerRecord:
    return PeerRecord(
        identity.node, identity.boot, 0, PeerStatus.ALIVE, identity.role, identity.address
    )


def lifeguard(parameters: Parameters) -> Make:
    """Squall's core, which has confirmed the whole group."""

    def make(
        identity: OwnIdentity, rng: Random, now: float, group: list[PeerRecord]
    ) -> MembershipCore:
        seeds = [Seed(record.address) for record in group[:SEEDS]]
        core = MembershipCore(identity, parameters, rng, now, seeds=seeds)
        introduce(core, group)
        return core

    return make


def plain(identity: OwnIdentity, rng: Random, now: float, group: list[PeerRecord]) -> PlainSwim:
    return PlainSwim(identity, rng, now, group)


def introduce(core: MembershipCore, group: Sequence[PeerRecord]) -> None:
    """Confirms all members of the group at once; each by a ping would take most of the run."""
    shared = core._shared
    for record in group:
        if record.node != shared.identity.node:
            peer = KnownPeer(record, State.ALIVE, shared.now, shared.now)
            shared.table.place(peer, State.ALIVE, shared.now)
            core._probes.ring.add(record.node)


def fill(
    queue: EventQueue,
    make: Make,
    members: int,
    *,
    turn_of: Callable[[int], float] = lambda number: 0.0,
) -> list[SimulatedNode]:
    """Adds a group of members to a queue."""
    identities = [identity_of(number) for number in range(members)]
    group = [record_of(identity) for identity in identities]
    return [
        queue.add(
            identity.node,
            identity.address,
            make(identity, Random(queue.rng.getrandbits(64)), queue.now, group),
            turn_s=turn_of(number),
        )
        for number, identity in enumerate(identities)
    ]
