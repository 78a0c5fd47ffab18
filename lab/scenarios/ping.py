"""Every node pings every other once a second, over a stream and by datagram.

It measures the simulator's speed and is the smallest example of a node program. Ten nodes have 90
streams and send 360 messages per simulated second. There are no faults; every ping must be
answered.
"""

from __future__ import annotations

import asyncio

from lab.sim.checks import check
from lab.sim.run import Scenario
from lab.sim.world import World
from squall.runtime.interfaces import Address, Connection, DatagramSocket, Runtime

PORT = 7000
INTERVAL_S = 1.0
PING = b"ping" + bytes(28)
PONG = b"pong" + bytes(28)
SECONDS = 60


class Tally:
    """Counts the pings and answers of all nodes."""

    def __init__(self) -> None:
        self.sent = 0
        self.answered = 0


class Echo:
    """Answers every ping on a stream."""

    def __init__(self) -> None:
        self._connection: Connection | None = None
        self._buffer = b""

    def on_open(self, connection: Connection) -> None:
        self._connection = connection

    def on_data(self, data: bytes) -> None:
        self._buffer += data
        whole = len(self._buffer) // len(PING)
        self._buffer = self._buffer[whole * len(PING) :]
        if self._connection is not None:
            self._connection.send(PONG * whole)

    def on_closed(self, error: Exception | None) -> None:
        self._connection = None


class Pinger:
    """Counts the answers on a stream."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._bytes = 0

    def on_open(self, connection: Connection) -> None:
        pass

    def on_data(self, data: bytes) -> None:
        self._bytes += len(data)
        self._tally.answered += self._bytes // len(PONG)
        self._bytes %= len(PONG)

    def on_closed(self, error: Exception | None) -> None:
        pass


class Datagrams:
    """Answers pings and counts answers that arrive as datagrams."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self.socket: DatagramSocket | None = None

    def on_datagram(self, data: bytes, sender: Address) -> None:
        if data is PONG or data[:4] == b"pong":
            self._tally.answered += 1
        elif self.socket is not None:
            self.socket.send(PONG, sender)


async def node(runtime: Runtime, peers: list[str], tally: Tally) -> None:
    datagrams = Datagrams(tally)
    datagrams.socket = await runtime.network.bind_datagrams(("", PORT), datagrams)
    await runtime.network.listen(("", PORT), Echo)
    await runtime.clock.sleep(0.1)
    streams = await asyncio.gather(
        *(runtime.network.dial((peer, PORT), Pinger(tally), timeout_s=5.0) for peer in peers)
    )
    while True:
        for peer, stream in zip(peers, streams, strict=True):
            stream.send(PING)
            datagrams.socket.send(PING, (peer, PORT))
            tally.sent += 2
        await runtime.clock.sleep(INTERVAL_S)


async def scenario(world: World) -> None:
    tally = Tally()
    names = [f"n{number}" for number in range(world.parameter("nodes", 10))]
    for name in names:
        peers = [peer for peer in names if peer != name]
        world.add(name, lambda runtime, peers=peers: node(runtime, peers, tally))
    world.start()
    await asyncio.sleep(world.parameter("seconds", SECONDS) + 0.5)
    check(tally.sent > 0, "no node sent a ping")
    check(tally.answered == tally.sent, f"{tally.answered} answers to {tally.sent} pings")


SCENARIO = Scenario("ping", "every node pings every other, by stream and datagram", scenario)
