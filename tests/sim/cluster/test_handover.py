"""Gates and datacenters hand over jobs in the simulation, as models and as whole nodes."""

from __future__ import annotations

import os

import pytest

from lab.scenarios.campaign import run_campaign

JOBS = min(os.cpu_count() or 1, 8)
HANDOVER_SEEDS = 60
GATES_SEEDS = 2
SHORT_GATES_SEEDS = 100


@pytest.mark.timeout(1200)
def test_parts_are_handed_over_once_and_nothing_stays_reserved() -> None:
    result = run_campaign("handover", range(1, HANDOVER_SEEDS + 1), jobs=JOBS)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
    assert result.tally["parts started"] > HANDOVER_SEEDS
    assert result.tally["gates recovered by force"] > 3


@pytest.mark.timeout(1200)
def test_jobs_of_several_datacenters_end_once_with_exact_sums() -> None:
    result = run_campaign("gates", range(1, GATES_SEEDS + 1), jobs=JOBS)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
    assert result.tally["jobs completed"] >= GATES_SEEDS


@pytest.mark.timeout(1800)
def test_short_worlds_of_gates_are_clean() -> None:
    """Most of what goes wrong does so while a job is accepted, started or taken back: many short
    worlds find more than a few long ones."""
    seeds = range(1, SHORT_GATES_SEEDS + 1)
    result = run_campaign("gates", seeds, jobs=JOBS, parameters={"seconds": "6", "jobs": "2"})
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
    assert result.tally["jobs completed"] > SHORT_GATES_SEEDS
    assert result.tally["jobs cancelled"] > 0


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_three_datacenters_with_groups_of_managers() -> None:
    parameters = {"datacenters": "3", "managers": "3", "jobs": "4"}
    result = run_campaign("gates", range(1, 41), jobs=JOBS, parameters=parameters)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
