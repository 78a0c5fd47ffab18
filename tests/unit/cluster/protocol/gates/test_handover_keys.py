"""Whose order counts: fences of gates within a group and over recoveries."""

from __future__ import annotations

import pytest

from squall.cluster.protocol.gates.handover_keys import (
    GateFence,
    HandoverNumber,
    fence_fault,
    gate_group_of,
    part_job_id,
)
from squall.cluster.protocol.job_keys import JobId

JOB = JobId("g1-7")
G1 = GateFence("g1", 0, 4)
G2 = GateFence("g2", 1000, 1, ("g1",))
G3 = GateFence("g3", 2000, 1, ("g1", "g2"))


def test_a_part_is_named_by_job_datacenter_and_number() -> None:
    assert part_job_id(JOB, "eu", HandoverNumber(2)) == "g1-7.eu2"
    assert gate_group_of(JOB) == "g1"


@pytest.mark.parametrize(
    ("kept", "given", "obeyed"),
    [
        (G1, G1, True),
        (G1, GateFence("g1", 0, 5), True),
        (G1, GateFence("g1", 1, 0), True),
        (G1, GateFence("g1", 0, 3), False),
        (G1, G2, True),
        (G1, G3, True),
        (G2, G1, False),
        (G2, GateFence("g1", 9999, 1), False),
        (G3, G2, False),
        # Two recoveries of one group: the first one has the job.
        (G2, GateFence("g4", 5000, 1, ("g1",)), False),
        (G1, GateFence("g9", 9999, 1), False),
        (None, G1, True),
        (None, G2, True),
        (None, GateFence("g9", 0, 1), False),
    ],
)
def test_an_order_counts(kept: GateFence | None, given: GateFence, obeyed: bool) -> None:
    assert (fence_fault(JOB, kept, given) == "") == obeyed
