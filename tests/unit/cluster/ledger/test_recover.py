"""A new group from one disk: all that it holds is kept, the former files stay as they were."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest

from squall.cluster.ledger.interface import LedgerFailed
from squall.cluster.ledger.recover import EPOCHS_AHEAD, Recovery, recover_alone
from squall.cluster.ledger.settings import LedgerSettings
from squall.runtime.interfaces import Runtime
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner
from tests.unit.cluster.ledger.lab.groups import cluster_of, run
from tests.unit.cluster.ledger.lab.ledgers import Words, open_alone


async def recovered(folder: Path, node: str, machine: Words) -> Recovery:
    runtime = RealRuntime(node, data_dir=folder)
    tasks = TaskRunner(runtime.clock, runtime.random)
    try:
        return await recover_alone(cast("Runtime", runtime), tasks, machine)
    finally:
        await tasks.shutdown(5.0)
        await runtime.close()


async def opened(folder: Path, node: str, directory: str = "ledger") -> tuple[list[str], int, str]:
    """Words, epoch and storage id of a ledger that is opened alone and takes a command."""
    runtime = RealRuntime(node, data_dir=folder)
    machine = Words()
    settings = LedgerSettings(directory=directory)
    ledger = await open_alone(cast("Runtime", runtime), machine, settings)
    words = list(machine.words)
    await ledger.submit(b"after")
    assert machine.words == [*words, "after"]
    try:
        return words, ledger.fence.epoch, ledger.member.storage
    finally:
        await ledger.close()
        await runtime.close()


def test_one_disk_of_three_becomes_a_group_of_its_own(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            cluster = await cluster_of(stack, tmp_path, "a", "b", "c")
            ledger = await cluster.primary()
            # More than a checkpoint: some words are in it, some only in the log.
            for number in range(30):
                await ledger.submit(b"%d" % number)
            await cluster.all_hold([b"%d" % number for number in range(30)])
            blob = await ledger.blobs.put(b"a result")
            holder = str(ledger.member.node)
        machine = Words()
        found = await recovered(tmp_path / holder, holder, machine)
        assert machine.words == [str(number) for number in range(30)]
        assert found.former_members == ("a", "b", "c") and found.former_group.startswith("g#")
        assert found.group != "g" and found.epoch == EPOCHS_AHEAD
        assert 0 < found.known_committed <= found.op
        assert (tmp_path / holder / "ledger" / "blobs" / blob).read_bytes() == b"a result"
        assert (tmp_path / holder / found.former_files / "storage").is_file()
        words, epoch, _ = await opened(tmp_path / holder, holder)
        assert words == machine.words and epoch == found.epoch

    run(work())


def test_a_second_recovery_is_another_group_with_another_disk(tmp_path: Path) -> None:
    async def work() -> None:
        tmp_path.joinpath("a").mkdir()
        words, epoch, storage = await opened(tmp_path / "a", "a")
        assert words == [] and epoch == 0
        seen = {storage}
        for turn in (1, 2):
            found = await recovered(tmp_path / "a", "a", Words())
            words, epoch, storage = await opened(tmp_path / "a", "a")
            assert words == ["after"] * turn and epoch == turn * EPOCHS_AHEAD
            assert storage not in seen
            seen.add(storage)
            assert found.former_files == f"ledger.former-{turn}"
        # What was put aside is whole: it could still be opened.
        words, epoch, _ = await opened(tmp_path / "a", "a", "ledger.former-1")
        assert words == ["after"] and epoch == 0

    run(work())


def test_a_directory_in_use_or_of_another_node_or_of_nobody_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        for name in ("a", "empty"):
            tmp_path.joinpath(name).mkdir()
        with pytest.raises(LedgerFailed, match="no ledger"):
            await recovered(tmp_path / "empty", "a", Words())
        runtime = RealRuntime("a", data_dir=tmp_path / "a")
        ledger = await open_alone(cast("Runtime", runtime), Words())
        with pytest.raises(LedgerFailed, match="stop it first"):
            await recovered(tmp_path / "a", "a", Words())
        await ledger.close()
        await runtime.close()
        with pytest.raises(LedgerFailed, match="belongs to a"):
            await recovered(tmp_path / "a", "b", Words())
        assert [path.name for path in (tmp_path / "a").iterdir() if "former" in path.name] == []

    run(work())
