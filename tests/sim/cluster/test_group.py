"""The replicated group holds its promises under faults."""

from __future__ import annotations

import os

import pytest

from lab.scenarios.campaign import run_campaign
from lab.scenarios.registry import find
from lab.sim.run import run_seed

pytestmark = pytest.mark.timeout(600)

JOBS = min(os.cpu_count() or 1, 8)
SHORT = {"seconds": "3"}
CHUNK = 30


@pytest.mark.parametrize("first", range(1, 61, CHUNK))
def test_groups_of_one_three_and_five_are_safe_and_serve_after_the_faults(first: int) -> None:
    seeds = range(first, first + CHUNK)
    result = run_campaign("group", seeds, jobs=JOBS, parameters=SHORT)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
    assert result.seeds == CHUNK


def test_members_over_the_real_wire_are_safe_and_serve_after_the_faults() -> None:
    result = run_campaign("group", range(1, 11), jobs=JOBS, parameters=SHORT | {"wire": "1"})
    assert [(failed.seed, failed.failure) for failed in result.failures] == []


def test_a_lost_group_goes_on_from_its_last_copy() -> None:
    """By `recover` from the disk of one member, or by `restore` from a backup."""
    parameters = {"seconds": "1", "ends": "1"}
    result = run_campaign("group", range(1, 13), jobs=JOBS, parameters=parameters)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
    assert result.tally["recovered groups"] >= 8


def test_the_same_seed_gives_the_same_trace() -> None:
    scenario = find("group")
    one = run_seed(scenario, 7, parameters=SHORT)
    assert one.digest == run_seed(scenario, 7, parameters=SHORT).digest
