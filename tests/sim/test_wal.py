"""One member's log on a faulty disk keeps its promises, and every known bug is found."""

from __future__ import annotations

import os

import pytest

from squall.scenarios.campaign import run_campaign
from squall.scenarios.registry import find

pytestmark = pytest.mark.timeout(600)

JOBS = min(os.cpu_count() or 1, 8)
CLEAN_SEEDS = 40
MUTANT_SEEDS = 150


def test_the_log_keeps_its_promises_on_a_faulty_disk() -> None:
    result = run_campaign("wal", range(1, CLEAN_SEEDS + 1), jobs=JOBS)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
    assert result.tally["starts"] > 4 * CLEAN_SEEDS


@pytest.mark.parametrize("mutant", find("wal").mutants)
def test_a_bug_in_the_log_is_found(mutant: str) -> None:
    result = run_campaign("wal", range(1, MUTANT_SEEDS + 1), mutant=mutant)
    assert result.failures, f"{mutant} survived {MUTANT_SEEDS} seeds"
