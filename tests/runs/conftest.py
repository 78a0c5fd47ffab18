"""Fixtures of the real runs; what they hand out is described in `lab.run`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from squall.engine.load import drivers
from tests.lab.target import TargetHandle, running_target
from tests.runs.lab.command import EXAMPLES, CommandLab
from tests.runs.lab.run import Lab


@pytest.fixture(scope="session")
def one_target() -> Iterator[TargetHandle]:
    with running_target(["--seed", "7"]) as handle:
        yield handle


@pytest.fixture
def no_start_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """For runs in this process that must make every planned start, however long the machine stands
    still."""
    monkeypatch.setattr(drivers, "DROP_AFTER_S", 60.0)


@pytest.fixture
def lab(tmp_path: Path, one_target: TargetHandle) -> Lab:
    one_target.reset()
    return Lab(tmp_path, one_target)


@pytest.fixture
def command(tmp_path: Path, one_target: TargetHandle) -> CommandLab:
    one_target.reset()
    return CommandLab(tmp_path, one_target)


@pytest.fixture
def examples(command: CommandLab) -> CommandLab:
    """A folder with the examples, so that nothing is written into the real one."""
    folder = command.folder / "examples"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return CommandLab(folder, command.target)
