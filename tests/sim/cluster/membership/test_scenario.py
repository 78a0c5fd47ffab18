"""Members under all faults on the simulated network."""

from __future__ import annotations

import os

import pytest

from lab.scenarios.campaign import run_campaign

JOBS = min(os.cpu_count() or 1, 8)
SEEDS = range(2, 5)


@pytest.mark.timeout(200)
def test_members_see_each_other_rightly_under_faults_and_afterwards() -> None:
    result = run_campaign("membership", SEEDS, jobs=JOBS)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
    assert result.tally["dead by restart"] > 10
    assert result.tally["alive by gossip"] + result.tally["alive by probe"] > 100


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_hundreds_of_seeds() -> None:
    result = run_campaign("membership", range(1, 401), jobs=JOBS)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
