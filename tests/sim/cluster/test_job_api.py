"""The job API stays linearizable while managers fail over."""

from __future__ import annotations

import os

import pytest

from lab.scenarios.campaign import run_campaign

JOBS = min(os.cpu_count() or 1, 8)
SEEDS = 24


@pytest.mark.timeout(400)
def test_one_order_explains_every_answer() -> None:
    result = run_campaign("job-api", range(1, SEEDS + 1), jobs=JOBS)
    assert [(failed.seed, failed.failure) for failed in result.failures] == []
    assert result.seeds == SEEDS
    tally = result.tally
    for kind in ("submit", "cancel", "adjust", "extend", "look"):
        assert tally[kind] > SEEDS, tally
    for kind in ("submit", "cancel", "adjust"):
        assert tally[f"{kind} without an answer"] > 0, tally
    for state in ("queued", "running", "stopping", "completed", "cancelled"):
        assert tally[f"histories with {state}"] > 0, tally
    assert tally["primaries hit (kill)"] + tally["primaries hit (part)"] > SEEDS, tally
