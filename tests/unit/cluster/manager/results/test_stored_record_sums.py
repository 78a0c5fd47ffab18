"""The stored records of a job are added one after the other, and every one counts once."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest

from squall.cluster.group.blob_transfers import Transfers
from squall.cluster.manager.results.assembler import ResultAssembler
from squall.cluster.manager.results.committed_parts import fitted_manifest, job_parts
from squall.cluster.manager.results.stored_record_sums import StoredRecordSums
from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.results.assemble import assemble
from squall.engine.run_options import RunOptions
from squall.stats.attempt_record import AttemptRecord, RecordEnd
from squall.stats.histogram import Histogram
from squall.stats.reports import HealthReport, RequestsDelta, RowDelta, WindowReport
from tests.fakes.datacenter import Bench, workflow
from tests.fakes.wire import FakeClock

SECONDS = 5


class Stored:
    """The records of a job by digest; how often each was read."""

    def __init__(self, bench: Bench, job: JobId, width_s: dict[int, int] | None = None) -> None:
        self.records: dict[str, AttemptRecord] = {}
        self.reads: dict[str, int] = {}
        for key, facts in bench.machine.tables.attempts_of(job):
            if facts.facts is not None:
                width = (width_s or {}).get(key.share, 1)
                self.records[facts.facts.digest] = _record(key, facts.process, width)

    async def record(self, digest: str) -> AttemptRecord | None:
        self.reads[digest] = self.reads.get(digest, 0) + 1
        return self.records.get(digest)


def _record(key: AttemptKey, process: int, width_s: int) -> AttemptRecord:
    return AttemptRecord(
        workflow=key.workflow,
        share=key.share,
        attempt=key.attempt,
        worker="w",
        silent_from_s=float(SECONDS),
        width_s=width_s,
        reports=[
            WindowReport(
                key.workflow, key.share, second, [], RowDelta("iteration"),
                requests=RequestsDelta(sent=10, answered=10), users=1 + second % 2,
            )
            for second in range(0, SECONDS, width_s)
        ],
        health=[
            HealthReport(process, second + 1.0, 0.5, Histogram.from_seconds([0.001]).to_data())
            for second in range(SECONDS)
        ],
        end=RecordEnd(elapsed_s=float(SECONDS)),
    )  # fmt: skip


@pytest.fixture
def over() -> tuple[Bench, JobId]:
    """A job of three workflows on two cores whose attempts have all ended: each core runs
    one of the first two and a share of the third."""
    bench = Bench(w1=1, w2=1)
    names = ("A", "B", "C")
    job = bench.submit(*[workflow(name, vus=2, duration_s=float(SECONDS)) for name in names])
    bench.hold = lambda effect: type(effect).__name__ == "AssembleResult"
    bench.until(lambda: bool(bench.held_effects))
    return bench, job


def result_of(bench: Bench, job: JobId, stored: Stored) -> Any:
    async def main() -> Any:
        records = StoredRecordSums(bench.machine, cast(Transfers, stored), FakeClock(), job)
        gathered = await records.gathered()
        record = bench.job(job)
        tables = bench.machine.tables
        found = job_parts(tables, record, "completed", records.gists, bench.group_ms)
        manifest = fitted_manifest(record)
        return assemble(manifest, RunOptions(file="file.py"), found, gathered=gathered)

    return asyncio.run(main())


def sent(result: Any) -> int:
    return sum(report.requests.sent for report in result.reports)


def test_every_record_counts_once_and_processes_too(over: tuple[Bench, JobId]) -> None:
    bench, job = over
    stored = Stored(bench, job)
    assert len(stored.records) == 4
    result = result_of(bench, job, stored)
    assert sent(result) == 4 * SECONDS * 10
    processes = {facts.process for _, facts in bench.machine.tables.attempts_of(job)}
    assert processes == {0, 1}
    told = {each.index: each.seconds for each in result.generator.processes}
    assert told == {process: pytest.approx(SECONDS) for process in processes}
    assert result.verdict.state == "VALID"


def test_wider_windows_of_a_later_record_widen_all(over: tuple[Bench, JobId]) -> None:
    bench, job = over
    stored = Stored(bench, job, width_s={1: 2})
    result = result_of(bench, job, stored)
    narrow = {each.window for each in result.reports}
    assert result.width_s == 2 and narrow == {0, 2, 4}
    # Three records of single seconds and one of double ones.
    assert sent(result) == (3 * SECONDS + 3) * 10
    # Of the users of a share the most of a window, over shares the sum.
    first = {each.workflow: each.users for each in result.reports if each.window == 0}
    assert first == {"A": 2, "B": 2, "C": 2 + 1}


def test_a_record_that_comes_late_is_the_one_that_counts(over: tuple[Bench, JobId]) -> None:
    bench, job = over
    stored = Stored(bench, job)
    tables = bench.machine.tables
    first, facts = next(iter(tables.attempts_of(job)))
    assert facts.facts is not None
    late = _record(first, facts.process, 1)
    late.reports = late.reports[:2]
    plain = stored.record

    async def record(digest: str) -> AttemptRecord | None:
        found = await plain(digest)
        if len(stored.reads) == 4 and "late" not in stored.records:
            stored.records["late"] = late
            _replace_facts(bench, job, first, "late")
        return found

    stored.record = record  # type: ignore[method-assign]
    result = result_of(bench, job, stored)
    assert sent(result) == 3 * SECONDS * 10 + 2 * 10


def _replace_facts(bench: Bench, job: JobId, key: AttemptKey, digest: str) -> None:
    """As the command of a late final record does."""
    tables = bench.machine.tables
    for share in tables.shares_of[job]:
        if (share.workflow, share.share) == (key.workflow, key.share):
            (only,) = tables.attempts[share]
            assert only.facts is not None
            facts = msgspec.structs.replace(only.facts, digest=digest)
            tables.attempts[share] = (msgspec.structs.replace(only, facts=facts),)


def test_a_record_that_cannot_be_read_counts_as_nothing(over: tuple[Bench, JobId]) -> None:
    bench, job = over
    stored = Stored(bench, job)
    del stored.records[next(iter(stored.records))]
    assert sent(result_of(bench, job, stored)) == 3 * SECONDS * 10


def test_the_result_of_one_workflow_has_its_own_records_only(over: tuple[Bench, JobId]) -> None:
    bench, job = over
    stored = Stored(bench, job)
    results = ResultAssembler(
        bench.machine,
        cast(Transfers, stored),
        FakeClock(),
        group_ms=lambda: bench.group_ms,
        options_of=lambda record: record.submission.options,
    )
    whole = asyncio.run(results.job(job, "completed", []))
    each = {name: asyncio.run(results.workflow(job, name)) for name in ("A", "B", "C")}
    # C has two shares, the others one.
    assert {name: sent(result) // (SECONDS * 10) for name, result in each.items()} == {
        "A": 1, "B": 1, "C": 2,
    }  # fmt: skip
    assert sum(map(sent, each.values())) == sent(whole)
    assert [w.name for w in each["C"].workflows] == ["C"]
    assert {w.name for w in each["C"].manifest.workflows} == {"C"}
