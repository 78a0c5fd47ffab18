"""Ledgers of one member on a disk in memory, over a machine that counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from squall.cluster.ledger.group_member.group_ledger import GroupLedger
from squall.cluster.ledger.group_member.open_group_ledger import open_group_ledger
from squall.cluster.ledger.interface import Digest, Entry, StateMachine
from squall.cluster.ledger.replica.types import LAN, GroupId
from squall.cluster.ledger.settings import LedgerSettings, WalSettings
from squall.runtime.interfaces import Runtime
from squall.runtime.log import Log, MemorySink
from squall.runtime.tasks import TaskRunner
from tests.unit.cluster.ledger.lab.memory_disk import HandClock, MemoryDisk, MemoryRuntime

SMALL = LedgerSettings(
    wal=WalSettings(segment_bytes=4096, read_bytes=4096),
    checkpoint_entries=10**9,
    checkpoint_interval_s=1e9,
    apply_slice=4,
)


@dataclass
class Words:
    """Keeps every command; rejects "bad" ones."""

    version: int = 1
    words: list[str] = field(default_factory=list[str])
    held: list[Digest] = field(default_factory=list[Digest])
    group: str = ""

    def apply(self, entry: Entry) -> bytes:
        if entry.body == b"raise":
            raise ValueError("a bug in the machine")
        if entry.body == b"bad":
            return b"rejected"
        self.words.append(entry.body.decode())
        return b"%d" % len(self.words)

    def capture(self) -> WordsAt:
        return WordsAt(list(self.words))

    def load(self, slices: Iterable[bytes]) -> None:
        self.words = [piece.decode() for piece in slices]

    def begin_group(self, group: str, epoch: int) -> None:
        self.group = group

    def references(self) -> list[Digest]:
        return self.held


@dataclass
class WordsAt:
    words: list[str]

    def slices(self) -> Iterator[bytes]:
        for word in self.words:
            yield word.encode()


async def open_alone(
    runtime: Runtime,
    machine: StateMachine,
    settings: LedgerSettings | None = None,
    *,
    tasks: TaskRunner | None = None,
    log: Log | None = None,
) -> GroupLedger:
    """The ledger of a group whose only member is this node."""
    tasks = tasks or TaskRunner(runtime.clock, runtime.random)
    return await open_group_ledger(
        runtime,
        tasks,
        machine,
        None,
        peers=(runtime.node,),
        timers=LAN,
        settings=settings,
        form_group=GroupId("lab"),
        log=log,
    )


@asynccontextmanager
async def ledger_on(
    disk: MemoryDisk,
    machine: Words | None = None,
    settings: LedgerSettings = SMALL,
    *,
    clock: HandClock | None = None,
    clean: bool = True,
    sink: MemorySink | None = None,
) -> AsyncIterator[GroupLedger]:
    """Without `clean` it ends as by a kill."""
    clock = clock or HandClock()
    machine = machine or Words()
    runtime = MemoryRuntime(disk, clock)
    tasks = TaskRunner(clock, runtime.random, on_failure=lambda failure: None)
    disk.locked = False
    try:
        ledger = await open_alone(
            runtime,  # type: ignore[arg-type]
            machine,
            settings,
            tasks=tasks,
            log=Log(sink or MemorySink(), clock),
        )
        ledger.blobs.references = machine.references
        yield ledger
        if clean:
            await ledger.close()
    finally:
        await tasks.shutdown(5.0)


async def say(ledger: GroupLedger, *words: str) -> None:
    await asyncio.gather(*(ledger.submit(word.encode()) for word in words))
