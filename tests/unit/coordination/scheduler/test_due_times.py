"""Which due times are run: policies, restarts, clocks that jump."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.coordination.errors import ConfigurationError
from squall.coordination.scheduler.due_times import Calendar, due_now
from squall.coordination.scheduler.plugin import check_job, merged
from squall.coordination.scheduler.records import JobRecord

JOB = JobRecord(every=10.0, decided=100.0)


def due(job: JobRecord, now: float) -> tuple[list[float], list[float], float]:
    found = due_now(job, Calendar(job), now)
    return list(found.run), list(found.missed), found.decided


def test_nothing_is_due_before_its_time_and_one_at_it() -> None:
    assert due(JOB, 109.9) == ([], [], 100.0)
    assert due(JOB, 110.0) == ([110.0], [], 110.0)


def test_the_policies_for_missed_times() -> None:
    late = 139.0
    assert due(JOB, late) == ([130.0], [110.0, 120.0], 130.0)
    every = msgspec.structs.replace(JOB, misfire="run_all")
    assert due(every, late) == ([110.0, 120.0, 130.0], [], 130.0)
    skip = msgspec.structs.replace(JOB, misfire="skip")
    assert due(skip, late) == ([], [110.0, 120.0, 130.0], 130.0)
    assert due(skip, 131.0) == ([130.0], [110.0, 120.0], 130.0)


def test_a_clock_that_goes_back_repeats_nothing() -> None:
    job = msgspec.structs.replace(JOB, decided=3700.0)
    assert due(job, 200.0) == ([], [], 3700.0)


@given(
    st.floats(0.05, 1e5),
    st.lists(st.floats(-50.0, 500.0), max_size=30),
    st.sampled_from(["run_once", "run_all", "skip"]),
)
def test_no_due_time_is_run_twice_and_decided_only_grows(
    every: float, steps: list[float], misfire: str
) -> None:
    job = JobRecord(every=every, decided=1.7e9, misfire=misfire)
    now, seen = 1.7e9, list[float]()
    for step in steps:
        now += step
        found = due_now(job, Calendar(job), now)
        assert found.decided >= job.decided
        assert all(job.decided < time_s <= now for time_s in (*found.run, *found.missed))
        seen += [*found.missed, *found.run]
        job = msgspec.structs.replace(job, decided=found.decided)
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen)


def test_the_state_of_the_store_survives_new_code() -> None:
    known = JobRecord(every=5.0, enabled=False, decided=77.0)
    assert merged(known, JobRecord(every=9.0), 500.0) == JobRecord(
        every=9.0, enabled=False, decided=77.0
    )
    assert merged(None, JobRecord(every=9.0), 500.0).decided == 500.0


@pytest.mark.parametrize(
    "job",
    [
        JobRecord(),
        JobRecord(every=-1.0),
        JobRecord(every=float("inf")),
        JobRecord(every=1.0, cron="* * * * *"),
        JobRecord(every=1.0, misfire="often"),
        JobRecord(every=1.0, overlap="always"),
        JobRecord(every=1.0, max_runtime=0.0),
        JobRecord(every=1.0, jitter=1.0),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(job: JobRecord) -> None:
    with pytest.raises(ConfigurationError):
        check_job("job", job)
