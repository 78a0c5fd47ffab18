"""What the records of managers and gates say of a job's changes."""

from __future__ import annotations

import pytest

from squall.cluster.protocol.job_records import AdjustEvent


@pytest.mark.parametrize(
    ("at_ms", "at_s"), [(12_500, 2.5), (10_000, 0.0), (4_000, 0.0)], ids=["runs", "begins", "waits"]
)
def test_a_change_of_a_job_that_waited_is_there_from_its_beginning(at_ms: int, at_s: float) -> None:
    event = AdjustEvent(at_ms=at_ms, workflow="Load", rate_per_s=20.0, by="ann")
    applied = event.applied(began_ms=10_000)
    assert (applied.at_s, applied.workflow, applied.rate_per_s, applied.by) == (
        at_s, "Load", 20.0, "ann",
    )  # fmt: skip
