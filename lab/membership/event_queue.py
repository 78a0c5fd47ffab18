"""Many pure cores on one queue of events: a network that loses and delays, nodes that stop.

A node's process is a loop that handles arrived datagrams, then due timers, as asyncio does. A
stopped process handles none; its kernel keeps up to `BUFFER_MAX` datagrams. A slow process handles
its events at the next turn of its loop.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

import msgspec

from squall.cluster.membership.effects import (
    Effect,
    Event,
    PeerChanged,
    Received,
    SendDatagram,
    SendSync,
)
from squall.cluster.membership.messages import Message, Sync
from squall.runtime.interfaces import Address

BUFFER_MAX = 256
"""About what Linux' default receive buffer holds."""
SEALED_BYTES = 50
"""Header, boot id and tag of a sealed datagram."""
FOREVER = float("inf")


class Core(Protocol):
    """What the simulator runs: `MembershipCore`, or the protocol it is compared with."""

    def handle(self, event: Event, now: float) -> list[Effect]: ...
    def tick(self, now: float) -> list[Effect]: ...
    def deadline(self) -> float: ...


@dataclass(eq=False)
class SimulatedNode:
    name: str
    address: Address
    core: Core
    is_up: bool = True
    is_paused: bool = False
    turn_s: float = 0.0
    """Mean time of one turn of its loop; 0: events are taken as they come."""
    inbox: deque[Message] = field(default_factory=deque[Message])
    timer_at: float = FOREVER
    turn_at: float = FOREVER


@dataclass
class Traffic:
    messages: int = 0
    bytes: int = 0


class EventQueue:
    """The world: all nodes, the network between them, and the time."""

    def __init__(
        self,
        rng: Random,
        *,
        loss: float = 0.0,
        delay_s: tuple[float, float] = (0.0002, 0.001),
        on_changed: Callable[[SimulatedNode, PeerChanged, float], None] | None = None,
        counts_bytes: bool = False,
    ) -> None:
        self.now = 0.0
        self.rng = rng
        self.loss = loss
        self.delay_s = delay_s
        self.nodes: dict[Address, SimulatedNode] = {}
        self.is_cut: Callable[[SimulatedNode, SimulatedNode], bool] | None = None
        """Whether nothing passes from one node to another."""
        self.delay_of: Callable[[SimulatedNode, SimulatedNode], float] | None = None
        """The one-way delay of a link, in place of `delay_s`."""
        self.on_changed = on_changed
        self.traffic = Traffic()
        self._counts_bytes = counts_bytes
        self._encode = msgspec.msgpack.Encoder().encode
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._number = 0

    def add(self, name: str, address: Address, core: Core, *, turn_s: float = 0.0) -> SimulatedNode:
        node = self.nodes[address] = SimulatedNode(name, address, core, turn_s=turn_s)
        self._watch(node)
        return node

    def at(self, when: float, call: Callable[..., None], *arguments: object) -> None:
        self._number += 1
        heapq.heappush(self._heap, (when, self._number, call, arguments))

    def run(self, until: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until:
            when, _, call, arguments = heapq.heappop(heap)
            self.now = when
            call(*arguments)
        self.now = until

    # What happens to nodes.

    def crash(self, node: SimulatedNode) -> None:
        node.is_up = False
        node.inbox.clear()

    def pause(self, node: SimulatedNode) -> None:
        node.is_paused = True

    def resume(self, node: SimulatedNode) -> None:
        """Continues a stopped process: first the datagrams that the kernel kept, then the timers
        (the order of an asyncio turn)."""
        if not node.is_paused:
            return
        node.is_paused = False
        self._turn(node)

    def tell(self, node: SimulatedNode, event: Event) -> None:
        """Gives a node's core an event of its own driver."""
        self.carry_out(node, node.core.handle(event, self.now))

    # The network.

    def _send(self, node: SimulatedNode, to: Address, message: Message) -> None:
        traffic = self.traffic
        traffic.messages += 1
        if self._counts_bytes:
            traffic.bytes += SEALED_BYTES + len(self._encode(message))
        is_stream = type(message) is Sync
        if self.loss and not is_stream and self.rng.random() < self.loss:
            return
        self._deliver_later(node, to, message)

    def _deliver_later(self, node: SimulatedNode, to: Address, message: Message) -> None:
        receiver = self.nodes.get(to)
        if receiver is None:
            return
        if self.delay_of is not None:
            delay = self.delay_of(node, receiver)
        else:
            least, most = self.delay_s
            delay = least + (most - least) * self.rng.random()
        self.at(self.now + delay, self._arrive, node, receiver, message)

    def _arrive(self, sender: SimulatedNode, node: SimulatedNode, message: Message) -> None:
        if self.is_cut is not None and self.is_cut(sender, node):
            return
        node = self.nodes[node.address]
        if not node.is_up:
            return
        if node.is_paused:
            if len(node.inbox) < BUFFER_MAX:
                node.inbox.append(message)
        elif node.turn_s:
            node.inbox.append(message)
            self._turn_later(node)
        else:
            self.carry_out(node, node.core.handle(Received(message), self.now))

    # The nodes' loops.

    def _turn_later(self, node: SimulatedNode) -> None:
        if node.turn_at == FOREVER:
            node.turn_at = self.now + self.rng.random() * 2 * node.turn_s
            self.at(node.turn_at, self._turn_due, node)

    def _turn_due(self, node: SimulatedNode) -> None:
        node.turn_at = FOREVER
        if node.is_up and not node.is_paused:
            self._turn(node)

    def _turn(self, node: SimulatedNode) -> None:
        inbox, core = node.inbox, node.core
        while inbox:
            self.carry_out(node, core.handle(Received(inbox.popleft()), self.now))
        if core.deadline() <= self.now:
            self.carry_out(node, core.tick(self.now))

    def _watch(self, node: SimulatedNode) -> None:
        due = node.core.deadline()
        if due < node.timer_at:
            node.timer_at = due
            self.at(max(due, self.now), self._timer_due, node, due)

    def _timer_due(self, node: SimulatedNode, due: float) -> None:
        if node.timer_at != due:
            return
        node.timer_at = FOREVER
        if not node.is_up or node.is_paused:
            return
        if node.turn_s:
            self._turn_later(node)
            return
        if node.core.deadline() <= self.now:
            self.carry_out(node, node.core.tick(self.now))
        else:
            self._watch(node)

    def carry_out(self, node: SimulatedNode, effects: list[Effect]) -> None:
        """Carries out the effects of a core."""
        for effect in effects:
            if isinstance(effect, SendDatagram):
                self._send(node, effect.to, effect.message)
            elif isinstance(effect, SendSync):
                self._send(node, effect.address, effect.message)
            elif self.on_changed is not None and isinstance(effect, PeerChanged):
                self.on_changed(node, effect, self.now)
        self._watch(node)
