"""Three signals make one decision; the worst rule wins."""

from __future__ import annotations

from itertools import product

import pytest

from squall.cluster.control.health import (
    Decision,
    HealthSettings,
    Progress,
    decision,
    is_systemic,
    progress_of,
)

SETTINGS = HealthSettings()
TABLE = """
live ready idle     route
live ready moving   route
live ready stalled  investigate
live ready stuck    drain
live full  idle     hold
live full  moving   hold
live full  stalled  hold
live full  stuck    drain
dead ready idle     evict
dead ready moving   evict
dead ready stalled  evict
dead ready stuck    evict
dead full  idle     evict
dead full  moving   evict
dead full  stalled  evict
dead full  stuck    evict
"""


def test_the_table_names_every_combination_once() -> None:
    rows = [tuple(line.split()[:3]) for line in TABLE.split("\n") if line]
    wanted = product(("live", "dead"), ("ready", "full"), [each.value for each in Progress])
    assert sorted(rows) == sorted(wanted)


@pytest.mark.parametrize("row", [line for line in TABLE.split("\n") if line])
def test_each_row_of_the_table(row: str) -> None:
    live, ready, progress, wanted = row.split()
    found = decision(live=live == "live", ready=ready == "ready", progress=Progress(progress))
    assert found is Decision[wanted.upper()]


def test_who_is_asked_for_nothing_is_idle_however_long() -> None:
    assert progress_of(busy=False, still_s=1e6, settings=SETTINGS) is Progress.IDLE


def test_standing_still_is_judged_by_its_length() -> None:
    found = [
        progress_of(busy=True, still_s=seconds, settings=SETTINGS)
        for seconds in (0.0, 29.9, 30.0, 119.9, 120.0)
    ]
    moving, stalled, stuck = Progress.MOVING, Progress.STALLED, Progress.STUCK
    assert found == [moving, moving, stalled, stalled, stuck]


@pytest.mark.parametrize(
    ("still", "nodes", "systemic"),
    [(1, 1, False), (2, 3, False), (2, 4, False), (3, 4, True), (5, 10, False), (6, 10, True)],
)
def test_most_of_at_least_four_together_are_no_fault_of_one(
    still: int, nodes: int, systemic: bool
) -> None:
    assert is_systemic([f"w{n}" for n in range(still)], nodes, SETTINGS) is systemic
