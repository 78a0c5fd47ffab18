"""Ledgers of one member on a disk in memory, over a machine that counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from squall.ledger.interface import Digest, Entry
from squall.ledger.open import open_ledger
from squall.ledger.settings import LedgerSettings, WalSettings
from squall.ledger.single import OneMemberLedger
from squall.runtime.log import Log, MemorySink
from squall.runtime.tasks import TaskRunner
from unit.ledger.memory_disk import HandClock, MemoryDisk, MemoryRuntime

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

    def references(self) -> list[Digest]:
        return self.held


@dataclass
class WordsAt:
    words: list[str]

    def slices(self) -> Iterator[bytes]:
        for word in self.words:
            yield word.encode()


@asynccontextmanager
async def ledger_on(
    disk: MemoryDisk,
    machine: Words | None = None,
    settings: LedgerSettings = SMALL,
    *,
    clock: HandClock | None = None,
    clean: bool = True,
    sink: MemorySink | None = None,
) -> AsyncIterator[OneMemberLedger]:
    """Without `clean` it ends as by a kill."""
    clock = clock or HandClock()
    machine = machine or Words()
    runtime = MemoryRuntime(disk, clock)
    tasks = TaskRunner(clock, runtime.random, on_failure=lambda failure: None)
    disk.locked = False
    try:
        ledger = await open_ledger(
            runtime,  # type: ignore[arg-type]
            machine,
            settings,
            tasks=tasks,
            references=machine.references,
            log=Log(sink or MemorySink(), clock),
        )
        yield ledger
        if clean:
            await ledger.close()
    finally:
        await tasks.shutdown(5.0)


async def say(ledger: OneMemberLedger, *words: str) -> None:
    await asyncio.gather(*(ledger.submit(word.encode()) for word in words))
