"""The fast part of the chaos matrix: real processes, real signals, exact sums.

The cases run beside each other, because a case mostly waits; `make chaos` has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from tests.cluster.lab.chaos_cases import GROUP, ONE_MANAGER, play
from tests.cluster.lab.chaos_rows import Row
from tests.lab.machine import factor
from tests.lab.target import running_target

LANES = 3
STOP_S = 7.0
"""Longer than the execution lease of the fast timers."""
GATE = (
    ("worker killed under a group", "mid"),
    ("worker stopped under a group", "mid"),
    ("worker cut off from all managers", "mid"),
    ("kill -9 worker, restarted after 1 s", "layers"),
    ("kill -9 manager, restarted after 1 s", "start"),
    ("kill -9 manager for good", "mid"),
    ("worker cut off for 3 s", "last"),
    ("kill -9 primary for good", "mid"),
    ("kill -9 primary for good", "submit"),
    ("primary cut off from its followers", "mid"),
)
"""Under three managers a lost worker is known after 2.95 s, under one after 5.7 s."""
NIGHTLY = (
    ("kill -9 worker, stays dead", "mid"),
    ("SIGSTOP worker", "mid"),
    ("worker cut off longer than the lease", "mid"),
    ("kill -9 manager, restarted after 1 s", "cancel"),
    ("kill -9 core process", "mid"),
    ("kill -9 manager and worker, restarted", "mid"),
    ("kill -9 primary and worker", "mid"),
    ("SIGSTOP primary", "mid"),
    ("worker cut off from the primary", "mid"),
)
CHOSEN = (*GATE, *(pytest.param(*case, marks=pytest.mark.nightly) for case in NIGHTLY))
RowOf = Callable[[str, str], Row]


def _one(name: str, moment: str) -> Row:
    fault = next(each for each in (*ONE_MANAGER, *GROUP) if each.name == name)
    with running_target(["--seed", "7"]) as target:
        return play(fault, moment, target, stop_s=STOP_S * factor())


@pytest.fixture(scope="module")
def row_of(request: pytest.FixtureRequest) -> Iterator[RowOf]:
    """The row of a case; all cases of this session begin with the first that is asked for.
    Asked again, the case is played again."""
    found = [item for item in request.session.items if item.path == request.path]
    chosen = [cast("pytest.Function", item).callspec.params for item in found]
    with ThreadPoolExecutor(LANES) as lanes:
        cases = [(str(each["fault"]), str(each["moment"])) for each in chosen]
        rows = {case: lanes.submit(_one, *case) for case in cases}

        def row_of(fault: str, moment: str) -> Row:
            row = rows.pop((fault, moment), None)
            return row.result() if row else _one(fault, moment)

        yield row_of


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("fault", "moment"), CHOSEN)
def test_the_job_ends_once_with_exact_sums(row_of: RowOf, fault: str, moment: str) -> None:
    row = row_of(fault, moment)
    assert not row.found, row
