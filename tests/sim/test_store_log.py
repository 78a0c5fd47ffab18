"""Leaders that overlap keep one log in a store, and every known bug is found."""

from __future__ import annotations

import os

import pytest

from squall.scenarios.campaign import run_campaign
from squall.scenarios.registry import find

pytestmark = pytest.mark.timeout(600)

JOBS = min(os.cpu_count() or 1, 8)
CLEAN_SEEDS = 50
MUTANT_SEEDS = 150


def test_leaders_that_overlap_keep_one_log() -> None:
    result = run_campaign("store-log", range(1, CLEAN_SEEDS + 1), jobs=JOBS)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
    assert result.tally["leads"] > 5 * CLEAN_SEEDS
    assert result.tally["superseded"] > CLEAN_SEEDS
    assert result.tally["acked"] > 100 * CLEAN_SEEDS
    assert result.tally["unknown"] > CLEAN_SEEDS
    assert result.tally["losses"] > 5


@pytest.mark.parametrize("mutant", find("store-log").mutants)
def test_a_bug_in_the_log_of_a_store_is_found(mutant: str) -> None:
    result = run_campaign("store-log", range(1, MUTANT_SEEDS + 1), mutant=mutant)
    assert result.failures, f"{mutant} survived {MUTANT_SEEDS} seeds"
    assert "CheckFailed" in result.failures[0].failure
