"""Members that coordinate through a store hold their promises, and known bugs are found."""

from __future__ import annotations

import os

import pytest

from squall.scenarios.campaign import run_campaign
from squall.scenarios.registry import find

pytestmark = pytest.mark.timeout(600)

JOBS = min(os.cpu_count() or 1, 8)
CLEAN_SEEDS = 60
MUTANT_SEEDS = 150


def test_members_and_store_are_clean() -> None:
    result = run_campaign("coordination", range(1, CLEAN_SEEDS + 1), jobs=JOBS)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
    assert result.tally["changes of the coordinator"] > CLEAN_SEEDS
    assert result.tally["acknowledged signals"] > CLEAN_SEEDS
    assert result.tally["deaths"] > 5


@pytest.mark.parametrize("mutant", find("coordination").mutants)
def test_a_known_bug_is_found(mutant: str) -> None:
    result = run_campaign("coordination", range(1, MUTANT_SEEDS + 1), mutant=mutant, jobs=JOBS)
    assert result.failures, f"{mutant} survived {MUTANT_SEEDS} seeds"
    assert result.failures[0].failure.startswith(("CheckFailed", "NotLive"))
