"""What a node may ask of the world. Everything else it must not touch.

Node code is ordinary asyncio: coroutines, futures, `asyncio.sleep`, `asyncio.timeout`
run on whatever loop drives them, a real one or the simulation's. Time, randomness,
network, disk and processes come only from the `Runtime` that a node is given.

Network callbacks run on the loop, never re-entrantly from inside a call of ours: what
`dial` or `send` causes is delivered in a later turn. After `on_closed` there is no
further callback. Bytes of a stream arrive in order and in any fragmentation; datagrams
may be lost, repeated and reordered.

Disk calls may raise `OSError`. What was not synced may be lost or torn at a crash;
`sync` of a file does not make its name durable, `sync_directory` does. A failed `sync`
poisons the file: its unsynced content is unknown from then on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NewType, Protocol

NodeId = NewType("NodeId", str)
BootId = NewType("BootId", str)
"""A start of a node; a restart is a new boot."""

Address = tuple[str, int]


class Clock(Protocol):
    """Readings never leave the process; durations do."""

    def now(self) -> float:
        """Monotonic seconds; does not count time the machine slept, may stand still."""
        ...

    def boot_time(self) -> float:
        """Monotonic seconds that count suspended time too (CLOCK_BOOTTIME)."""
        ...

    def wall(self) -> float:
        """Seconds since 1970 for people and logs; may jump. Never decides anything."""
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
        """What a verified certificate says of the peer ("DNS:name", "URI:..."); none
        without TLS."""
        ...

    def send(self, data: bytes) -> None:
        """Queues bytes; no error here: a broken stream is told by `on_closed`."""
        ...

    @property
    def unsent(self) -> int:
        """Bytes queued and not yet taken by the network: what backpressure looks at."""
        ...

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Sends what is queued, then closes; nothing more is read."""
        ...

    def abort(self) -> None:
        """Closes at once; queued bytes are lost."""
        ...


class StreamHandler(Protocol):
    """What a connection tells its owner."""

    def on_open(self, connection: Connection) -> None: ...
    def on_data(self, data: bytes) -> None: ...
    def on_closed(self, error: Exception | None) -> None:
        """Exactly once, last. None: the peer closed or we did."""
        ...


class Listener(Protocol):
    @property
    def address(self) -> Address: ...
    async def close(self) -> None:
        """No new connections; existing ones stay."""
        ...


class DatagramHandler(Protocol):
    def on_datagram(self, data: bytes, sender: Address) -> None: ...


class DatagramSocket(Protocol):
    @property
    def address(self) -> Address: ...
    def send(self, data: bytes, to: Address) -> None:
        """Best effort; never raises for a target that is gone. `to` is numeric."""
        ...

    def close(self) -> None: ...


class TLSContext(Protocol):
    """Opaque to node code: made by the real runtime, ignored by the simulation."""


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


class File(Protocol):
    """An open file that is appended to. One writer."""

    @property
    def size(self) -> int: ...
    @property
    def poisoned(self) -> bool:
        """An append or a sync failed such that the content is unknown; every later call
        but `close` raises. A failed append that was taken back does not poison."""
        ...

    async def append(self, data: bytes) -> None: ...
    async def sync(self) -> None:
        """Content durable (fdatasync). On OSError the file is poisoned."""
        ...

    async def append_and_sync(self, data: bytes) -> None:
        """Both as one call; the sync covers what was appended before, too."""
        ...

    async def truncate(self, size: int) -> None: ...
    async def close(self) -> None: ...


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """Paths are relative to the node's data directory; "/" separates, ".." is refused."""

    async def open(self, path: str, *, preallocate: int = 0, ahead: int = 0) -> File:
        """Opens for appending at the end, creating the file if it is absent. With `ahead`
        up to so many zeros stand behind its end, as far as the reserved blocks go, which
        makes syncs faster. `File.size` and appends leave them out; those who read the path
        see them until the file is cut to its size, and so does a start after a crash."""
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
        """Of the whole data directory; BlockingIOError when another process holds it."""
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
    """All of it, for one boot of one node."""

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
    def disk(self) -> Disk: ...
    @property
    def processes(self) -> Processes: ...

    def entropy(self, size: int) -> bytes:
        """Bytes for keys and ids; from the seed in a simulation."""
        ...
