"""The follower of a job sees that shares are silent before they are declared lost."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from squall.cli.cluster.jobs import status_lines
from squall.cluster.datacenter.records import JobRecord
from squall.cluster.group.telemetry.job_leader import JobLeader
from squall.cluster.group.telemetry.silent_shares import SILENT_S
from squall.cluster.manager.clients.job_views import job_view, silent_lines, why
from squall.cluster.manager.lost_shares import lost_lines
from squall.cluster.protocol.encoded_reports import raw
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import StreamSnapshot, TelemetryPart
from squall.stats.reports import RowDelta, StartsDelta, WindowReport
from squall.stats.snapshot import Snapshot
from tests.fakes.datacenter import Bench, workflow


class Watched:
    """A job on two workers and its leader; a live worker reports each second."""

    def __init__(self, duration_s: float = 60.0) -> None:
        self.bench = Bench(w1=1, w2=1)
        self.job = self.bench.submit(workflow("Load", vus=2, duration_s=duration_s))
        self.bench.until(lambda: self.bench.wf(self.job, "Load").started_ms > 0)
        # A second is shown a moment after its end.
        self.bench.run(0.5)
        self.unlinked: set[str] = set()
        self.lost_after_s = 0.0
        self.leader = self.led()
        self.reports_sent: dict[str, int] = {}

    def led(self) -> JobLeader[JobRecord]:
        return JobLeader(
            self.bench.machine,
            cast("Any", Nobody()),
            group_ms=lambda: self.bench.group_ms,
            read_record=cast("Any", None),
            options_of=lambda job: job.submission.options,
            on_abort=lambda job, text: None,
            has_link=lambda node, boot: node not in self.unlinked,
            lost_after_s=lambda: self.lost_after_s,
            lost_lines=lambda job: lost_lines(self.bench.machine.tables, job),
        )

    def second(self) -> Snapshot:
        self.bench.run(1.0)
        for key, attempt in self.bench.machine.tables.live_of(self.job):
            if self.bench.workers[attempt.node].alive:
                name = f"{key.share}.{key.attempt}"
                before = self.reports_sent.get(name, 0)
                self.reports_sent[name] = before + 1
                report = raw(window(before, key.share))
                part = TelemetryPart(key=key, after=before, upto=before + 1, reports=[report])
                self.leader.take([part], attempt.node)
        self.leader.led(self.bench.job(self.job))
        self.leader.tick()
        _, items, _ = self.leader.stream(self.bench.job(self.job)).after(-1)
        assert items and isinstance(items[0], StreamSnapshot)
        return items[0].snapshot

    def seconds(self, count: int) -> Snapshot:
        return [self.second() for _ in range(count)][-1]


class Nobody:
    def start(self, name: str, work: Any, group: str = "") -> None:
        work.close()


def window(second: int, share: int) -> WindowReport:
    return WindowReport(
        workflow="Load",
        share=share,
        window=second,
        rows=[],
        iteration=RowDelta("iteration", ""),
        starts=StartsDelta(planned=1, made=1),
        users=1,
        busy=1,
    )


def test_while_all_shares_are_heard_the_moment_is_valid_and_says_where_it_runs() -> None:
    watched = Watched()
    moment = watched.seconds(6)
    assert (moment.verdict, moment.reasons, moment.losses) == ("VALID", (), ())
    assert moment.where == "2 workers"


def test_a_share_that_is_not_heard_is_told_with_its_seconds_before_it_is_lost() -> None:
    watched = Watched()
    watched.seconds(3)
    watched.bench.workers["w2"].kill()
    states = [watched.second() for _ in range(5)]
    first = next(moment for moment in states if moment.verdict != "VALID")
    assert first.verdict == "DEGRADED"
    assert first.reasons == ("w2 silent for 4 s: 1 share is not heard",)
    assert first.headline == "w2 silent for 4 s"
    assert first.losses == ("w2 silent for 4 s, 1 share",)
    assert states[0].verdict == "VALID", f"not before {SILENT_S} s"
    assert states[-1].reasons == ("w2 silent for 5 s: 1 share is not heard",)


def test_a_worker_whose_link_is_gone_is_missed_in_the_next_second_and_awaited_until_then() -> None:
    watched = Watched()
    watched.lost_after_s = 17.5
    watched.seconds(3)
    watched.bench.workers["w2"].kill()
    watched.unlinked.add("w2")
    moment = watched.second()
    assert moment.verdict == "DEGRADED"
    waits = "given up in about 17 s"
    assert moment.reasons == (f"w2 silent for 1 s: 1 share is not heard, {waits}",)
    assert moment.losses == (f"w2 silent for 1 s, 1 share, {waits}",)


def test_a_link_that_is_gone_says_nothing_of_a_worker_that_reports() -> None:
    watched = Watched()
    watched.unlinked.add("w2")
    assert watched.seconds(3).verdict == "VALID"


def test_when_it_is_lost_the_silence_becomes_a_loss_and_its_refill_is_named() -> None:
    watched = Watched()
    watched.seconds(2)
    watched.bench.workers["w2"].kill()
    moment = watched.seconds(9)
    assert not any("silent" in reason for reason in moment.reasons)
    assert "1 share lost" in moment.reasons
    (line,) = moment.losses
    # Its last report is of the second second; the loss was declared long after that.
    assert line == "w2 lost, last heard at 2.1 s, 1 share, refilled by w1"


def test_a_share_that_is_heard_again_is_not_silent_any_more() -> None:
    watched = Watched()
    watched.seconds(2)
    watched.bench.workers["w2"].alive = False
    assert watched.seconds(4).verdict == "DEGRADED"
    watched.bench.workers["w2"].alive = True
    assert watched.second().verdict == "VALID"


def test_who_begins_to_lead_a_job_gives_its_shares_the_time_to_tell() -> None:
    watched = Watched()
    watched.seconds(20)
    watched.leader = watched.led()
    watched.bench.workers["w2"].alive = False
    watched.reports_sent.clear()
    assert watched.seconds(2).verdict == "VALID"
    assert watched.seconds(3).headline == "w2 silent for 4 s"


def test_several_silent_workers_are_one_reason() -> None:
    watched = Watched()
    watched.seconds(2)
    for worker in watched.bench.workers.values():
        worker.alive = False
    moment = watched.seconds(5)
    assert moment.reasons == ("2 workers silent for 5 s: 2 shares are not heard",)
    assert len(moment.losses) == 2


def test_status_and_why_name_the_worker_that_is_not_heard() -> None:
    bench = Bench(w1=1, w2=1)
    job: JobId = bench.submit(workflow("Load", vus=2, duration_s=60.0))
    bench.until(lambda: bench.wf(job, "Load").started_ms > 0)
    facts = bench.director.state
    assert silent_lines(facts, bench.job(job)) == []
    bench.workers["w2"].kill()
    bench.run(4.0)
    (line,) = silent_lines(facts, bench.job(job))
    assert line.startswith("w2 runs 1 share of it and was last heard ") and "are lost" in line
    assert line in why(facts, bench.job(job))
    view = job_view(bench.machine.tables, bench.job(job), bench.group_ms, facts)
    assert line in status_lines(msgspec.structs.replace(view, silent=[line]))
