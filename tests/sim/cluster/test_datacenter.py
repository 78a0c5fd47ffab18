"""A whole datacenter in the simulation stays clean under faults."""

from __future__ import annotations

import os

import pytest

from lab.scenarios.campaign import run_campaign
from lab.scenarios.registry import find
from lab.sim.run import run_seed

JOBS = min(os.cpu_count() or 1, 8)
SHORT = {"seconds": "18", "jobs": "3"}
CLEAN_SEEDS = 40
GROUP_SEEDS = 8


@pytest.mark.timeout(400)
def test_jobs_end_once_with_exact_sums() -> None:
    seeds = range(1, CLEAN_SEEDS + 1)
    result = run_campaign("datacenter", seeds, jobs=JOBS, parameters=SHORT)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
    assert result.seeds == CLEAN_SEEDS
    assert result.tally["attempts that followed another"] > 10
    assert result.tally["jobs completed"] > CLEAN_SEEDS


@pytest.mark.timeout(400)
def test_jobs_end_once_with_a_group_of_managers() -> None:
    seeds = range(1, GROUP_SEEDS + 1)
    parameters = SHORT | {"managers": "3"}
    result = run_campaign("datacenter", seeds, jobs=JOBS, parameters=parameters)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
    assert result.tally["jobs completed"] >= GROUP_SEEDS


@pytest.mark.timeout(400)
def test_wall_clocks_that_jump_while_the_manager_restarts_end_no_job() -> None:
    """In seed 177 the only manager restarts fifteen times on a full disk, and its wall clock jumps
    by half an hour meanwhile: more than a finished job is kept for its client."""
    outcome = run_seed(find("datacenter"), 177)
    assert outcome.clean, outcome.failure
    assert "jobs timeout" not in outcome.tally
