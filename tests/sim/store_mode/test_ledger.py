"""Leaders that overlap keep one log in a store."""

from __future__ import annotations

import os

import pytest

from lab.scenarios.campaign import run_campaign

pytestmark = pytest.mark.timeout(600)

JOBS = min(os.cpu_count() or 1, 8)
CLEAN_SEEDS = 25


def test_leaders_that_overlap_keep_one_log() -> None:
    result = run_campaign("store-log", range(1, CLEAN_SEEDS + 1), jobs=JOBS)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
    assert result.tally["leads"] > 5 * CLEAN_SEEDS
    assert result.tally["superseded"] > CLEAN_SEEDS
    assert result.tally["acked"] > 100 * CLEAN_SEEDS
    assert result.tally["unknown"] > CLEAN_SEEDS
    assert result.tally["losses"] > 5
