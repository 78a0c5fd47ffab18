"""The journal of submissions: its folder is shared by all clients of a user, without a lock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from squall.cluster.client.submission_journal import FOLDER, SubmissionJournal
from squall.runtime.interfaces import Runtime
from squall.runtime.real.runtime import RealRuntime

LIVE = {f"owner{n}" for n in range(10)}


class Clients:
    """Clients with the same state directory; `live` are the owners that still run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.live = set(LIVE)
        self._runtimes: list[RealRuntime] = []

    def journal(self, owner: str) -> SubmissionJournal:
        runtime = RealRuntime(f"client-{owner}", data_dir=self.folder)
        self._runtimes.append(runtime)
        return SubmissionJournal(cast("Runtime", runtime), owner, lambda name: name in self.live)

    def files(self) -> list[str]:
        return [path.name for path in (self.folder / FOLDER).iterdir()]

    async def close(self) -> None:
        for runtime in self._runtimes:
            await runtime.close()


@contextmanager
def clients(folder: Path) -> Iterator[tuple[Clients, asyncio.Runner]]:
    made = Clients(folder)
    with asyncio.Runner() as runner:
        yield made, runner
        runner.run(made.close())


def test_ten_clients_with_one_key_write_at_the_same_time(tmp_path: Path) -> None:
    async def submits(journal: SubmissionJournal, rounds: int) -> None:
        for number in range(rounds):
            key = f"nightly-{number}"
            entry = await journal.open("shop.py", key)
            assert entry.key == key
            entry = await journal.accepted(entry, "k3f9-7")
            await journal.close(entry)

    with clients(tmp_path) as (made, runner):
        journals = [made.journal(owner) for owner in sorted(LIVE)]

        async def all_at_once() -> None:
            await asyncio.gather(*(submits(journal, 10) for journal in journals))

        runner.run(all_at_once())
        assert made.files() == []


def test_a_client_that_saw_the_end_leaves_the_entries_of_others(tmp_path: Path) -> None:
    with clients(tmp_path) as (made, runner):
        first, second = made.journal("owner0"), made.journal("owner1")
        entry = runner.run(first.open("shop.py", "nightly"))
        runner.run(second.open("shop.py", "nightly"))
        runner.run(first.close(entry))
        made.live.remove("owner1")
        assert runner.run(first.open("shop.py")).key == "nightly"


def test_of_two_clients_that_repeat_a_dead_ones_command_one_gets_its_key(tmp_path: Path) -> None:
    with clients(tmp_path) as (made, runner):
        lost = runner.run(made.journal("dead").open("shop.py"))
        repeats = [made.journal("owner0"), made.journal("owner1")]

        async def both() -> list[str]:
            entries = await asyncio.gather(*(journal.open("shop.py") for journal in repeats))
            return [entry.key for entry in entries]

        keys = runner.run(both())
        assert keys.count(lost.key) == 1
        assert len(made.files()) == 2
