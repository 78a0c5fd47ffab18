"""Leaders of one log in a store in memory, in virtual time."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from lab.scenarios.coordination.store import WorldClock
from lab.sim.run import Scenario, run_seed
from lab.sim.world import World
from lab.stores.faulty import FaultyStore, StoreFaults
from squall.cluster.ledger.interface import OutcomeUnknown
from squall.coordination.stores.interface import Capabilities, Fence, Page, Record, Write
from squall.coordination.stores.memory.store import MemoryStore
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.tasks import TaskRunner
from squall.store_mode.ledger.layout import Head, StoreLogSettings, head_key, head_of
from squall.store_mode.ledger.open_store_ledger import open_store_ledger
from squall.store_mode.ledger.store_ledger import StoreLedger
from tests.unit.cluster.ledger.lab.ledgers import Words

SMALL = StoreLogSettings(
    unknown_after_s=2.0,
    checkpoint_slots=10**9,
    checkpoint_interval_s=1e9,
    head_check_interval_s=5.0,
    trust_s=30.0,
    retain_s=60.0,
    read_at_once=4,
    collect_every_s=1e9,
)


@dataclass
class Leave:
    """A term that ends on demand."""

    epoch: int = 1
    valid: bool = True


@dataclass
class CountedStore(MemoryStore):
    """Counts requests; `bound` False makes it one without transactions, as S3 is."""

    world: World
    bound: bool = True
    requests: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        MemoryStore.__init__(self, WorldClock(self.world, 1.0))

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, transactions=self.bound)

    async def get(self, *keys: str) -> tuple[Record | None, ...]:
        self.requests += [f"get {key}" for key in keys]
        return await super().get(*keys)

    async def write(self, *writes: Write, fence: Fence | None = None) -> tuple[str, ...]:
        self.requests += [type(write).__name__.lower() for write in writes]
        return await super().write(*writes, fence=fence)

    async def list(self, kind: str, *, idle_ms: int = 0, after: str = "", limit: int = 100) -> Page:
        self.requests.append("list")
        return await super().list(kind, idle_ms=idle_ms, after=after, limit=limit)


class Lab:
    def __init__(self, world: World, *, bound: bool = True) -> None:
        self.world = world
        self.store = CountedStore(world, bound)
        self.faults: dict[str, StoreFaults] = {}
        self.sink = MemorySink()
        self._tasks: list[TaskRunner] = []

    def forget(self) -> None:
        """The store loses everything."""
        fresh = MemoryStore(WorldClock(self.world, 1.0))
        self.store._records, self.store._kinds = fresh._records, fresh._kinds

    def runtime(self, name: str) -> Runtime:
        if name not in self.world.nodes:

            async def idle(runtime: Runtime) -> None:
                await asyncio.Event().wait()

            self.world.add(name, idle)
            self.world.start(name)
        return self.world.runtime(name)

    async def open(
        self,
        name: str,
        machine: Words | None = None,
        *,
        term: Leave | None = None,
        settings: StoreLogSettings = SMALL,
    ) -> StoreLedger:
        runtime = self.runtime(name)
        machine = machine or Words()
        tasks = TaskRunner(runtime.clock, runtime.random)
        self._tasks.append(tasks)
        faults = self.faults.setdefault(name, StoreFaults())
        return await open_store_ledger(
            runtime,
            tasks,
            machine,
            FaultyStore(self.store, runtime.clock, runtime.random, faults),
            term=term or Leave(),
            settings=settings,
            references=machine.references,
            log=Log(self.sink, runtime.clock),
        )

    async def head(self) -> Head:
        (record,) = await MemoryStore.get(self.store, head_key("main"))
        assert record is not None
        return head_of(record.key, record.value)

    async def keys(self, kind: str) -> list[str]:
        page = await MemoryStore.list(self.store, kind, limit=10_000)
        return sorted(entry.key for entry in page.entries)

    def told(self, event: str) -> list[str]:
        return [str(record.fields) for record in self.sink.records if record.event == event]

    async def end(self) -> None:
        for tasks in self._tasks:
            await tasks.shutdown(1.0)


def play(script: Callable[[Lab], Awaitable[None]], *, bound: bool = True, seed: int = 1) -> None:
    """Runs a script in a world of its own; what it raises fails the test."""

    async def scenario(world: World) -> None:
        lab = Lab(world, bound=bound)
        try:
            await script(lab)
        finally:
            await lab.end()

    outcome = run_seed(Scenario("test", "", scenario), seed)
    assert outcome.clean, outcome.failure + "\n" + outcome.details


async def say(ledger: StoreLedger, *words: str) -> None:
    await asyncio.gather(*(ledger.submit(word.encode()) for word in words))


async def outcome_of(ledger: StoreLedger, word: str) -> str:
    try:
        await ledger.submit(word.encode())
    except OutcomeUnknown:
        return "unknown"
    except Exception as error:
        return type(error).__name__
    return "committed"


def puts(requests: Sequence[str]) -> int:
    return sum(each == "put" for each in requests)
