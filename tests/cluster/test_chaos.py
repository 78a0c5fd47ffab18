"""The fast part of the chaos matrix: real processes, real signals, exact sums.

The cases run beside each other, because a case mostly waits; `make chaos` has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from chaos_cases import GROUP, ONE_MANAGER, play
from chaos_rows import Row

from target_fixture import running_target

LANES = 3
STOP_S = 7.0
"""Longer than the execution lease of the fast timers."""
CHOSEN = (
    ("kill -9 worker, stays dead", "mid"),
    ("SIGSTOP worker", "mid"),
    ("kill -9 manager for good", "mid"),
    ("kill -9 worker, restarted after 1 s", "layers"),
    ("kill -9 manager, restarted after 1 s", "start"),
    ("kill -9 manager, restarted after 1 s", "cancel"),
    ("kill -9 core process", "mid"),
    ("kill -9 manager and worker, restarted", "mid"),
    ("worker cut off for 3 s", "last"),
    ("kill -9 primary for good", "mid"),
    ("kill -9 primary and worker", "mid"),
    ("SIGSTOP primary", "mid"),
    ("kill -9 primary for good", "submit"),
    ("primary cut off from its followers", "mid"),
    ("worker cut off from the primary", "mid"),
)
RowOf = Callable[[str, str], Row]


def _one(name: str, moment: str) -> Row:
    fault = next(each for each in (*ONE_MANAGER, *GROUP) if each.name == name)
    with running_target(["--seed", "7"]) as target:
        return play(fault, moment, target, stop_s=STOP_S)


@pytest.fixture(scope="module")
def row_of() -> Iterator[RowOf]:
    """The row of a case; asked again, the case is played again."""
    with ThreadPoolExecutor(LANES) as lanes:
        rows = {case: lanes.submit(_one, *case) for case in CHOSEN}

        def row_of(fault: str, moment: str) -> Row:
            row = rows.pop((fault, moment), None)
            return row.result() if row else _one(fault, moment)

        yield row_of


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("fault", "moment"), CHOSEN)
def test_the_job_ends_once_with_exact_sums(row_of: RowOf, fault: str, moment: str) -> None:
    row = row_of(fault, moment)
    assert not row.found, row
