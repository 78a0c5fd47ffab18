"""The fast part of store mode's matrix: real agents, real stores, real signals, exact sums.

The cases run in parallel, because a case mostly waits; `make chaos-store` runs all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from tests.cluster.lab.chaos_rows import Row
from tests.lab.arrivals import running_arrivals_target
from tests.store_mode.lab.agents import Moto
from tests.store_mode.lab.chaos_cases import fault_named, play

LANES = 3
GATE = (
    ("redis", "two of three agents: machines gone"),
    ("redis", "store away longer than the lease"),
    ("redis", "Redis restarted empty"),
)
NIGHTLY = (
    ("redis", "agent: machine stopped past its lease"),
    ("sqlite", "coordinator: machine gone"),
    ("s3", "nothing happens"),
)
CHOSEN = (*GATE, *(pytest.param(*case, marks=pytest.mark.nightly) for case in NIGHTLY))
RowOf = Callable[[str, str], Row]


@pytest.fixture(scope="module")
def row_of(moto: Moto, request: pytest.FixtureRequest) -> Iterator[RowOf]:
    """The row of a case; all cases of this session begin with the first that is asked for.
    Asked again, the case is played again."""

    def one(kind: str, name: str) -> Row:
        with running_arrivals_target() as target:
            return play(kind, fault_named(name), "mid", target, moto, timers="fast")

    found = [item for item in request.session.items if item.path == request.path]
    chosen = [cast("pytest.Function", item).callspec.params for item in found]
    with ThreadPoolExecutor(LANES) as lanes:
        cases = [(str(each["kind"]), str(each["fault"])) for each in chosen]
        rows = {case: lanes.submit(one, *case) for case in cases}

        def row_of(kind: str, name: str) -> Row:
            row = rows.pop((kind, name), None)
            return row.result() if row else one(kind, name)

        yield row_of


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "fault"), CHOSEN)
def test_the_submitter_gets_an_answer_with_exact_sums(row_of: RowOf, kind: str, fault: str) -> None:
    row = row_of(kind, fault)
    assert not row.found, row
