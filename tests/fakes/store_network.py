"""Processes that meet in a store in memory: virtual time, faults per process, both layouts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import msgspec

from lab.stores.faulty import FaultyStore, StoreFaults
from squall.coordination.stores.interface import Append, Capabilities, make_key
from squall.coordination.stores.memory.store import MemoryStore
from squall.runtime.interfaces import Connection
from squall.runtime.tasks import TaskRunner
from squall.store_mode.transport.envelope import StreamPart, encode_envelope
from squall.store_mode.transport.network import LEADER, StoreNetwork
from squall.store_mode.transport.tuning import REDIS_TUNING, S3_TUNING, TransportTuning
from tests.fakes.wire import FakeClock

STREAMS = "streams"
RECORDS = "records"
LAYOUTS = (STREAMS, RECORDS)
QUICK_OBJECTS = msgspec.structs.replace(
    S3_TUNING, flush_s=0.0, poll_s=0.05, quiet_poll_s=0.0, busy_poll_s=0.01, busy_s=0.1,
    first_poll_s=0.0, remove_s=0.1, quiet_remove_s=0.0, give_up_s=10.0,
)  # fmt: skip


class PlainStore(MemoryStore):
    """A store without transactions, as S3 is."""

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, transactions=False)


class Recorder:
    """A handler that keeps everything it is told."""

    def __init__(self, on_data: Callable[[Recorder, bytes], None] | None = None) -> None:
        self.connection: Connection | None = None
        self.data = bytearray()
        self.chunks = 0
        self.closed: list[Exception | None] = []
        self._on_data = on_data

    @property
    def end(self) -> Connection:
        assert self.connection is not None
        return self.connection

    def on_open(self, connection: Connection) -> None:
        assert self.connection is None
        self.connection = connection

    def on_data(self, data: bytes) -> None:
        assert self.connection is not None
        assert not self.closed, "told after its end"
        self.data += data
        self.chunks += 1
        if self._on_data is not None:
            self._on_data(self, data)

    def on_closed(self, error: Exception | None) -> None:
        assert not self.closed, "told of its end twice"
        self.closed.append(error)


class Process:
    """One mailbox, with its own way to the store."""

    def __init__(self, lab: Lab, name: str, tuning: TransportTuning) -> None:
        self.name = name
        self.clock = FakeClock()
        self.faults = StoreFaults()
        self.store = FaultyStore(lab.store, self.clock, random.Random(name), self.faults)
        self.failures: list[object] = []
        self.tasks = TaskRunner(self.clock, random.Random(name), on_failure=self.failures.append)
        self.accepted: list[Recorder] = []
        self.on_data: Callable[[Recorder, bytes], None] | None = None
        self.network = StoreNetwork(
            self.store,
            own=name,
            clock=self.clock,
            random=random.Random(name),
            tasks=self.tasks,
            tuning=tuning,
            resolve=lab.resolve,
        )

    async def listen(self) -> None:
        await self.network.listen((self.name, 0), self._accept)

    async def dial(self, name: str, timeout_s: float = 5.0) -> Recorder:
        handler = Recorder()
        await self.network.dial((name, 0), handler, timeout_s=timeout_s)
        return handler

    def die(self) -> None:
        """Nothing is read or written any more, and nobody is told."""
        self.faults.down = True

    def _accept(self) -> Recorder:
        handler = Recorder(self.on_data)
        self.accepted.append(handler)
        return handler


class Lab:
    def __init__(self, layout: str = STREAMS, **changes: object) -> None:
        self.layout = layout
        self.store = MemoryStore(FakeClock()) if layout == STREAMS else PlainStore(FakeClock())
        tuning = REDIS_TUNING if layout == STREAMS else QUICK_OBJECTS
        self.tuning = msgspec.structs.replace(tuning, **changes)
        self.leader = ""
        self.processes: list[Process] = []

    async def resolve(self, name: str) -> str:
        assert name == LEADER
        if not self.leader:
            raise ConnectionError("nobody leads")
        return self.leader

    def process(self, name: str) -> Process:
        made = Process(self, name, self.tuning)
        self.processes.append(made)
        return made

    async def pair(self) -> tuple[Process, Process, Recorder, Recorder]:
        """a has dialled b."""
        a, b = self.process("a"), self.process("b")
        await b.listen()
        near = await a.dial("b")
        await until(lambda: bool(b.accepted))
        return a, b, near, b.accepted[0]

    async def put_letter(self, to: str, sender: str, parts: list[StreamPart], name: str) -> None:
        """What anybody who can write to the store could do; streams only."""
        await self.store.write(
            Append(make_key("mail", to), name, encode_envelope(sender, parts), ttl_s=60.0)
        )

    async def close(self) -> None:
        for process in self.processes:
            process.faults.down = False
        for process in self.processes:
            await process.network.close()
            await process.tasks.shutdown(1.0)
            assert not process.failures
            assert process.network.open_count == 0


async def until(holds: Callable[[], bool], within_s: float = 60.0, step_s: float = 0.005) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while not holds():
        assert loop.time() < deadline, "it did not come true"
        await asyncio.sleep(step_s)


async def rest(seconds: float) -> None:
    await asyncio.sleep(seconds)
