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
from tests.lab.arrivals import running_arrivals_target

LANES = 3
GATE = (
    ("worker: machine gone, three managers", "mid"),
    ("worker: machine stopped, three managers", "layers"),
    ("worker: cut off from all managers", "start"),
    ("worker: main process killed", "layers"),
    ("manager: main process killed", "start"),
    ("manager: gone for good", "mid"),
    ("worker: cut off for 3 s", "last"),
    ("primary: machine gone", "mid"),
    ("primary: machine gone", "submit"),
    ("primary: cut off from its followers", "start"),
)
"""Under three managers a lost worker is known after 2.95 s, under one after 5.7 s."""
NIGHTLY = (
    ("worker: machine gone", "mid"),
    ("worker: machine stopped past its lease", "mid"),
    ("worker: cut off past its lease", "mid"),
    ("manager: main process killed", "cancel"),
    ("worker: core process killed", "mid"),
    ("manager and worker: main processes killed", "mid"),
    ("primary gone and worker: main process killed", "mid"),
    ("worker: cut off from the primary", "mid"),
)
CHOSEN = (*GATE, *(pytest.param(*case, marks=pytest.mark.nightly) for case in NIGHTLY))
RowOf = Callable[[str, str], Row]


def _one(name: str, moment: str) -> Row:
    fault = next(each for each in (*ONE_MANAGER, *GROUP) if each.name == name)
    with running_arrivals_target() as target:
        return play(fault, moment, target, timers="fast")


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
