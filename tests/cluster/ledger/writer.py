"""A process that commits numbered commands and says each number once it is committed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from squall.cluster.ledger.group_member.open_group_ledger import open_group_ledger
from squall.cluster.ledger.interface import Entry, NotPrimary, OutcomeUnknown
from squall.cluster.ledger.replica.types import LAN, GroupId
from squall.cluster.ledger.settings import LedgerSettings, WalSettings
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner

SETTINGS = LedgerSettings(
    wal=WalSettings(segment_bytes=64 * 1024), checkpoint_entries=300, checkpoints_kept=2
)
WRITERS = 16


class Numbers:
    version = 1

    def __init__(self) -> None:
        self.seen: list[int] = []

    def apply(self, entry: Entry) -> bytes:
        self.seen.append(int(entry.body.split(b".")[0]))
        return b""

    def capture(self) -> Numbers:
        copy = Numbers()
        copy.seen = list(self.seen)
        return copy

    def slices(self) -> Iterator[bytes]:
        for start in range(0, len(self.seen), 100):
            yield b"".join(b"%d\n" % number for number in self.seen[start : start + 100])

    def load(self, slices: Iterable[bytes]) -> None:
        self.seen = [int(line) for line in b"".join(slices).splitlines()]


async def main(folder: Path, start: int) -> None:
    runtime = RealRuntime("m1", data_dir=folder)
    ledger = await open_group_ledger(
        runtime,
        TaskRunner(runtime.clock, runtime.random),
        Numbers(),
        None,
        peers=(runtime.node,),
        timers=LAN,
        settings=SETTINGS,
        form_group=GroupId("kill"),
    )
    number = start

    async def write() -> None:
        nonlocal number
        while True:
            number += 1
            mine = number
            try:
                await ledger.submit(b"%d" % mine + b"." * (mine % 500))
            except (NotPrimary, OutcomeUnknown):
                # A disk that takes seconds to answer makes it step down for a moment.
                await asyncio.sleep(0.01)
                continue
            sys.stdout.write(f"{mine}\n")
            sys.stdout.flush()

    await asyncio.gather(*(write() for _ in range(WRITERS)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
