"""The core's input and output: events, effects, and the view of one member.

The driver carries out effects in order. `PeerChanged` effects are the callbacks: each transition of
a member is reported exactly once, whether this member saw it or heard of it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from squall.cluster.membership.coordinates import Coordinate
from squall.cluster.membership.messages import MemberRole, Message, Sync
from squall.runtime.interfaces import Address, BootId, NodeId


class State(StrEnum):
    """How this member sees another one."""

    UNCONFIRMED = "unconfirmed"
    """Heard of, and never reached: no ping of this member was answered yet. It cannot be
    suspected."""
    ALIVE = "alive"
    SUSPECT = "suspect"
    """Probes failed. It counts as alive for what it runs and gets no new work."""
    DEAD = "dead"
    """Probably dead: nobody refuted the suspicion. It is probed further, and comes back when it
    answers."""
    LEFT = "left"
    """It said that it leaves."""
    FORGOTTEN = "forgotten"
    """No longer in the table; only as the end of a transition."""

    @property
    def is_present(self) -> bool:
        return self in (State.ALIVE, State.SUSPECT)


class Cause(StrEnum):
    """How this member learned of a transition."""

    PROBE = "probe"
    """Own probes: answered, failed, or a suspicion that ran out here."""
    GOSSIP = "gossip"
    RESTART = "restart"
    """Another boot of the same node took the place of this one."""
    LEAVE = "leave"
    TIMEOUT = "timeout"
    """The record was kept long enough, or the peer was never confirmed."""


class OwnIdentity(msgspec.Struct, frozen=True):
    """Who this member is."""

    node: NodeId
    boot: BootId
    role: MemberRole
    address: Address
    """Where others reach it by datagram: a numeric host, not a wildcard."""


class Seed(msgspec.Struct, frozen=True):
    """An address from configuration or discovery, probed until a member answers there, for ever."""

    address: Address
    role: MemberRole = MemberRole.MANAGER


# Events.


class Received(msgspec.Struct, frozen=True):
    """A message arrived, as a datagram or (`Sync`) over a link, from the boot that it names."""

    message: Message


class SeedsChanged(msgspec.Struct, frozen=True):
    """Replaces the list of seeds."""

    seeds: tuple[Seed, ...]


class Embedded(msgspec.Struct, frozen=True):
    """The state that this member's probes and answers carry from now on."""

    state: bytes


class LeaveRequested(msgspec.Struct, frozen=True):
    """This member leaves on purpose. The driver keeps it running for `leave_s`, then closes."""


Event = Received | SeedsChanged | Embedded | LeaveRequested


# Effects.


class SendDatagram(msgspec.Struct, frozen=True):
    """Sends a datagram. It always fits (`MessageTooLarge` is a bug)."""

    to: Address
    role: MemberRole
    """Seal it for `role.secret`."""
    message: Message


class SendSync(msgspec.Struct, frozen=True):
    """Sends a `Sync` over the control link to `node`, if there is one or it can be dialled;
    otherwise the driver drops it. `address` is where the node receives datagrams."""

    node: NodeId
    address: Address
    message: Sync


class PeerChanged(msgspec.Struct, frozen=True):
    """A member went from one state to another. `before` is None for a new one. The boot is the one
    that the transition concerns: after a restart the old boot ends (DEAD, cause RESTART) before the
    new one begins (None to UNCONFIRMED)."""

    member: PeerView
    before: State | None
    after: State
    cause: Cause


class Silent(msgspec.Struct, frozen=True):
    """A warning: a seed, or a peer that is heard but does not answer (`is_heard`: its datagrams
    arrive and none of this member's answers do), is unconfirmed for `unconfirmed_warn_s`. Reported
    once for each."""

    address: Address
    node: NodeId | None
    is_heard: bool


class NameTaken(msgspec.Struct, frozen=True):
    """A warning: another process runs under this member's name. With `gives_way`, this member has
    the smaller boot id, is silent from now on, and the driver may close it."""

    boot: BootId
    gives_way: bool


class ObserverIsolated(msgspec.Struct, frozen=True):
    """A warning, and later its end: more than half of the members fell silent at once. The likely
    cause is this member's own network, so it delays deaths, by at most `isolation_hold_s`."""

    is_isolated: bool
    silent: int
    members: int


Effect = SendDatagram | SendSync | PeerChanged | Silent | NameTaken | ObserverIsolated


# The view.


class PeerView(msgspec.Struct, frozen=True):
    """One member as another one sees it, for people, metrics and placement."""

    node: NodeId
    boot: BootId
    role: MemberRole
    address: Address
    state: State
    incarnation: int
    since_s: float
    """How long it is in this state."""
    heard_s: float | None
    """Time since its last message; None: never heard."""
    heard_by: tuple[NodeId, ...]
    """Members that reached it lately, as far as this one knows: itself, and proxies that
    answered."""
    unheard_by: tuple[NodeId, ...]
    """Members that probed it in vain: the suspectors, and proxies that answered with a nack."""
    rtt_s: float | None
    """Smoothed direct round trip; None: never measured."""
    rtt_upper_s: float
    """Upper bound of the round trip: measured, else by coordinates, else a default."""
    health: int
    """The local health score that it reports, 0 (healthy) to 8."""
    embedded: bytes
    coordinate: Coordinate | None
