"""The servers that the tests of this folder share; what an agent's laboratory is: `store_lab`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from target_fixture import TargetHandle, running_target

if TYPE_CHECKING:
    from store_lab import Moto

_TESTS = Path(__file__).resolve().parent.parent
# Their laboratory, judge and faulty S3 are those of the cluster and of the stores.
sys.path += [str(_TESTS / "cluster"), str(_TESTS / "services" / "coordination")]


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
    from store_lab import moto_running

    with moto_running() as server:
        yield server
