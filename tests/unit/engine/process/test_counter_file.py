"""The counters that survive a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from squall.engine.process.counter_file import CounterFile, read_counters
from squall.engine.process.lease import boot_time
from squall.stats.attempt_record import SurvivingCounters


def counters(at_s: float) -> SurvivingCounters:
    return SurvivingCounters(
        planned=9,
        made=8,
        dropped=1,
        finished=6,
        sent=7,
        answered=5,
        failed=1,
        users=4,
        busy=2,
        at_s=at_s,
    )


def test_the_last_fold_is_read_again(tmp_path: Path) -> None:
    path = str(tmp_path / "a.counts")
    file = CounterFile(path)
    assert read_counters(path) is None
    for at_s in (0.1, 0.2):
        file.write(counters(at_s))
    found = read_counters(path)
    assert found is not None and 0.0 <= boot_time() - found.boot_s < 60.0
    found.boot_s = 0.0
    assert found == counters(0.2)
    assert os.stat(path).st_mode & 0o077 == 0


def test_a_disk_that_fails_takes_the_counters_which_would_grow_old_and_not_the_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "a.counts")
    file = CounterFile(path)
    file.write(counters(0.1))
    writes: list[int] = []

    def full(descriptor: int, data: bytes, offset: int) -> int:
        writes.append(descriptor)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    file.write(counters(0.2))
    file.write(counters(0.3))
    assert len(writes) == 1
    assert read_counters(path) is None


def test_a_folder_that_is_gone_costs_nothing_but_the_counters(tmp_path: Path) -> None:
    path = str(tmp_path / "gone" / "a.counts")
    CounterFile(path).write(counters(0.1))
    assert read_counters(path) is None
