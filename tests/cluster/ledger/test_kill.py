"""kill -9 of a process that writes to its ledger: nothing that it said is lost."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

from squall.runtime.real.runtime import RealRuntime
from tests.cluster.ledger.writer import SETTINGS, Numbers
from tests.lab.programs import ROOT, program
from tests.unit.cluster.ledger.lab.ledgers import open_alone

PROGRAM = "tests.cluster.ledger.writer"
ROUNDS = 4
SAID = (150, 400, 700, 1000)
"""How many commits each process gets to say before it is killed."""


def killed_after(folder: Path, start: int, count: int) -> list[int]:
    """What a process said before it was killed in the midst of its work."""
    process = subprocess.Popen(
        program(PROGRAM, str(folder), str(start)),
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    assert process.stdout is not None
    said = [int(process.stdout.readline()) for _ in range(count)]
    process.kill()
    # The last line may be cut; complete lines count.
    rest = process.stdout.read()
    process.wait()
    process.stdout.close()
    return said + [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]


async def recovered(folder: Path) -> list[int]:
    runtime = RealRuntime("m1", data_dir=folder)
    machine = Numbers()
    ledger = await open_alone(runtime, machine, SETTINGS)
    await ledger.close()
    await runtime.close()
    return machine.seen


def test_what_a_killed_process_said_is_there_once(tmp_path: Path) -> None:
    said: list[int] = []
    for turn in range(ROUNDS):
        said += killed_after(tmp_path / "data", turn * 1_000_000, SAID[turn])
        found = asyncio.run(recovered(tmp_path / "data"))
        assert len(set(found)) == len(found)
        assert set(said) - set(found) == set()
    assert len(said) >= sum(SAID)
