"""An in-memory world for tests of the wire: virtual time, streams, datagrams, messages.

Time moves only when nothing else is to be done, so no test waits. Streams deliver in a
later turn, in pieces of a chosen size, and can be tampered with.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, cast

import msgspec

from lab.sim.network.names import NameTable, SimResolver
from squall.cluster.wire.catalogue import Catalogue, SizeClass
from squall.cluster.wire.header import MessageClass
from squall.cluster.wire.links.dispatch import Handlers
from squall.cluster.wire.links.switchboard import Switchboard, make_keyring
from squall.cluster.wire.messages import BlobChunk, BlobFetch, ErrorAnswer
from squall.cluster.wire.roles import Role
from squall.cluster.wire.seal.secrets import Secrets
from squall.runtime.interfaces import (
    Address,
    BootId,
    Clock,
    Connection,
    DatagramHandler,
    DatagramSocket,
    Listener,
    NodeId,
    Runtime,
    StreamHandler,
)
from squall.runtime.tasks import TaskRunner

SECRET = "a secret of the tests"
CLUSTER = "test-cluster"
EVERYBODY = tuple(Role)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to the next timer when nothing is ready."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual_s = 1_000.0

    def time(self) -> float:
        return self._virtual_s

    def _run_once(self) -> None:
        scheduled = cast("list[asyncio.TimerHandle]", self._scheduled)  # type: ignore[attr-defined]
        if not self._ready:  # type: ignore[attr-defined]
            live = [handle.when() for handle in scheduled if not handle.cancelled()]
            if not live:
                raise RuntimeError("everybody waits and nothing will ever happen")
            self._virtual_s = max(self._virtual_s, min(live))
        super()._run_once()  # type: ignore[misc]


def run(main: Coroutine[Any, Any, None]) -> None:
    """Fails if the test leaves a task behind."""

    async def watched() -> None:
        await main
        await turns(20)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left behind: {left}"

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(watched())


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class FakeClock:
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    boot_time = now
    wall = now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class FakeConnection:
    def __init__(self, network: FakeNetwork, local: Address, peer: Address) -> None:
        self.network = network
        self.local = local
        self.peer = peer
        self.peer_names: Sequence[str] = ()
        self.other: FakeConnection
        self.handler: StreamHandler
        self.sent = bytearray()
        self._queue: list[bytes] = []
        self._paused = False
        self._ended = False
        self._scheduled = False

    def send(self, data: bytes) -> None:
        if self._ended:
            return
        self.sent += data
        data = self.network.tamper(data)
        size = self.network.piece_bytes
        self._queue += [data[at : at + size] for at in range(0, len(data), size)]
        self._schedule()

    @property
    def unsent(self) -> int:
        return 0 if self.network.takes_at_once else sum(map(len, self._queue))

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self.other._schedule()

    def close(self) -> None:
        if not self._ended:
            self._ended = True
            self._schedule()

    def abort(self) -> None:
        self._ended = True
        self._queue.clear()
        self.network.lose(self, ConnectionResetError("reset"))

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        if self.other._paused or self.network.frozen:
            return
        queue, self._queue = self._queue, []
        for piece in queue:
            if self in self.network.live and not self.other._ended:
                self.other.handler.on_data(piece)
        if self._ended and not self._queue:
            self.network.lose(self, None)


class FakeListener:
    def __init__(self, network: FakeNetwork, address: Address) -> None:
        self._network = network
        self.address = address

    async def close(self) -> None:
        self._network.listeners.pop(self.address, None)


class FakeDatagrams:
    def __init__(self, network: FakeNetwork, address: Address, handler: DatagramHandler) -> None:
        self._network = network
        self.address = address
        self.handler = handler

    def send(self, data: bytes, to: Address) -> None:
        self._network.datagrams_sent.append(data)
        target = self._network.datagram_sockets.get(to)
        if target is not None:
            loop = asyncio.get_running_loop()
            loop.call_soon(target.handler.on_datagram, self._network.tamper(data), self.address)

    def close(self) -> None:
        self._network.datagram_sockets.pop(self.address, None)


class FakeNetwork:
    """`piece_bytes` fragments streams; `tamper` changes what is sent; `frozen` holds all;
    `takes_at_once` leaves nothing unsent, as a kernel with large buffers does; dials to the
    addresses in `silent` get no answer."""

    def __init__(self) -> None:
        self.piece_bytes = 1 << 30
        self.tamper: Callable[[bytes], bytes] = lambda data: data
        self.frozen = False
        self.takes_at_once = False
        self.silent: set[Address] = set()
        self.listeners: dict[Address, Callable[[], StreamHandler]] = {}
        self.live: dict[FakeConnection, None] = {}
        self.datagram_sockets: dict[Address, FakeDatagrams] = {}
        self.datagrams_sent: list[bytes] = []
        self.dials = 0
        self.names = NameTable()
        self._ports = 5_000

    def thaw(self) -> None:
        self.frozen = False
        for connection in self.live:
            connection._schedule()

    def lose(self, connection: FakeConnection, error: Exception | None) -> None:
        """Both ends are told, in a later turn; the other one of the error."""
        loop = asyncio.get_running_loop()
        for end in (connection, connection.other):
            if end in self.live:
                del self.live[end]
                end._ended = True
                loop.call_soon(end.handler.on_closed, error if end is not connection else None)

    async def listen(
        self, address: Address, accept: Callable[[], StreamHandler], *, tls: Any = None
    ) -> Listener:
        host, port = address
        self._ports += 1
        bound = (host, port or self._ports)
        self.listeners[bound] = accept
        return FakeListener(self, bound)

    async def dial(
        self, address: Address, handler: StreamHandler, *, timeout_s: float, tls: Any = None
    ) -> Connection:
        self.dials += 1
        await asyncio.sleep(0)
        if address in self.silent:
            await asyncio.sleep(timeout_s)
            raise TimeoutError(f"{address} does not answer")
        accept = self.listeners.get(address)
        if accept is None:
            raise ConnectionRefusedError(f"{address} refuses")
        self._ports += 1
        near = FakeConnection(self, ("dialler", self._ports), address)
        far = FakeConnection(self, address, near.local)
        near.other, far.other = far, near
        near.handler, far.handler = handler, accept()
        self.live[near] = self.live[far] = None
        asyncio.get_running_loop().call_soon(far.handler.on_open, far)
        handler.on_open(near)
        return near

    async def bind_datagrams(self, address: Address, handler: DatagramHandler) -> DatagramSocket:
        self._ports += 1
        bound = (address[0], address[1] or self._ports)
        opened = self.datagram_sockets[bound] = FakeDatagrams(self, bound, handler)
        return opened


class FakeRuntime:
    def __init__(self, network: FakeNetwork, node: str, boot: str) -> None:
        self.node = NodeId(node)
        self.boot = BootId(boot)
        self.clock = FakeClock()
        self.random = random.Random(f"{node} {boot}")
        self.network = network
        # The network of a store has no names: processes meet in mailboxes.
        names = getattr(network, "names", NameTable())
        self.resolver = SimResolver(names, cast("Clock", self.clock))

    def entropy(self, size: int) -> bytes:
        return self.random.randbytes(size)


TEST_CATALOGUE = Catalogue()
TEST_CATALOGUE.message(4, MessageClass.CONTROL, senders=EVERYBODY)(ErrorAnswer)
for struct, number in ((BlobFetch, 11), (BlobChunk, 12)):
    TEST_CATALOGUE.message(number, MessageClass.DATA, size=SizeClass.BULK, senders=EVERYBODY)(
        struct
    )


@TEST_CATALOGUE.message(100, MessageClass.DATA, senders=EVERYBODY)
class Echo(msgspec.Struct, frozen=True):
    text: str
    size: int = 0


@TEST_CATALOGUE.message(101, MessageClass.CONTROL, senders=EVERYBODY)
class Beat(msgspec.Struct, frozen=True):
    number: int


@TEST_CATALOGUE.message(102, MessageClass.TELEMETRY, senders=EVERYBODY)
class Sample(msgspec.Struct, frozen=True):
    number: int


@TEST_CATALOGUE.message(103, MessageClass.DISPATCH, senders=(Role.NODE,))
class Order(msgspec.Struct, frozen=True):
    what: str


@TEST_CATALOGUE.message(104, MessageClass.DATA, size=SizeClass.BULK, senders=EVERYBODY)
class Parcel(msgspec.Struct, frozen=True):
    data: bytes


class Forged(Secrets):
    """Claims a role and uses what it has, whatever that is a secret of."""

    def for_role(self, role: Role, name: str = "") -> tuple[bytes, ...]:
        return self._secrets


class Slot:
    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._held = True
        self.waits = gate.turn is not None

    async def turn(self) -> None:
        if self._gate.turn is not None:
            await self._gate.turn.wait()

    def release(self) -> None:
        assert self._held, "released twice"
        self._held = False
        self._gate.held -= 1


class Gate:
    """An admission that counts, and refuses the classes it is told to."""

    def __init__(self) -> None:
        self.held = 0
        self.admitted: list[MessageClass] = []
        self.refused: set[MessageClass] = set()
        self.turn: asyncio.Event | None = None
        """Admitted work waits for it."""
        self.overrun: Exception | None = None

    def __call__(self, message_class: MessageClass, source: str) -> Slot | float:
        if self.overrun is not None:
            raise self.overrun
        if message_class in self.refused:
            return 0.25
        self.held += 1
        self.admitted.append(message_class)
        return Slot(self)


def board(
    network: FakeNetwork,
    node: str = "node-a",
    *,
    boot: str = "",
    secrets: Secrets | None = None,
    cluster: str = CLUSTER,
    handlers: Iterable[tuple[type[Any], Callable[..., Any]]] = (),
    **settings: Any,
) -> Switchboard:
    """A process on the fake network, with the secret of the tests."""
    runtime = cast("Runtime", FakeRuntime(network, node, boot or f"{node}-boot"))
    table = Handlers(TEST_CATALOGUE)
    for struct, handler in handlers:
        table.on(struct, handler)
    return Switchboard(
        runtime=runtime,
        keyring=make_keyring(runtime, secrets or Secrets.of_node(SECRET), cluster),
        admit=settings.pop("admit", None) or Gate(),
        tasks=TaskRunner(runtime.clock, runtime.random),
        handlers=table,
        **settings,
    )
