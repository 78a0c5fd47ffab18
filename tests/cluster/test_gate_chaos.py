"""The fast part of the chaos matrix of gates: real processes, real signals, exact sums over
datacenters.

The cases run beside each other, because a case mostly waits; `make chaos ARGS="--gates 3"` has them
all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from tests.cluster.lab.chaos_rows import Row
from tests.cluster.lab.gate_cases import ACCEPT, BEFORE, GATES, play
from tests.lab.arrivals import running_arrivals_target

LANES = 2
GATE = (
    ("primary gate: machine gone", "mid"),
    ("primary gate: main process killed", "submit"),
    ("gates: all main processes killed", ACCEPT),
    ("only manager of a datacenter: main process killed", "mid"),
    ("datacenter: gone after it accepted", ACCEPT),
    ("datacenter: cut off from all gates for 5 s", "mid"),
)
NIGHTLY = (
    ("primary gate: machine gone", "cancel"),
    ("gate that leads the job: machine gone", "mid"),
    ("gates: all gone for good", "mid"),
    ("another gate: disk wiped", "mid"),
    ("datacenter: gone before a part is accepted", BEFORE),
    ("datacenter: gone after the start", "mid"),
    ("client: cut off from its gate", "mid"),
    ("primary gate and manager: main processes killed", "mid"),
)
CHOSEN = (*GATE, *(pytest.param(*case, marks=pytest.mark.nightly) for case in NIGHTLY))
RowOf = Callable[[str, str], Row]


def _one(name: str, moment: str) -> Row:
    fault = next(each for each in GATES if each.name == name)
    with running_arrivals_target() as target:
        return play(fault, moment, target, profile="fast")


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


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("fault", "moment"), CHOSEN)
def test_the_job_ends_once_with_exact_sums_over_datacenters(
    row_of: RowOf, fault: str, moment: str
) -> None:
    row = row_of(fault, moment)
    assert not row.found, row
