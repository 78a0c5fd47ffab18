"""Adds up how long the tests of each folder take, for the budget in `tests/budget.toml`.

`make test` runs the tests in several processes. Each writes its sums to a file of its own in
the folder that SQUALL_DURATIONS names; `.ci/budget` adds them up and compares.

What only computes is measured in processor time: it gives way to the lanes with real timers, so
its wall time says how busy the machine was. Tests with real processes mostly wait, and their wall
time counts.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

COMPUTED = ("unit", "property", "scenario", "sim")
TESTS = Path(__file__).resolve().parents[1]


def folder_of(path: str) -> str:
    """`tests/unit/engine/users/test_x.py` counts for `unit/engine`."""
    parts = Path(path).parts
    return "/".join(parts[1 : min(3, len(parts) - 1)])


def computes(test: str) -> bool:
    """Whether a test, by its id, only computes and has no real time."""
    return folder_of(test.partition("::")[0]).partition("/")[0] in COMPUTED


def processor_s() -> float:
    """The processor time of this process and of the children that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


class Durations:
    """A plugin that sums the durations of all tests by folder, and remembers each test."""

    def __init__(self) -> None:
        self._tests: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        clock = processor_s if computes(item.nodeid) else time.perf_counter
        began = clock()
        try:
            return (yield)
        finally:
            self._tests[item.nodeid] += clock() - began

    def pytest_sessionfinish(self) -> None:
        target = os.environ.get("SQUALL_DURATIONS")
        if not target:
            return
        folders: dict[str, float] = defaultdict(float)
        for test, seconds in self._tests.items():
            folders[folder_of(test.partition("::")[0])] += seconds
        content = {"folders": folders, "tests": self._tests}
        (Path(target) / f"{os.getpid()}.json").write_text(json.dumps(content))
