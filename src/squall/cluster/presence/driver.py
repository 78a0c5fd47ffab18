"""Drives one member of SWIM: owns its socket and timer, and carries out the core's effects.

Without UDP, or without the group's keys, the node does not take part: it logs one line, and nothing
else changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from squall.cluster.membership.core import MembershipCore
from squall.cluster.membership.effects import (
    Effect,
    Embedded,
    Event,
    LeaveRequested,
    NameTaken,
    ObserverIsolated,
    OwnIdentity,
    PeerChanged,
    PeerView,
    Received,
    Seed,
    SeedsChanged,
    SendDatagram,
    SendSync,
    State,
)
from squall.cluster.membership.messages import (
    Ack,
    Gossip,
    MemberRole,
    Nack,
    Ping,
    PingReq,
    Sync,
)
from squall.cluster.membership.parameters import FAST, LAN, WAN, Parameters
from squall.cluster.membership.swim.shared import MembershipCounters
from squall.cluster.presence.transition_log import TransitionLog
from squall.cluster.protocol.membership.order import MembershipOrder
from squall.cluster.wire.counters import WireCounters
from squall.cluster.wire.datagram import SealedDatagrams, Sender
from squall.cluster.wire.errors import WireError
from squall.cluster.wire.links.dispatch import Handlers, Incoming
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.keyring import Keyring
from squall.runtime.interfaces import Address, BootId, Clock, Network, NodeId, Runtime
from squall.runtime.log import Log

PROFILES = {"lan": LAN, "fast": FAST, "wan": WAN}
LATE_S = 0.1
"""A tick that is later than this first lets the loop read what waits in the socket: after a stop of
the process the answers come before the time-outs, whatever the order of the event loop."""
READ_FIRST_S = 0.02
ENDS = "this node stops"
NO_KEYS = "its manager sent no key for datagrams: it runs an older version"
DATAGRAMS = (Ping, PingReq, Ack, Nack, Gossip)

SendToNode = Callable[[NodeId, Sync], None]
"""Sends over the control link to a node if there is one. Raises WireError."""


class MembershipDriver:
    """One boot's part in membership. It is off before `follow` and after `stop`."""

    def __init__(
        self,
        runtime: Runtime,
        keyring: Keyring,
        counters: WireCounters,
        handlers: Handlers,
        log: Log,
        *,
        role: MemberRole,
        send_sync: SendToNode,
    ) -> None:
        self._runtime = runtime
        self._clock: Clock = runtime.clock
        self._network: Network = runtime.network
        self._keyring = keyring
        self._role = role
        self._send_sync = send_sync
        self._log = log
        self._transitions = TransitionLog(log)
        self.datagrams = SealedDatagrams(
            keyring, counters, self._datagram_arrived, now=runtime.clock.now
        )
        self.core: MembershipCore | None = None
        # The UDP port; 0: none is bound.
        self.port = 0
        # Why this boot can take no part; "" as long as it can.
        self.impossible = ""
        # Why it is off, as the log says it.
        self._said = ""
        self._seeds: tuple[Address, ...] = ()
        self._embedded = b""
        self._parameters = LAN
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._host, self._began = "", 0.0
        self._leaves_until: float | None = None
        # Members that it suspects or holds for dead: their boot, and since when.
        self._suspected: dict[NodeId, tuple[BootId, float]] = {}
        self.is_isolated = False
        self.syncs_unsent = 0
        handlers.on(Sync, self._sync_arrived)

    @property
    def is_on(self) -> bool:
        return self.core is not None

    @property
    def identity(self) -> OwnIdentity:
        """Who this member is, once it has an address."""
        runtime = self._runtime
        return OwnIdentity(runtime.node, runtime.boot, self._role, (self._host, self.port))

    @property
    def said(self) -> str:
        return self._embedded.decode()

    @property
    def counters(self) -> MembershipCounters:
        return self.core.counters if self.core is not None else MembershipCounters()

    @property
    def age_s(self) -> float:
        """The seconds since this boot began to take part."""
        return self._clock.now() - self._began

    # Start and end.

    async def bind(self, address: Address) -> bool:
        """Takes the UDP port that datagrams arrive at. False: this node takes no part."""
        if self.port:
            return True
        if not self.impossible:
            try:
                await self.datagrams.bind(self._network, address)
            except OSError as error:
                self.impossible = f"no UDP at {address[0]}:{address[1]}: {error}"
        if self.impossible:
            self._warn(self.impossible)
            return False
        self.port = self.datagrams.address[1]
        return True

    def follow(self, order: MembershipOrder, host: str) -> None:
        """Starts, continues with other seeds, or stops, as the order says. `host` is the numeric
        address at which others reach this node. The port must be bound."""
        if not order.is_on:
            self.stop("there are more nodes than max_nodes, or it is switched off")
            return
        if not order.keys:
            self.stop(NO_KEYS)
            self._warn(NO_KEYS)
            return
        self.datagrams.set_membership_keys(order.keys)
        parameters = parameters_of(order)
        if self.core is not None and parameters != self._parameters:
            self.stop("it begins again with other intervals")
        if self.core is not None:
            self.set_seeds(order.seeds)
        elif not self.impossible:
            self._guarded(lambda: self._begin(parameters, order.seeds, host))

    def _begin(self, parameters: Parameters, seeds: Sequence[Address], host: str) -> None:
        self._parameters, self._seeds = parameters, tuple(seeds)
        self._host, self._began = host, self._clock.now()
        self.core = MembershipCore(
            self.identity,
            parameters,
            self._runtime.random,
            self._began,
            seeds=self._as_seeds(seeds),
            embedded=self._embedded,
        )
        self._log.info("membership_on", address=f"{host}:{self.port}", seeds=len(seeds))

    def stop(self, reason: str) -> None:
        """Stops at once, without a message to the other members."""
        if self.core is None:
            return
        self.core = None
        self._suspected.clear()
        self.is_isolated = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._said = reason
        self._log.info("membership_off", reason=reason)

    def _warn(self, reason: str) -> None:
        """Logs once why it takes no part."""
        if reason != self._said:
            self._said = reason
            self._log.warning("membership_off", reason=reason)

    def leave(self) -> None:
        """Announces that this boot leaves on purpose. Membership goes on until `close`."""
        if self.core is not None and self._leaves_until is None:
            self._leaves_until = self._clock.now() + self._parameters.leave_s
            self._handle(LeaveRequested())

    async def close(self) -> None:
        """Waits until the announcement of `leave` was sent often enough, then stops."""
        if self._leaves_until is not None and self.core is not None:
            await self._clock.sleep(max(self._leaves_until - self._clock.now(), 0.0))
        self.stop(ENDS)
        self.datagrams.close()
        self.port = 0
        # The node around it may ask for it once more before it has ended.
        self.impossible = self._said = ENDS

    # What the node around it says.

    def set_seeds(self, seeds: Sequence[Address]) -> None:
        if self.core is not None and tuple(seeds) != self._seeds:
            self._seeds = tuple(seeds)
            self._handle(SeedsChanged(self._as_seeds(seeds)))

    def say(self, text: str) -> None:
        """Sets the status text, for people, that this member's probes and answers carry."""
        state = text.encode()
        if state != self._embedded:
            self._embedded = state
            self._handle(Embedded(state))

    def _as_seeds(self, seeds: Sequence[Address]) -> tuple[Seed, ...]:
        role = MemberRole.GATE if self._role is MemberRole.GATE else MemberRole.MANAGER
        return tuple(Seed(address, role) for address in seeds)

    # What it knows.

    def members(self) -> list[PeerView]:
        """Every known member but this one."""
        return self.core.members(self._clock.now()) if self.core is not None else []

    def suspected_since(self, node: str, boot: str) -> float | None:
        """Since when this member suspects that boot, or holds it for dead; None if it does not. A
        member that hears few others trusts itself no more than them."""
        found = self._suspected.get(NodeId(node))
        if found is None or found[0] != boot or self.is_isolated:
            return None
        return found[1]

    # Events.

    def _datagram_arrived(self, message: object, sender: Sender) -> None:
        if not isinstance(message, DATAGRAMS):
            return
        record = message.sender
        # All hold the membership keys, so a worker could seal with the boot of another worker, and
        # pose as a manager to workers. It cannot speak to a node as a node.
        is_node = self._keyring.identity.role is Role.NODE
        if record.boot != sender.boot or (is_node and record.role.secret is not sender.role):
            return
        self._handle(Received(message))

    def _sync_arrived(self, message: Sync, incoming: Incoming) -> None:
        record, peer = message.sender, incoming.peer
        if (record.node, record.boot, record.role.secret) == (peer.node, peer.boot, peer.role):
            self._handle(Received(message))

    def _handle(self, event: Event) -> None:
        core = self.core
        if core is not None:
            self._guarded(lambda: self._carry_out(core.handle(event, self._clock.now())))

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
            self._schedule()
        except Exception as error:
            # What only gives advice must not end a node that makes load.
            self.impossible = f"an internal error: {error!r}"
            self._log.error("membership_failed", error=error)
            self.stop(self.impossible)

    def _schedule(self) -> None:
        """Sets the timer to the core's deadline, which may have come nearer."""
        core = self.core
        if core is None:
            return
        due = core.deadline()
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due
        wait_s = max(due - self._clock.now(), 0.0)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._timer_ended)

    def _timer_ended(self) -> None:
        if self._clock.now() - self._due > LATE_S:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(READ_FIRST_S, self._tick)
        else:
            self._tick()

    def _tick(self) -> None:
        self._timer = None
        core = self.core
        if core is not None:
            self._guarded(lambda: self._carry_out(core.tick(self._clock.now())))

    # Effects.

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendDatagram():
                    self.datagrams.send(effect.message, effect.to, effect.role.secret)
                case SendSync():
                    self._sync(effect)
                case PeerChanged():
                    self._note(effect)
                case ObserverIsolated():
                    self.is_isolated = effect.is_isolated
                case _:
                    pass
            self._transitions.write(effect)
            if isinstance(effect, NameTaken) and effect.gives_way:
                self.stop("another process runs under its name")
                return

    def _sync(self, effect: SendSync) -> None:
        try:
            self._send_sync(effect.node, effect.message)
        except WireError:
            # The next comparison goes to another member.
            self.syncs_unsent += 1

    def _note(self, change: PeerChanged) -> None:
        member = change.member
        if change.after not in (State.SUSPECT, State.DEAD):
            self._suspected.pop(member.node, None)
        elif self._suspected.get(member.node, ("", 0.0))[0] != member.boot:
            self._suspected[member.node] = (member.boot, self._clock.now())


def parameters_of(order: MembershipOrder) -> Parameters:
    return replace(
        PROFILES[order.profile],
        probe_interval_s=order.probe_interval_s,
        probe_timeout_s=order.probe_timeout_s,
    )
