"""The fast part of store mode's matrix: real agents, real stores, real signals, exact sums.

The cases run beside each other, because a case mostly waits; `make chaos-store` has them all.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from store_cases import Row, fault_named, play
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
Rows = dict[tuple[str, str], Future[Row]]


@pytest.fixture(scope="module")
def rows(moto: Moto) -> Iterator[Rows]:
    def one(kind: str, name: str) -> Row:
        with running_target(["--seed", "7"]) as target:
            return play(kind, fault_named(name), "mid", target, moto, stop_s=STOP_S)

    with ThreadPoolExecutor(LANES) as lanes:
        yield {case: lanes.submit(one, *case) for case in CHOSEN}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "fault"), CHOSEN)
def test_the_submitter_gets_an_answer_with_exact_sums(rows: Rows, kind: str, fault: str) -> None:
    row = rows[kind, fault].result()
    assert not row.found, row
