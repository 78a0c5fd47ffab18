"""Runs one core on a node of the simulation: its datagrams, its timer, its callbacks.

`Sync` travels as a datagram here, so it can be lost, too. Everything else must fit the size class
of sealed datagrams, or the run fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from lab.scenarios.membership.checks import ObserverChecks
from squall.cluster.membership.core import MembershipCore
from squall.cluster.membership.effects import (
    Effect,
    Event,
    LeaveRequested,
    OwnIdentity,
    PeerChanged,
    PeerView,
    Received,
    Seed,
    SendDatagram,
    SendSync,
)
from squall.cluster.membership.messages import MemberRole
from squall.cluster.membership.parameters import LAN
from squall.cluster.wire.catalogue import CATALOGUE
from squall.runtime.interfaces import Address, DatagramSocket, NodeId, Runtime

PORT = 7000
LATE_S = 0.1
READ_FIRST_S = 0.02
"""After a stop, what waits in the socket comes before the time-outs."""


class MemberDriver:
    """One boot of one member."""

    def __init__(
        self,
        runtime: Runtime,
        checks: ObserverChecks,
        seeds: tuple[Seed, ...],
        report: Callable[[PeerChanged], None],
    ) -> None:
        name = str(runtime.node)
        role = MemberRole.WORKER if name.startswith("w") else MemberRole.MANAGER
        identity = OwnIdentity(runtime.node, runtime.boot, role, (name, PORT))
        self._clock = runtime.clock
        self._checks = checks
        self._report = report
        self._wake = asyncio.Event()
        self._socket: DatagramSocket | None = None
        self.boot = runtime.boot
        self.core = MembershipCore(identity, LAN, runtime.random, self._clock.now(), seeds=seeds)

    async def run(self, runtime: Runtime) -> None:
        self._socket = await runtime.network.bind_datagrams(("", PORT), self)
        while True:
            wait = self.core.deadline() - self._clock.now()
            if wait > 0:
                self._wake.clear()
                try:
                    async with asyncio.timeout(wait):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                continue
            if -wait > LATE_S:
                await self._clock.sleep(READ_FIRST_S)
            self._carry_out(self.core.tick(self._clock.now()))

    def view(self, node: NodeId) -> PeerView | None:
        return self.core.member(node, self._clock.now())

    def leave(self) -> None:
        self._take(LeaveRequested())

    def on_datagram(self, data: bytes, sender: Address) -> None:
        row = CATALOGUE.by_number[int.from_bytes(data[:2], "big")]
        message: Any = CATALOGUE.decode(row, data[2:])
        self._take(Received(message))

    def _take(self, event: Event) -> None:
        before = self.core.deadline()
        self._carry_out(self.core.handle(event, self._clock.now()))
        if self.core.deadline() < before:
            self._wake.set()

    def _carry_out(self, effects: list[Effect]) -> None:
        self._checks.stepped(self.core)
        for effect in effects:
            match effect:
                case SendDatagram(to=to, message=message) | SendSync(address=to, message=message):
                    self._send(message, to)
                case PeerChanged():
                    self._checks.changed(effect)
                    self._report(effect)
                case _:
                    pass

    def _send(self, message: msgspec.Struct, to: Address) -> None:
        row, body = CATALOGUE.encode(message)
        if self._socket is not None:
            self._socket.send(row.number.to_bytes(2, "big") + body, to)
