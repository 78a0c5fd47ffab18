"""Members that coordinate through a store hold their promises."""

from __future__ import annotations

import os

import pytest

from lab.scenarios.campaign import run_campaign

pytestmark = pytest.mark.timeout(600)

JOBS = min(os.cpu_count() or 1, 8)
CLEAN_SEEDS = 40


def test_members_and_store_are_clean() -> None:
    result = run_campaign("coordination", range(1, CLEAN_SEEDS + 1), jobs=JOBS)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
    assert result.tally["changes of the coordinator"] > CLEAN_SEEDS
    assert result.tally["acknowledged signals"] > CLEAN_SEEDS
    assert result.tally["deaths"] > 5
