"""A manager logs and counts losses, refills, stops and ends, once each, with job, share and
reason.
"""

from __future__ import annotations

from typing import Any, cast

from squall.cluster.datacenter import commands
from squall.cluster.datacenter.commands import Accepted, Assignment, Command, LostAttempt, Rejected
from squall.cluster.datacenter.records import RecordFacts
from squall.cluster.manager.command_log import CommandLog, event_counts
from squall.cluster.protocol.job_keys import Attempt, AttemptKey, JobId
from squall.runtime.log import Log, MemorySink
from squall.runtime.metrics import Registry
from tests.unit.runtime.lab.manual_clock import ManualClock

JOB = JobId("g-7")
SHARE = {"job": JOB, "workflow": "Load", "share": 3, "attempt": 1}


def logged(*given: Command, outcome: commands.CommandOutcome | None = None) -> tuple[Any, str]:
    """(event, fields) of each line, and the metrics."""
    sink, registry = MemorySink(), Registry()
    log = CommandLog(Log(sink, cast(Any, ManualClock())), event_counts(registry))
    for command in given:
        log.applied(commands.encode(command), commands.encode_outcome(outcome or Accepted(job=JOB)))
    return [(each.event, dict(each.fields)) for each in sink.records], registry.exposition()


def loss() -> Command:
    key = AttemptKey(JOB, "Load", 3, Attempt(1))
    return commands.LoseAttempts(lost=(LostAttempt(key, "w1 was silent for 17.5 s"),))


def test_each_thing_that_happens_is_one_line_with_its_reason() -> None:
    refill = Assignment(share=3, attempt=Attempt(2), node="w2", boot="b", slot=0, process=0)
    lines, told = logged(
        commands.LoseWorkers(workers=(("w1", "b1"),)),
        loss(),
        commands.RefillShares(job=JOB, workflow="Load", assignments=(refill,)),
        commands.StopJob(job=JOB, kind="cancelled", reason="cancelled by ann"),
        commands.StopJob(job=JOB, kind="timeout", reason="it ran for 60 s"),
        commands.FinishJob(job=JOB, status="timeout", reason="it ran for 60 s"),
    )
    assert lines == [
        ("worker_lost", {"worker": "w1", "worker_boot": "b1", "reason": "silent for too long"}),
        ("share_lost", SHARE | {"reason": "w1 was silent for 17.5 s"}),
        (
            "share_refilled",
            SHARE | {"attempt": 2, "worker": "w2", "reason": "its former attempt was lost"},
        ),
        ("job_stopped", {"job": JOB, "kind": "cancelled", "reason": "cancelled by ann"}),
        ("job_timeout", {"job": JOB, "reason": "it ran for 60 s"}),
        ("job_ended", {"job": JOB, "status": "timeout", "reason": "it ran for 60 s"}),
    ]
    for event in ("worker_lost", "share_lost", "share_refilled", "job_timeout", "job_ended"):
        assert f'squall_job_events_total{{event="{event}"}} 1' in told


def test_shares_that_ended_early_for_one_reason_are_one_line() -> None:
    def ended(share: int, cut: str) -> RecordFacts:
        return RecordFacts(key=AttemptKey(JOB, "Load", share, Attempt(1)), cut=cut)

    ends = [ended(0, ""), ended(1, "killed by SIGKILL"), ended(2, "lease ended")]
    many = [ended(share, "cancelled by ann") for share in range(3, 33)]
    lines, _ = logged(commands.EndAttempts(ended=(*ends, *many)))
    assert [event for event, _ in lines] == ["shares_ended_early"] * 3
    assert [(each["attempts"], each["reason"]) for _, each in lines[:2]] == [
        ("1#1", "killed by SIGKILL"),
        ("2#1", "lease ended"),
    ]
    assert lines[2][1]["attempts"].endswith("22#1 and 10 more")


def test_what_changed_nothing_is_neither_logged_nor_counted() -> None:
    for outcome in (Accepted(job=JOB, changed=False), Rejected(text="no job g-7")):
        lines, told = logged(loss(), outcome=outcome)
        assert lines == []
        assert 'squall_job_events_total{event="share_lost"} 0' in told
