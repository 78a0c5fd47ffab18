"""Descriptors and cores: what the operating system lets a process have."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from squall.engine.process.system_limits import (
    DESCRIPTOR_RESERVE,
    available_cores,
    descriptor_budget,
    raise_descriptor_limit,
)


@pytest.fixture
def limits() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_soft_limit_is_raised_to_the_hard_one(limits: tuple[int, int]) -> None:
    hard = limits[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    assert raise_descriptor_limit() > 256
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


def test_raising_twice_changes_nothing(limits: tuple[int, int]) -> None:
    assert raise_descriptor_limit() == raise_descriptor_limit()


def test_the_budget_leaves_out_what_is_open_and_a_reserve(limits: tuple[int, int]) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
    budget = descriptor_budget()
    assert 0 < budget < 512 - DESCRIPTOR_RESERVE
    read, write = os.pipe()
    try:
        assert descriptor_budget() == budget - 2
    finally:
        os.close(read)
        os.close(write)


def quota(tmp_path: Path, membership: str, files: dict[str, str]) -> int:
    (tmp_path / "membership").write_text(membership)
    mount = tmp_path / "mount"
    mount.mkdir()
    for name, text in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(text)
    return available_cores(membership=tmp_path / "membership", mount=mount)


@pytest.fixture
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr("sys.platform", "linux")


@pytest.mark.usefixtures("_eight_cores")
@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("", {}, 8),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "10000 100000\n"}, 1),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
        ("0::/../host/path\n", {"cpu.max": "400000 100000\n"}, 4),
        (
            "4:cpu,cpuacct:/d\n",
            {
                "cpu,cpuacct/d/cpu.cfs_quota_us": "200000",
                "cpu,cpuacct/d/cpu.cfs_period_us": "100000",
            },
            2,
        ),
        (
            "4:cpu,cpuacct:/not/here\n",
            {"cpu/cpu.cfs_quota_us": "500000", "cpu/cpu.cfs_period_us": "100000"},
            5,
        ),
        ("4:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ("0::/\n", {"cpu.max": "nonsense\n"}, 8),
    ],
)
def test_cores_are_cut_by_the_tightest_quota(
    tmp_path: Path, membership: str, files: dict[str, str], cores: int
) -> None:
    assert quota(tmp_path, membership, files) == cores


def test_there_is_always_one_core() -> None:
    assert available_cores() >= 1
