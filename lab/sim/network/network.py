"""The network of a simulated world: hosts, listeners, dials, datagrams.

A host has the name of its node; ports are the node's own. `NodeNetwork` is what one boot
of a node gets. What is sent on a link is decided in `links`, how streams behave in
`streams`. Nothing here may call a handler outside of a turn of its own process.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable
from typing import Protocol

from lab.sim.loop import SimLoop
from lab.sim.network.links import Links
from lab.sim.network.streams import Endpoint
from lab.sim.process import KERNEL, SimProcess, Standing
from lab.sim.trace import Trace
from squall.runtime.interfaces import (
    Address,
    Connection,
    DatagramHandler,
    DatagramSocket,
    Listener,
    StreamHandler,
    TLSContext,
)

FIRST_FREE_PORT = 49_152
LARGEST_DATAGRAM = 65_507
SOCKET_BUFFER = 128
"""Datagrams that wait for a paused process; the rest is lost."""
LOCAL_NAMES = ("", "0.0.0.0", "127.0.0.1", "localhost", "::", "::1")


class Hosts(Protocol):
    def is_up(self, name: str) -> bool: ...


class SimNetwork:
    """All of it; one per world."""

    def __init__(
        self, loop: SimLoop, trace: Trace, draw: random.Random, links: Links, hosts: Hosts
    ) -> None:
        self.loop = loop
        self.trace = trace
        self.draw = draw
        self.links = links
        self._hosts = hosts
        self._endpoints: dict[Endpoint, None] = {}
        self._listeners: dict[Address, SimListener] = {}
        self._sockets: dict[Address, SimDatagramSocket] = {}
        self._next_port: dict[str, int] = {}

    def host_is_up(self, name: str) -> bool:
        return self._hosts.is_up(name)

    def register(self, endpoint: Endpoint) -> None:
        self._endpoints[endpoint] = None

    def forget(self, endpoint: Endpoint) -> None:
        self._endpoints.pop(endpoint, None)

    def process_ended(self, process: SimProcess, *, power_lost: bool) -> None:
        """Its sockets vanish. The peers learn of it as they would from TCP."""
        for endpoint in [e for e in self._endpoints if e.process is process]:
            endpoint.process_ended(power_lost=power_lost)
        for address in [a for a, e in self._listeners.items() if e.process is process]:
            del self._listeners[address]
        for address in [a for a, e in self._sockets.items() if e.process is process]:
            del self._sockets[address]

    def host_started(self, host: str) -> None:
        for endpoint in list(self._endpoints):
            if endpoint.peer[0] == host:
                endpoint.host_returned()

    def reset_streams(self, one: str, other: str) -> int:
        """Breaks all streams between two hosts at both ends; returns how many."""
        broken = [e for e in self._endpoints if (e.local[0], e.peer[0]) == (one, other)]
        for endpoint in broken:
            remote = endpoint.remote
            self.loop.post_soon(endpoint.process, endpoint.reset)
            self.loop.post_soon(remote.process, remote.reset)
        return len(broken)

    def free_port(self, host: str) -> int:
        port = self._next_port.get(host, FIRST_FREE_PORT)
        self._next_port[host] = port + 1
        return port

    # Listening and dialling.

    def add_listener(self, listener: SimListener) -> None:
        if listener.address in self._listeners:
            raise OSError(errno.EADDRINUSE, f"address in use: {listener.address}")
        self._listeners[listener.address] = listener

    def remove_listener(self, listener: SimListener) -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def send_syn(self, dial: Dial, tries: int = 0) -> None:
        """Sends the first packet of a stream, again and again until it arrives."""
        if dial.future.done() or not dial.process.alive:
            return
        link = self.links.between(dial.source[0], dial.target[0])
        now = self.loop.now
        if link.open and self.draw.random() >= link.profile.loss:
            self.loop.post(
                now + link.delay(self.draw, now, 0), KERNEL, self._syn_arrived, dial, tries
            )
        else:
            self._resend_syn(dial, tries)

    def _resend_syn(self, dial: Dial, tries: int) -> None:
        self.loop.post(self.loop.now + (1 << min(tries, 6)), KERNEL, self.send_syn, dial, tries + 1)

    def _syn_arrived(self, dial: Dial, tries: int) -> None:
        back = self.links.between(dial.target[0], dial.source[0])
        if not self._hosts.is_up(dial.target[0]) or not back.open:
            self._resend_syn(dial, tries)
            return
        now = self.loop.now
        answer = now + back.delay(self.draw, now, 0)
        listener = self._listeners.get(dial.target)
        if listener is None:
            self.trace.stream(dial.source[0], dial.target[0], f"refused :{dial.target[1]}")
            self.loop.post(answer, dial.process, dial.refused)
            return
        self.trace.stream(dial.source[0], dial.target[0], f"stream opens :{dial.target[1]}")
        client = Endpoint(self, dial.process, dial.source, dial.target)
        server = Endpoint(self, listener.process, dial.target, dial.source)
        client.remote, server.remote = server, client
        server.expect_from(answer)
        self.loop.post_soon(listener.process, listener.accepted, server)
        self.loop.post(answer, dial.process, dial.established, client)

    # Datagrams.

    def add_socket(self, socket: SimDatagramSocket) -> None:
        if socket.address in self._sockets:
            raise OSError(errno.EADDRINUSE, f"address in use: {socket.address}")
        self._sockets[socket.address] = socket

    def remove_socket(self, socket: SimDatagramSocket) -> None:
        if self._sockets.get(socket.address) is socket:
            del self._sockets[socket.address]

    def send_datagram(self, source: Address, target: Address, data: bytes) -> None:
        link = self.links.between(source[0], target[0])
        draw = self.draw
        profile = link.profile
        if not link.open:
            if not link.hold(lambda: self.send_datagram(source, target, data)):
                self.trace.packet(source[0], target[0], "datagram cut off", len(data))
            return
        now = self.loop.now
        if (profile.loss and draw.random() < profile.loss) or link.congested(now):
            self.trace.packet(source[0], target[0], "datagram lost", len(data))
            return
        copies = 1
        if profile.duplicate and draw.random() < profile.duplicate:
            copies = 2
        for _ in range(copies):
            arrival = now + link.delay(draw, now, len(data))
            if profile.reorder and draw.random() < profile.reorder:
                arrival += draw.random() * profile.reorder_s
            self.loop.post(arrival, KERNEL, self._datagram_arrives, source, target, data)

    def _datagram_arrives(self, source: Address, target: Address, data: bytes) -> None:
        socket = self._sockets.get(target)
        if socket is None:
            self.trace.packet(source[0], target[0], "datagram to a closed port", len(data))
            return
        process = socket.process
        if process.standing is Standing.RUNNING:
            process.context.run(socket.deliver, data, source)
        elif socket.waiting < SOCKET_BUFFER:
            socket.waiting += 1
            self.loop.post_soon(process, socket.deliver_late, data, source)
        else:
            self.trace.packet(source[0], target[0], "datagram overflows", len(data))


class NodeNetwork:
    """The network as one boot of a node sees it."""

    def __init__(self, network: SimNetwork, process: SimProcess, host: str) -> None:
        self._network = network
        self._process = process
        self._host = host

    async def listen(
        self,
        address: Address,
        accept: Callable[[], StreamHandler],
        *,
        tls: TLSContext | None = None,
    ) -> Listener:
        listener = SimListener(self._network, self._process, self._own(address), accept)
        self._network.add_listener(listener)
        return listener

    async def dial(
        self,
        address: Address,
        handler: StreamHandler,
        *,
        timeout_s: float,
        tls: TLSContext | None = None,
    ) -> Connection:
        host, port = address
        source = (self._host, self._network.free_port(self._host))
        target = (self._host if host in LOCAL_NAMES else host, port)
        dial = Dial(self._process, source, target, self._network.loop)
        self._network.send_syn(dial)
        try:
            async with asyncio.timeout(timeout_s):
                endpoint = await dial.future
        except TimeoutError as error:
            dial.give_up()
            raise TimeoutError(f"{host}:{port} did not answer in {timeout_s:g} s") from error
        except BaseException:
            dial.give_up()
            raise
        if endpoint.closed:
            raise ConnectionResetError("the peer closed while it was dialled")
        endpoint.opened(handler)
        return endpoint

    async def bind_datagrams(self, address: Address, handler: DatagramHandler) -> DatagramSocket:
        socket = SimDatagramSocket(self._network, self._process, self._own(address), handler)
        self._network.add_socket(socket)
        return socket

    def _own(self, address: Address) -> Address:
        host, port = address
        if host not in LOCAL_NAMES and host != self._host:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of {self._host}")
        return self._host, port or self._network.free_port(self._host)


class Dial:
    """One attempt to open a stream. A dial that fails has called no handler."""

    def __init__(
        self, process: SimProcess, source: Address, target: Address, loop: SimLoop
    ) -> None:
        self.process = process
        self.source = source
        self.target = target
        self.future: asyncio.Future[Endpoint] = loop.create_future()

    def refused(self) -> None:
        if not self.future.done():
            host, port = self.target
            self.future.set_exception(ConnectionRefusedError(f"{host}:{port} refused"))

    def established(self, endpoint: Endpoint) -> None:
        if self.future.done():
            endpoint.abort()
        else:
            self.future.set_result(endpoint)

    def give_up(self) -> None:
        """The caller gave up; the stream may have been established in this same turn."""
        if self.future.done() and not self.future.cancelled() and not self.future.exception():
            self.future.result().abort()


class SimListener:
    def __init__(
        self,
        network: SimNetwork,
        process: SimProcess,
        address: Address,
        accept: Callable[[], StreamHandler],
    ) -> None:
        self.address = address
        self.process = process
        self._network = network
        self._accept = accept
        self._open = True

    def accepted(self, endpoint: Endpoint) -> None:
        if self._open:
            endpoint.opened(self._accept())
        else:
            endpoint.abort()

    async def close(self) -> None:
        self._open = False
        self._network.remove_listener(self)


class SimDatagramSocket:
    def __init__(
        self, network: SimNetwork, process: SimProcess, address: Address, handler: DatagramHandler
    ) -> None:
        self.address = address
        self.process = process
        self.waiting = 0
        self._network = network
        self._handler = handler
        self._open = True

    def send(self, data: bytes, to: Address) -> None:
        if not self._open or not self.process.alive or len(data) > LARGEST_DATAGRAM:
            return
        host, port = to
        target = (self.address[0], port) if host in LOCAL_NAMES else to
        self._network.send_datagram(self.address, target, bytes(data))

    def close(self) -> None:
        self._open = False
        self._network.remove_socket(self)

    def deliver(self, data: bytes, sender: Address) -> None:
        if self._open:
            self._network.trace.packet(sender[0], self.address[0], "datagram", len(data))
            self._handler.on_datagram(data, sender)

    def deliver_late(self, data: bytes, sender: Address) -> None:
        self.waiting -= 1
        self.deliver(data, sender)
