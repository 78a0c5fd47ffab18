"""The fast part of store mode's matrix: real agents, real stores, real signals, exact sums.

The cases run beside each other, because a case mostly waits; `make chaos-store` has them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from chaos_rows import Row
from store_cases import fault_named, play
from store_lab import Moto

from target_fixture import running_target

LANES = 3
STOP_S = 7.0
"""Longer than the execution lease of the fast timers."""
CHOSEN = (
    ("redis", "kill -9 two of three agents"),
    ("redis", "SIGSTOP agent"),
    ("redis", "store away"),
    ("redis", "Redis restarted empty"),
    ("sqlite", "kill -9 coordinator"),
    ("s3", "nothing happens"),
)
RowOf = Callable[[str, str], Row]


@pytest.fixture(scope="module")
def row_of(moto: Moto) -> Iterator[RowOf]:
    """The row of a case; asked again, the case is played again."""

    def one(kind: str, name: str) -> Row:
        with running_target(["--seed", "7"]) as target:
            return play(kind, fault_named(name), "mid", target, moto, stop_s=STOP_S)

    with ThreadPoolExecutor(LANES) as lanes:
        rows = {case: lanes.submit(one, *case) for case in CHOSEN}

        def row_of(kind: str, name: str) -> Row:
            row = rows.pop((kind, name), None)
            return row.result() if row else one(kind, name)

        yield row_of


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "fault"), CHOSEN)
def test_the_submitter_gets_an_answer_with_exact_sums(row_of: RowOf, kind: str, fault: str) -> None:
    row = row_of(kind, fault)
    assert not row.found, row
