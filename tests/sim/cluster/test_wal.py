"""One member's log keeps its promises on a faulty disk."""

from __future__ import annotations

import os

import pytest

from lab.scenarios.campaign import run_campaign

pytestmark = pytest.mark.timeout(600)

JOBS = min(os.cpu_count() or 1, 8)
CLEAN_SEEDS = 40


def test_the_log_keeps_its_promises_on_a_faulty_disk() -> None:
    result = run_campaign("wal", range(1, CLEAN_SEEDS + 1), jobs=JOBS)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
    assert result.tally["starts"] > 4 * CLEAN_SEEDS
