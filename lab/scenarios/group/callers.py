"""The callers of a group: clients with numbered operations, an operator, workers with leases."""

from __future__ import annotations

import asyncio

import msgspec

from lab.scenarios.group.checks import GroupChecks
from lab.scenarios.group.history import Operation
from lab.scenarios.group.messages import (
    CLIENT_PORT,
    MEMBER_PORT,
    SESSION_S,
    WORKER_PORT,
    Answer,
    Ask,
    Grant,
    Order,
    Renew,
    Report,
    ToClient,
)
from lab.sim.checks import Probe, check
from lab.sim.world import World
from squall.runtime.interfaces import Address, DatagramSocket, Runtime

KEYS = 3
ASK_S = 0.6
"""A client that gets no answer for this long treats the outcome as unknown."""
THINK_S = 0.2
BURST = 0.12
LARGE_BURST = 0.05
LOAD_EVERY_S = 0.05
REMEMBERED = 256


class Client:
    """Performs one operation at a time. A refused operation never entered the log, so the client
    sends it to another member; one without an answer stays open in the history."""

    def __init__(
        self,
        world: World,
        runtime: Runtime,
        members: list[str],
        checks: GroupChecks,
        *,
        blobs: float,
        bursts: tuple[tuple[int, int], ...] = (),
        follows: bool = False,
    ) -> None:
        """`blobs` is the share of operations that name a blob. `bursts` are numbers and sizes of
        commands that a member is made to submit at once. A client that `follows` finds a new
        primary at once, before that member has applied what it inherited."""
        self._world = world
        self._runtime = runtime
        self._members = members
        self._checks = checks
        self._blobs = blobs
        self._bursts = bursts
        self._follows = follows
        self._decoder = msgspec.msgpack.Decoder(ToClient)
        self._socket: DatagramSocket
        self._seq = 0
        self._waiting: asyncio.Future[Answer] | None = None
        self._target = members[0]
        self._seen: dict[str, str] = {}

    async def run(self) -> None:
        self._socket = await self._runtime.network.bind_datagrams(("", CLIENT_PORT), self)
        draw = self._runtime.random
        while True:
            await self._runtime.clock.sleep(draw.expovariate(1.0 / THINK_S))
            await self._operate()

    def on_datagram(self, data: bytes, sender: Address) -> None:
        answer = self._decoder.decode(data)
        waiting = self._waiting
        if not isinstance(answer, Answer) or answer.seq != self._seq:
            return
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    async def _operate(self) -> None:
        draw = self._runtime.random
        key = f"k{draw.randrange(KEYS)}"
        name = self._runtime.boot
        kind = draw.random()
        value = expected = None
        if kind < 0.6:
            value = f"{name}.{self._seq + 1}"
            expected = self._seen.get(key) if kind < 0.15 else None
        blob = draw.randbytes(40) if kind < self._blobs else b""
        if draw.random() < BURST:
            # More commands than a primary can commit before a fault hits it, so that the logs
            # of the members differ.
            for _ in range(draw.randrange(2, 12)):
                self._seq += 1
                junk = msgspec.msgpack.encode(Ask(name, self._seq, key, junk=True))
                self._socket.send(junk, (self._target, MEMBER_PORT))
        if self._bursts and draw.random() < LARGE_BURST:
            self._seq += 1
            junk = Ask(name, self._seq, key, junk=True, burst=draw.choice(self._bursts))
            self._socket.send(msgspec.msgpack.encode(junk), (self._target, MEMBER_PORT))
        if value is not None:
            value = f"{name}.{self._seq + 1}"
        operation = Operation(name, key, self._world.now, value, expected)
        self._checks.operations.append(operation)
        while True:
            # Members ignore repeated numbers, so each try needs a new one. That is safe: a
            # refused try had no effect.
            self._seq += 1
            ask = Ask(name, self._seq, key, value, expected, blob, junk=kind > 0.97)
            answer = await self._ask(ask)
            if answer is None or answer.how == "unknown":
                self._target = self._next_target()
                return
            if answer.how == "done":
                break
            self._target = self._next_target()
            await self._runtime.clock.sleep(draw.uniform(0.01, 0.1))
        self._checks.guard(
            lambda: check(
                bool(answer.result), f"{name} #{ask.seq} has the answer of another command"
            )
        )
        if ask.junk or not answer.result:
            self._checks.operations.remove(operation)
        elif answer.result[:1] != "!":
            operation.returned = self._world.now
            operation.found = answer.result[1:]
            operation.wrote = answer.result[0] == "+"
            self._seen[key] = value if operation.wrote and value else operation.found
            if value is not None:
                self._checks.acknowledged(name, self._seq, answer.op)
            self._checks.newest_ack = self._world.now

    def _next_target(self) -> str:
        return (self._follows and self._checks.primary()) or self._runtime.random.choice(
            self._members
        )

    async def _ask(self, ask: Ask) -> Answer | None:
        self._waiting = asyncio.get_running_loop().create_future()
        data = msgspec.msgpack.encode(ask)
        self._socket.send(data, (self._target, MEMBER_PORT))
        try:
            async with asyncio.timeout(ASK_S):
                return await self._waiting
        except TimeoutError:
            return None
        finally:
            self._waiting = None


class Operator:
    """Replaces a member that lost its disk; at times adds or removes members, hands the lead over
    and activates a new version."""

    def __init__(
        self, runtime: Runtime, nodes: list[str], size: int, probe: Probe, pace_s: float
    ) -> None:
        self._runtime = runtime
        self._members = nodes
        self._size = size
        self._probe = probe
        self._pace_s = pace_s
        self._decoder = msgspec.msgpack.Decoder(ToClient)
        self._socket: DatagramSocket
        self._number = 0
        self.reports: dict[str, Report] = {}

    async def run(self) -> None:
        self._socket = await self._runtime.network.bind_datagrams(("", CLIENT_PORT), self)
        clock, draw = self._runtime.clock, self._runtime.random
        while True:
            self.reports.clear()
            self._order(Order(self._number, "status"))
            await clock.sleep(0.3)
            self._act()
            await clock.sleep(draw.expovariate(1.0 / self._pace_s))

    def on_datagram(self, data: bytes, sender: Address) -> None:
        report = self._decoder.decode(data)
        if isinstance(report, Report):
            self.reports[report.node] = report

    def _order(self, order: Order) -> None:
        self._number += 1
        data = msgspec.msgpack.encode(order)
        for member in self._members:
            self._socket.send(data, (member, MEMBER_PORT))

    def _act(self) -> None:
        draw = self._runtime.random
        leading = [r for r in self.reports.values() if r.is_primary]
        if not leading:
            return
        primary = max(leading, key=lambda r: (r.epoch, r.view))
        now = dict(primary.members)
        fresh = {
            r.node: r.storage
            for r in self.reports.values()
            if r.status == "learner" and now.get(r.node) != r.storage
        }
        wanted = dict(now)
        for node in sorted(fresh):
            if node in now:
                wanted[node] = fresh[node]
                break
        else:
            wanted = self._change(now, fresh)
        if wanted != now:
            self._probe(
                "orders", members=" ".join(f"{n}/{s[:4]}" for n, s in sorted(wanted.items()))
            )
            self._order(Order(self._number, "members", tuple(sorted(wanted.items()))))
        elif draw.random() < 0.3:
            self._order(Order(self._number, "hand_over"))
        elif draw.random() < 0.3:
            self._order(Order(self._number, "activate", version=2))

    def _change(self, now: dict[str, str], fresh: dict[str, str]) -> dict[str, str]:
        """Replaces a member by a spare, adds one, or returns to the initial size."""
        draw = self._runtime.random
        wanted = dict(now)
        if len(now) == 1 and len(fresh) >= 2:
            added = sorted(fresh)[:2]
            return wanted | {node: fresh[node] for node in added}
        if len(now) > max(self._size, 1) and draw.random() < 0.7:
            del wanted[draw.choice(sorted(now))]
        elif fresh and len(now) > 1 and draw.random() < 0.6:
            node = draw.choice(sorted(fresh))
            if draw.random() < 0.5 or len(now) > self._size:
                del wanted[draw.choice(sorted(now))]
            wanted[node] = fresh[node]
        return wanted


class Worker:
    """Runs an attempt until its lease ends, counted from when it sent the request (R5)."""

    def __init__(
        self, runtime: Runtime, members: list[str], checks: GroupChecks, mutant: str | None
    ) -> None:
        self._runtime = runtime
        self._members = members
        self._checks = checks
        self._mutant = mutant
        self._socket: DatagramSocket
        self._sent: dict[int, tuple[float, float]] = {}
        self._request = 0
        self._fence = (0, 0)
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
        if sent is None or grant.boot != self._runtime.boot:
            return
        if (grant.epoch, grant.view) < self._fence or grant.attempt < self._attempt:
            return
        self._fence = (grant.epoch, grant.view)
        if self._mutant == "lease_from_receipt":
            sent = self._clocks()
        if grant.attempt > self._attempt:
            self._attempt = grant.attempt
            self._deadline = (0.0, 0.0)
        self._deadline = (
            max(self._deadline[0], sent[0] + grant.lease_s),
            max(self._deadline[1], sent[1] + grant.lease_s),
        )

    async def _ask(self) -> None:
        while True:
            self._request += 1
            self._sent[self._request] = self._clocks()
            self._sent.pop(self._request - REMEMBERED, None)
            renew = Renew(self._runtime.node, self._runtime.boot, self._request)
            data = msgspec.msgpack.encode(renew)
            for member in self._members:
                self._socket.send(data, (member, MEMBER_PORT))
            await self._runtime.clock.sleep(SESSION_S)

    async def _load(self) -> None:
        while True:
            await self._runtime.clock.sleep(LOAD_EVERY_S)
            now, boot_time = self._clocks()
            if self._attempt and now < self._deadline[0] and boot_time < self._deadline[1]:
                self._checks.guard(self._record_request)

    def _record_request(self) -> None:
        self._checks.request(self._runtime.node, self._attempt, self._runtime.boot)

    def _clocks(self) -> tuple[float, float]:
        return self._runtime.clock.now(), self._runtime.clock.boot_time()
