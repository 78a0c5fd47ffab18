"""A new group from one disk: all that it holds is kept, the former files stay as they were."""

from __future__ import annotations

import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest

from squall.cluster.assignments.commands import ConfigureGates
from squall.cluster.assignments.commands import encode as encode_gates
from squall.cluster.assignments.state_machine import Assignments
from squall.cluster.datacenter.commands import Accepted, Command, Configure, decode_outcome, encode
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.ledger.files.directory_owner import load_storage
from squall.cluster.ledger.interface import LedgerFailed
from squall.cluster.ledger.recover import EPOCHS_AHEAD, RecoverableMachine, Recovery, recover_alone
from squall.cluster.ledger.settings import LedgerSettings
from squall.runtime.interfaces import Runtime
from squall.runtime.real.runtime import RealRuntime
from squall.runtime.tasks import TaskRunner
from tests.fakes.datacenter import creation, submission, workflow
from tests.unit.cluster.ledger.lab.groups import cluster_of, run
from tests.unit.cluster.ledger.lab.ledgers import Words, open_alone


async def recovered(folder: Path, node: str, machine: RecoverableMachine) -> Recovery:
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
        assert found.group == machine.group != "g" and found.epoch >= EPOCHS_AHEAD
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
        seen, above = {storage}, EPOCHS_AHEAD
        for turn in (1, 2):
            found = await recovered(tmp_path / "a", "a", Words())
            words, epoch, storage = await opened(tmp_path / "a", "a")
            assert words == ["after"] * turn and epoch == found.epoch >= above
            above = epoch + EPOCHS_AHEAD
            assert storage not in seen
            seen.add(storage)
            assert found.former_files == f"ledger.former-{turn}"
        # What was put aside is whole: it could still be opened.
        words, epoch, _ = await opened(tmp_path / "a", "a", "ledger.former-1")
        assert words == ["after"] and epoch == 0

    run(work())


async def jobs_created(folder: Path, *commands: Command) -> list[str]:
    """The ids that a manager alone on this directory gives to these jobs."""
    runtime = RealRuntime("a", data_dir=folder)
    ledger = await open_alone(cast("Runtime", runtime), Datacenter())
    try:
        outcomes = [decode_outcome((await ledger.submit(encode(each))).result) for each in commands]
        assert all(isinstance(each, Accepted) for each in outcomes), outcomes
        return [each.job for each in outcomes if isinstance(each, Accepted) and each.job]
    finally:
        await ledger.close()
        await runtime.close()


def test_groups_from_copies_of_one_log_never_give_two_jobs_one_id(tmp_path: Path) -> None:
    def created(key: str) -> Command:
        return creation(submission(workflow("A")), key)

    async def work() -> None:
        (tmp_path / "a").mkdir()
        first = await jobs_created(tmp_path / "a", Configure(group="g", lease_ms=5), created("k1"))
        for copy in ("copy", "again"):
            shutil.copytree(tmp_path / "a", tmp_path / copy)
        named = await jobs_created(tmp_path / "a", *map(created, ("k2", "k3", "k4", "k5")))
        for copy in ("copy", "again"):
            machine = Datacenter()
            await recovered(tmp_path / copy, "a", machine)
            assert list(machine.tables.jobs) == first
            # The same numbers of the log, for other jobs.
            named += await jobs_created(tmp_path / copy, *map(created, ("k6", "k7", "k8", "k9")))
            again = await jobs_created(tmp_path / copy, created("k1"))
            assert again == first, "a job that was kept keeps its id and its key"
        assert len(set(named)) == len(named) == 12, named

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


def test_a_gate_does_not_start_with_the_directory_of_a_manager(tmp_path: Path) -> None:
    async def work() -> None:
        await opened(tmp_path, "m1")
        runtime = RealRuntime("m1", data_dir=tmp_path)
        try:
            with pytest.raises(LedgerFailed, match="belongs to the manager m1: a gate needs"):
                await open_alone(cast("Runtime", runtime), Words(), LedgerSettings(role="gate"))
        finally:
            await runtime.close()

    run(work())


def test_a_recovered_directory_keeps_its_role(tmp_path: Path) -> None:
    async def work() -> None:
        settings = LedgerSettings(role="gate")
        runtime = RealRuntime("g1", data_dir=tmp_path)
        ledger = await open_alone(cast("Runtime", runtime), Assignments(), settings)
        await ledger.submit(encode_gates(ConfigureGates(group="g7a1")))
        await ledger.close()
        tasks, machine = TaskRunner(runtime.clock, runtime.random), Assignments()
        made = await recover_alone(cast("Runtime", runtime), tasks, machine, settings)
        # Managers obey the new group for the jobs of the old one, and never the old one again.
        assert (machine.tables.group, machine.tables.former) == (made.group, ("g7a1",))
        storage = await load_storage(runtime.disk, "ledger")
        assert storage is not None and storage.role == "gate"
        await tasks.shutdown(5.0)
        await runtime.close()

    run(work())
