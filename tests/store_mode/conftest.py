"""The servers that the tests of this folder share; what an agent's laboratory is: `lab.agents`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.target import TargetHandle, running_target
from tests.store_mode.lab.agents import Moto, moto_running


@pytest.fixture(scope="session")
def store_target() -> Iterator[TargetHandle]:
    with running_target(["--seed", "7"]) as handle:
        yield handle


@pytest.fixture
def counting(store_target: TargetHandle) -> TargetHandle:
    """The target, with nothing counted yet."""
    store_target.reset()
    return store_target


@pytest.fixture(scope="session")
def moto() -> Iterator[Moto]:
    with moto_running() as server:
        yield server
