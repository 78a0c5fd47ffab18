"""A worker of the lease model: runs an attempt exactly as long as its lease.

It asks all managers again and again. A grant extends the lease from the moment its
request was *sent*. Before each request to the target it compares the deadline with two
clocks: one that stands still while the machine sleeps, and one that does not.
"""

from __future__ import annotations

import asyncio

import msgspec

from squall.runtime.interfaces import Address, DatagramSocket, Runtime
from squall.scenarios.lease_facts import (
    MANAGER_PORT,
    SESSION_S,
    WORKER_PORT,
    Grant,
    Renew,
)
from squall.sim.checks import Probe

LOAD_EVERY_S = 0.05
REMEMBERED = 256
"""Requests whose answers are still taken."""


class Worker:
    def __init__(
        self, runtime: Runtime, managers: list[str], probe: Probe, mutant: str | None
    ) -> None:
        self._runtime = runtime
        self._managers = managers
        self._probe = probe
        self._mutant = mutant
        self._socket: DatagramSocket
        self._sent: dict[int, tuple[float, float]] = {}
        """Request: when it was sent, by both clocks."""
        self._request = 0
        self._term = 0
        self._attempt = 0
        self._deadline = (0.0, 0.0)

    async def run(self) -> None:
        self._socket = await self._runtime.network.bind_datagrams(("", WORKER_PORT), self)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._ask(), name="session")
            group.create_task(self._load(), name="load")

    def on_datagram(self, data: bytes, sender: Address) -> None:
        grant = msgspec.msgpack.decode(data, type=Grant)
        sent = self._sent.get(grant.request)
        if sent is None or grant.boot != self._runtime.boot or grant.term < self._term:
            return
        self._term = grant.term
        if grant.attempt < self._attempt:
            return
        if self._mutant == "from_receipt":
            sent = self._clocks()
        if grant.attempt > self._attempt:
            self._attempt = grant.attempt
            self._deadline = (0.0, 0.0)
        monotonic, boot_time = sent
        self._deadline = (
            max(self._deadline[0], monotonic + grant.lease_s),
            max(self._deadline[1], boot_time + grant.lease_s),
        )

    async def _ask(self) -> None:
        while True:
            self._request += 1
            self._sent[self._request] = self._clocks()
            self._sent.pop(self._request - REMEMBERED, None)
            renew = Renew(self._runtime.node, self._runtime.boot, self._request)
            data = msgspec.msgpack.encode(renew)
            for manager in self._managers:
                self._socket.send(data, (manager, MANAGER_PORT))
            await self._runtime.clock.sleep(SESSION_S)

    async def _load(self) -> None:
        while True:
            await self._runtime.clock.sleep(LOAD_EVERY_S)
            if self._attempt and self._may_run():
                self._probe("request", attempt=self._attempt, boot=self._runtime.boot)

    def _may_run(self) -> bool:
        now, boot_time = self._clocks()
        awake = now < self._deadline[0]
        return awake and (boot_time < self._deadline[1] or self._mutant == "monotonic_only")

    def _clocks(self) -> tuple[float, float]:
        return self._runtime.clock.now(), self._runtime.clock.boot_time()
