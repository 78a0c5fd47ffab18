"""`squall status` of a job in several datacenters."""

from __future__ import annotations

from squall.cli.cluster.jobs import status_lines
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import JobView, PartView
from squall.stats.snapshot import DatacenterSnapshot, Snapshot


def test_each_part_has_a_row_with_what_its_datacenter_does_now() -> None:
    view = JobView(
        job=JobId("g7a1-1042"),
        state="running",
        file="shop.py",
        datacenters=[
            PartView(datacenter="eu", part=0.6, tries=1, state="started"),
            PartView(datacenter="us", part=0.3, tries=2, state="started", reason="moved from ap"),
            PartView(part=0.1),
        ],
    )
    eu = DatacenterSnapshot(
        name="eu",
        part=0.6,
        workers=3,
        iterations_now_per_s=299.0,
        target_per_s=300.0,
        failed_now_share=0.002,
        p95_now_s=0.044,
        samples_now=299,
    )
    us = DatacenterSnapshot(name="us", part=0.4, silent_s=6.4)
    snapshot = Snapshot(
        elapsed_s=9.0,
        workflows=(),
        cpu=0.1,
        processes=1,
        lag_p99_s=0.0,
        gc_max_s=0.0,
        datacenters=(eu, us),
    )
    lines = status_lines(view, snapshot)
    assert lines[1:5] == [
        "DC  PART  TRY  STATE    WORKERS  RATE        FAILED  P95",
        "eu  60 %  1    started  3        299 of 300  0.2 %   44.0 ms",
        "us  30 %  2    started  -        -           -       -        silent for 6 s",
        "-   10 %  0    queued   -        -           -       -",
    ]
    assert "moved from ap" in "\n".join(status_lines(view))
