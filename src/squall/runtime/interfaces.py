"""The interfaces through which node code reaches the world; it uses nothing else.

Node code is ordinary asyncio: coroutines, futures, `asyncio.sleep` and `asyncio.timeout` run
on a real loop or on the simulation's. Time, randomness, network, disk and processes come only
from the `Runtime` that a node is given.

Network callbacks run on the loop, never from inside a call of the owner: the effects of
`dial` or `send` are delivered in a later turn. After `on_closed` there is no further
callback. Bytes of a stream arrive in order and in any fragmentation; datagrams may be lost,
repeated and reordered.

Disk calls may raise `OSError`. A crash may lose or tear what was not synced. `sync` of a file
does not make its name durable, `sync_directory` does. A failed `sync` poisons the file: its
unsynced content is unknown from then on.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, NewType, Protocol

NodeId = NewType("NodeId", str)
BootId = NewType("BootId", str)
"""One start of a node; a restart is a new boot."""

Address = tuple[str, int]
"""Host and port. A host "dns:NAME" or "srv:NAME" is a name that stands for several addresses
(`squall.runtime.addresses`)."""


class Clock(Protocol):
    """Readings stay inside the process; other nodes only get durations."""

    def now(self) -> float:
        """Monotonic seconds; does not count time in which the machine was suspended."""
        ...

    def boot_time(self) -> float:
        """Monotonic seconds, including suspended time (CLOCK_BOOTTIME)."""
        ...

    def kernel_boot(self) -> str:
        """The id of this start of the machine's kernel; "" if it is unknown. Processes of the same
        one may compare their readings of `boot_time`."""
        ...

    def wall(self) -> float:
        """Seconds since 1970 for people and logs. It may jump, so no decision may use it."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class Connection(Protocol):
    """One end of an established byte stream."""

    @property
    def local(self) -> Address: ...
    @property
    def peer(self) -> Address: ...
    @property
    def peer_names(self) -> Sequence[str]:
        """The names in the peer's verified certificate ("DNS:name", "URI:..."); empty without
        TLS."""
        ...

    def send(self, data: bytes) -> None:
        """Queues bytes. Never raises: `on_closed` reports a broken stream."""
        ...

    @property
    def unsent(self) -> int:
        """Bytes queued and not yet taken by the network; for backpressure."""
        ...

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Sends the queued bytes, then closes; nothing more is read."""
        ...

    def abort(self) -> None:
        """Closes at once; queued bytes are lost."""
        ...


class StreamHandler(Protocol):
    """Receives the events of one connection."""

    def on_open(self, connection: Connection) -> None: ...
    def on_data(self, data: bytes) -> None: ...
    def on_closed(self, error: Exception | None) -> None:
        """Called exactly once, last. None: one side closed in order."""
        ...


class Listener(Protocol):
    @property
    def address(self) -> Address: ...
    async def close(self) -> None:
        """Accepts no new connections; existing ones stay."""
        ...


class DatagramHandler(Protocol):
    def on_datagram(self, data: bytes, sender: Address) -> None: ...


class DatagramSocket(Protocol):
    @property
    def address(self) -> Address: ...
    def send(self, data: bytes, to: Address) -> None:
        """Best effort; never raises for an absent target. `to` is a numeric address."""
        ...

    def close(self) -> None: ...


class TLSRefused(ConnectionError):
    """One side did not accept the other's certificate, or only one of them speaks TLS."""


class TLSContext(Protocol):
    """Opaque to node code: the real runtime makes it, the simulation ignores it."""

    def reporting(self, refused: Callable[[Address, TLSRefused], None]) -> TLSContext:
        """A copy for a listener that reports every connection whose TLS handshake failed."""
        ...


class Network(Protocol):
    async def listen(
        self,
        address: Address,
        accept: Callable[[], StreamHandler],
        *,
        tls: TLSContext | None = None,
    ) -> Listener:
        """`accept` makes a handler per incoming connection. Port 0 takes a free one."""
        ...

    async def dial(
        self,
        address: Address,
        handler: StreamHandler,
        *,
        timeout_s: float,
        tls: TLSContext | None = None,
    ) -> Connection:
        """Raises `ConnectionError`, `TimeoutError` or `OSError`. `handler.on_open` is
        called before this returns; a dial that raises calls nothing."""
        ...

    async def bind_datagrams(
        self, address: Address, handler: DatagramHandler
    ) -> DatagramSocket: ...


class ResolvedTarget(NamedTuple):
    """One address behind a name. Lower priorities are dialled first; among equal ones, those with
    more weight more often (RFC 2782)."""

    address: Address
    priority: int = 0
    weight: int = 0


class Resolved(NamedTuple):
    targets: tuple[ResolvedTarget, ...]
    ttl_s: float
    """How long the answer holds."""


class NotResolved(OSError):
    """A name has no address. The text is one line with the name, the reason, and the server that
    was asked; `ttl_s` is how long that holds."""

    def __init__(self, text: str, ttl_s: float) -> None:
        super().__init__(text)
        self.ttl_s = ttl_s


class Resolver(Protocol):
    """Looks up names. It remembers nothing: `squall.runtime.names` does."""

    async def resolve(self, name: Address) -> Resolved:
        """The addresses of a "dns:" or "srv:" name, at least one. Raises `NotResolved`, also if no
        server answers in time."""
        ...


class File(Protocol):
    """An open file for appending, with one writer."""

    @property
    def size(self) -> int: ...
    @property
    def poisoned(self) -> bool:
        """An append or a sync failed and left the content unknown; every later call but
        `close` raises. A failed append that could be undone does not poison."""
        ...

    def append(self, data: bytes) -> Awaitable[None]: ...
    def sync(self) -> Awaitable[None]:
        """Makes the content durable (fdatasync). An OSError poisons the file."""
        ...

    def append_and_sync(self, data: bytes) -> Awaitable[None]:
        """Both in one call; the sync also covers earlier appends."""
        ...

    def truncate(self, size: int) -> Awaitable[None]: ...
    async def close(self) -> None: ...


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """Paths are relative to the node's data directory; "/" separates, ".." is refused."""

    async def open(self, path: str, *, preallocate: int = 0, ahead: int = 0) -> File:
        """Opens for appending, creating the file if it is absent. With `ahead` up to that many
        zeros are kept behind its end, as far as the reserved blocks go, which makes syncs faster.
        `File.size` and appends ignore them; a reader of the path sees them until the file is
        truncated to its size, and so does a start after a crash."""
        ...

    async def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        """FileNotFoundError if absent."""
        ...

    async def write_atomic(self, path: str, data: bytes) -> None:
        """Temporary file, sync, rename, directory sync: all or nothing, durable."""
        ...

    async def rename(self, source: str, target: str) -> None: ...
    async def remove(self, path: str) -> None: ...
    async def list(self, directory: str = "") -> Sequence[str]:
        """Names in a directory, sorted; empty when it does not exist."""
        ...

    async def make_directory(self, path: str) -> None: ...
    async def sync_directory(self, path: str = "") -> None: ...
    async def size(self, path: str) -> int: ...
    def lock(self) -> DirectoryLock:
        """Locks the data directory; BlockingIOError if another process holds it."""
        ...


class Process(Protocol):
    @property
    def pid(self) -> int: ...
    async def wait(self) -> int:
        """The exit code; negative for a signal."""
        ...

    def send_signal(self, number: int) -> None: ...
    def kill(self) -> None: ...


class Processes(Protocol):
    async def spawn(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        inherit: Sequence[int] = (),
        niceness: int = 0,
    ) -> Process: ...


class Runtime(Protocol):
    """All interfaces, for one boot of one node."""

    @property
    def node(self) -> NodeId: ...
    @property
    def boot(self) -> BootId: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def random(self) -> random.Random: ...
    @property
    def network(self) -> Network: ...
    @property
    def resolver(self) -> Resolver: ...
    @property
    def disk(self) -> Disk: ...
    @property
    def processes(self) -> Processes: ...

    def entropy(self, size: int) -> bytes:
        """Bytes for keys and ids; from the seed in a simulation."""
        ...
