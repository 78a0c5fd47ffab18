"""Fixtures of the real runs; what they hand out is described in `run_lab`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from run_lab import Lab

from target_fixture import TargetHandle, running_target


@pytest.fixture(scope="session")
def one_target() -> Iterator[TargetHandle]:
    with running_target(["--seed", "7"]) as handle:
        yield handle


@pytest.fixture
def lab(tmp_path: Path, one_target: TargetHandle) -> Lab:
    one_target.reset()
    return Lab(tmp_path, one_target)
