"""A data directory that an older Squall wrote for a group of one opens with all its state.

`data/group_of_one.tar.gz` was written by the code that had a ledger of its own for one
member: three boots, two checkpoints, an activated version, a blob, and no close at the end.
"""

from __future__ import annotations

import asyncio
import tarfile
from pathlib import Path

import pytest

from squall.cli.main import main
from squall.cluster.ledger.interface import Digest, Fence
from squall.cluster.ledger.recover import EPOCHS_AHEAD, recover_alone
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner
from tests.unit.cluster.ledger.lab.ledgers import Words, open_alone

FILES = Path(__file__).with_name("data") / "group_of_one.tar.gz"
BLOB = Digest("ae57cf9e22cd711af163a06947f054b20a4ef35b11cb621d3188cb06831370fd")
WORDS = [
    word
    for boot in range(3)
    for word in (
        *(f"boot {boot} word {n}".ljust(60) for n in range(30)),
        *(f"boot {boot} later {n}" for n in range(20) if boot < 2),
        *(f"boot {boot} last {n}" for n in range(10)),
    )
]
LAST_OP = 164
GROUP_MS = 207


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with tarfile.open(FILES) as archive:
        archive.extractall(tmp_path / "m1", filter="data")
    return tmp_path / "m1"


async def opened(folder: Path) -> None:
    """Twice: with the old records, and with those that the first start added."""
    for view in (3, 4):
        machine, runtime = Words(version=2), RealRuntime("m1", data_dir=folder)
        ledger = await open_alone(runtime, machine)
        assert machine.words == WORDS
        assert ledger.fence == Fence(0, view) and ledger.is_primary
        assert ledger.applied == LAST_OP + view - 2
        assert (ledger.replica.core.group, ledger.member.storage) == (
            "fae47a91",
            "c743043e7729cffd",
        )
        assert ledger.active_version == 2 and ledger.group_ms() >= GROUP_MS
        assert await ledger.blobs.get(BLOB) == b"a blob of the old code" * 100
        await ledger.close()
        await runtime.close()


def test_it_opens_with_all_its_state_and_goes_on(folder: Path) -> None:
    asyncio.run(opened(folder))


def test_it_starts_from_its_older_checkpoint_if_the_newer_one_is_damaged(folder: Path) -> None:
    newest = max((folder / "ledger/checkpoints").iterdir())
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    asyncio.run(opened(folder))


def test_the_commands_read_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wal", "verify", str(folder)]) == 0
    assert "sound: records" in capsys.readouterr().out
    assert main(["backup", str(folder), str(folder.with_name("copy"))]) == 0

    async def recovered() -> None:
        machine, runtime = Words(version=2), RealRuntime("m1", data_dir=folder)
        tasks = TaskRunner(runtime.clock, runtime.random)
        found = await recover_alone(runtime, tasks, machine)
        assert machine.words == WORDS and found.op == LAST_OP and found.epoch >= EPOCHS_AHEAD
        await tasks.shutdown(5.0)
        await runtime.close()

    asyncio.run(recovered())
