"""Which ended jobs and keys are removed, by time and by number."""

from __future__ import annotations

import msgspec

from squall.cluster.datacenter.commands import (
    Accepted,
    ConcludeWorkflows,
    Conclusion,
    Configure,
    FinishJob,
    encode,
)
from squall.cluster.datacenter.records import KeyEntry
from squall.cluster.datacenter.tables import Tables
from squall.cluster.manager.director.retention import PURGE_MAX, next_purge
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.timers import Timers
from tests.fakes.datacenter import Log, creation, submission, workflow

KEPT = Timers(jobs_kept_max=3, keys_kept_max=5, key_retention_s=100.0)


def group() -> Log:
    made = Log()
    made.apply(Configure(group="g", lease_ms=5000))
    return made


def end_job(group: Log, key: str, keep_ms: int = 1_000_000) -> JobId:
    group.group_ms += 10
    created = group.apply(creation(submission(workflow("A")), key))
    assert isinstance(created, Accepted)
    conclusion = Conclusion(workflow="A", outcome="skipped")
    group.apply(ConcludeWorkflows(job=created.job, conclusions=(conclusion,)))
    group.apply(FinishJob(job=created.job, status="completed", keep_ms=keep_ms))
    return created.job


def purge_all(group: Log, timers: Timers) -> list[int]:
    """Applies purges until nothing is left to remove; returns the number of jobs of each."""
    counts: list[int] = []
    while (purge := next_purge(group.machine.tables, timers, group.group_ms)) is not None:
        assert group.apply(purge).changed
        counts.append(len(purge.jobs))
    return counts


def test_nothing_is_removed_within_time_and_number() -> None:
    made = group()
    for number in range(3):
        end_job(made, f"k{number}")
    made.apply(creation(submission(workflow("A")), "runs"))
    assert next_purge(made.machine.tables, KEPT, made.group_ms) is None


def test_the_jobs_that_ended_first_are_removed_beyond_the_number() -> None:
    made = group()
    jobs = [end_job(made, f"k{number}") for number in range(5)]
    running = made.apply(creation(submission(workflow("A")), "runs"))
    assert isinstance(running, Accepted)
    purge_all(made, KEPT)
    assert list(made.machine.tables.jobs) == [*jobs[2:], running.job]


def test_jobs_whose_time_is_over_count_first() -> None:
    made = group()
    jobs = [end_job(made, f"k{n}", keep_ms=1_000_000 if n < 3 else 50) for n in range(5)]
    made.group_ms += 100
    purge = next_purge(made.machine.tables, KEPT, made.group_ms)
    assert purge is not None and set(purge.jobs) == set(jobs[3:]) and not purge.early
    purge_all(made, KEPT)
    assert list(made.machine.tables.jobs) == jobs[:3]


def test_the_number_of_keys_is_bounded_too() -> None:
    made = group()
    for number in range(40):
        end_job(made, f"k{number:02}")
        purge_all(made, KEPT)
    tables = made.machine.tables
    assert len(tables.jobs) == 3
    # Those of the three jobs, and the last five of the others.
    assert sorted(key for _, key in tables.keys) == [f"k{number}" for number in range(32, 40)]


def test_a_flood_is_removed_by_commands_that_the_log_can_hold() -> None:
    tables = Tables()
    for number in range(3 * PURGE_MAX):
        # Four bytes per character: the largest names and keys.
        pair = ("\N{GRINNING FACE}" * 64, f"{number:03}" + "\N{GRINNING FACE}" * 197)
        tables.keys[pair] = KeyEntry("f", JobId("g-1"), 1_000 + number)
    purge = next_purge(tables, KEPT, 0)
    assert purge is not None and len(purge.keys) == PURGE_MAX and purge.early
    assert len(encode(msgspec.structs.replace(purge, jobs=(JobId("g-1000000"),) * PURGE_MAX))) > 0
