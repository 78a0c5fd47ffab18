"""The laws of docs/scale.md, at sizes that a test can afford."""

from __future__ import annotations

from lab.scale import measure
from lab.scale_merging import measure as measure_merging


def test_costs_follow_the_laws_of_the_page() -> None:
    one = measure(datacenters=1, managers=1, workers=2)
    three = measure(datacenters=3, managers=1, workers=2)
    # A session and its answer per worker; a probe, its answer and keep-alives per datacenter.
    assert 2 * 2 + 1 <= one.idle_messages <= 2 * 2 + 3
    assert three.idle_messages <= 3 * one.idle_messages + 3
    assert three.gate_idle_messages <= 3 * one.gate_idle_messages + 3
    # Four entries for each part of a job, and four for the job.
    assert one.gate_job_log_entries == 8
    assert three.gate_job_log_entries == 16
    assert three.job_log_entries == 3 * one.job_log_entries
    # A part costs its gate the same, whatever else it has.
    assert three.gate_running_messages <= 3 * one.gate_running_messages


def test_a_report_grows_with_steps() -> None:
    small, large = measure_merging(4, 1), measure_merging(4, 11)
    per_step = (large["bytes_of_a_second"] - small["bytes_of_a_second"]) / 4 / 10
    assert 800 < per_step < 1500
