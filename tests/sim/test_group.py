"""The replicated group holds under faults, and every safety rule that is switched off is
missed: `squall sim run group --seeds 1..1000 --mutant NAME` shows each one."""

from __future__ import annotations

import os

import pytest

from squall.scenarios.campaign import run_campaign
from squall.scenarios.registry import find
from squall.sim.run import run_seed

pytestmark = pytest.mark.timeout(600)

JOBS = min(os.cpu_count() or 1, 8)
SHORT = {"seconds": "3"}
CHUNK = 30
QUICK_SEEDS = 40
QUICKLY_FOUND = (
    "no_log_transfer",
    "restarted_primary_goes_on",
    "ack_before_sync",
    "count_self_without_copy",
    "late_start_view",
    "sequence_reset",
    "apply_not_total",
    "prepare_of_lower_view",
    "round_acked_in_view_change",
    "serve_before_commit",
    "new_primary_does_not_wait",
    "no_pre_vote",
    "pre_vote_while_heard",
)
"""The others need more seeds than a test should take."""


@pytest.mark.parametrize("first", range(1, 151, CHUNK))
def test_groups_of_one_three_and_five_are_safe_and_serve_after_the_faults(first: int) -> None:
    seeds = range(first, first + CHUNK)
    result = run_campaign("group", seeds, jobs=JOBS, parameters=SHORT)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
    assert result.seeds == CHUNK


@pytest.mark.parametrize("mutant", QUICKLY_FOUND)
def test_a_rule_that_is_switched_off_is_missed(mutant: str) -> None:
    result = run_campaign("group", range(1, QUICK_SEEDS + 1), mutant=mutant)
    assert result.failures, f"{mutant} survived {QUICK_SEEDS} seeds"


def test_at_least_fifteen_rules_can_be_switched_off() -> None:
    assert len(find("group").mutants) >= 15
    assert set(QUICKLY_FOUND) <= set(find("group").mutants)


def test_the_same_seed_gives_the_same_trace() -> None:
    scenario = find("group")
    one = run_seed(scenario, 7, parameters=SHORT)
    assert one.digest == run_seed(scenario, 7, parameters=SHORT).digest
