"""The scenarios hold under faults, and find every bug that is switched on."""

from __future__ import annotations

import os

import pytest

from squall.scenarios.campaign import run_campaign
from squall.scenarios.registry import find

pytestmark = pytest.mark.timeout(600)

JOBS = min(os.cpu_count() or 1, 8)
CLEAN_SEEDS = {"election": 150, "lease": 40}
MUTANT_SEEDS = 200


@pytest.mark.parametrize("name", CLEAN_SEEDS)
def test_the_correct_program_is_clean(name: str) -> None:
    result = run_campaign(name, range(1, CLEAN_SEEDS[name] + 1), jobs=JOBS)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
    assert result.seeds == CLEAN_SEEDS[name]


def test_attempts_follow_each_other_often_enough_to_overlap_if_they_could() -> None:
    result = run_campaign("lease", range(1, 11))
    assert result.tally["attempts that followed another"] > 10


@pytest.mark.parametrize("mutant", find("election").mutants)
def test_a_bug_in_the_election_is_found(mutant: str) -> None:
    result = run_campaign("election", range(1, MUTANT_SEEDS + 1), mutant=mutant)
    assert result.failures, f"{mutant} survived {MUTANT_SEEDS} seeds"


@pytest.mark.parametrize("mutant", find("lease").mutants)
def test_a_bug_in_the_lease_makes_attempts_overlap(mutant: str) -> None:
    result = run_campaign("lease", range(1, MUTANT_SEEDS + 1), mutant=mutant)
    assert result.failures, f"{mutant} survived {MUTANT_SEEDS} seeds"
    assert "CheckFailed" in result.failures[0].failure
