"""Records added one at a time give the result that all of them at once give, in the memory
of the result."""

from __future__ import annotations

import gc
import random
import tracemalloc
from typing import Any

import msgspec
import pytest

from squall.cluster.results.assemble import assemble
from squall.cluster.results.job_result import JobResult, decode_result, encode_result, outcome_of
from squall.cluster.results.parts import AttemptPart
from squall.cluster.results.record_sums import RecordSums, gist
from squall.engine.run_options import RunOptions
from squall.reporting.document.build import build_document
from squall.stats.attempt_record import AttemptRecord, RecordEnd
from squall.stats.record_builder import decode_record, encode_record
from squall.stats.report_sums import APART_MAX, over_shares
from squall.stats.reports import Blocked, ErrorSample
from squall.stats.totals.generator_health import HealthStats
from squall.stats.totals.run import MAX_ERROR_SAMPLES
from squall.stats.verdict_settings import VerdictSettings
from tests.unit.cluster.results.lab.records import (
    CLOSED,
    OPEN,
    ended,
    health,
    manifest,
    parts,
    record,
    refilled,
    window,
)

LATENCIES = (0.001, 0.004, 0.02, 0.3)


def made(share: int, rng: random.Random, seconds: int = 12, **fields: Any) -> AttemptRecord:
    def some() -> list[float]:
        return rng.choices(LATENCIES, k=rng.randrange(4))

    reports = [
        window(second, share, some(), some(), users=rng.randrange(9), busy=rng.randrange(9))
        for second in range(seconds)
    ]
    healths = [health(share, second + 1.0, rng.random()) for second in range(seconds)]
    healths[3].blocked = [Blocked("Shop", "pay", "shop.py:3", "sleep", rng.random())]
    return record(share, reports, healths=healths, **fields)


def gathered(attempts: list[AttemptPart], width_s: int = 1, warmup_s: float = 0.0) -> RecordSums:
    found = RecordSums(manifest(), warmup_s, width_s)
    for part in attempts:
        assert part.record is not None
        found.add(part.record)
        found.add_health([part.record.health])
        part.record = gist(part.record)
    return found


@pytest.mark.parametrize("width_s", [1, 4])
def test_the_sums_are_those_of_all_records_at_once(width_s: int) -> None:
    rng = random.Random(7)
    records = [made(share, rng) for share in range(3 * APART_MAX)]
    whole = over_shares([r for each in records for r in each.reports], width_s)
    found = gathered([ended(each) for each in records], width_s)
    for _ in found.settle():
        pass
    sums = found.reports()
    assert [each.window for each in sums] == list(range(0, 12, width_s))
    for one, two in zip(sums, whole, strict=True):
        assert bare(one) == bare(two)


def bare(report: Any) -> Any:
    """Sums of floats differ in their last digit by the order of adding."""
    plain = msgspec.to_builtins(report)
    return rounded(plain)


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 9)
    return [rounded(each) for each in value] if isinstance(value, list) else value


def test_the_figures_of_processes_are_those_of_their_reports() -> None:
    rng = random.Random(8)
    records = [made(share, rng) for share in range(5)]
    known = HealthStats(VerdictSettings(), 2.0)
    reports = [report for each in records for report in each.health]
    for report in sorted(reports, key=lambda each: (each.at_s, each.process)):
        known.add(report)
    options = RunOptions(file="shop.py", warmup_s=2.0)
    attempts = [ended(each) for each in records]
    found = gathered(attempts, warmup_s=2.0)
    result = assemble(manifest(), options, parts(attempts), gathered=found)
    shown = outcome_of(decode_result(encode_result(result))).stats.health
    assert shown.processes.keys() == known.processes.keys()
    for index, process in known.processes.items():
        same = shown.processes[index]
        assert same.lag == process.lag and same.blocked_s == process.blocked_s
        for name in vars(process):
            if not name.startswith("_") and name != "blocked_s":
                assert getattr(same, name) == pytest.approx(getattr(process, name)), name
    assert shown.lag == known.lag
    for one, two in zip(shown.windows, known.windows, strict=True):
        assert (one.cpu, one.cpu_max) == pytest.approx((two.cpu, two.cpu_max))
        assert (one.reports, one.lag_p99_s, one.lag_max_s) == (
            two.reports, two.lag_p99_s, two.lag_max_s,
        )  # fmt: skip


def test_two_shares_of_one_process_tell_of_it_once() -> None:
    twice = [health(0, second + 1.0) for second in range(10)]
    found = RecordSums(manifest(), 0.0, 1)
    found.add_health([twice[:6], twice[2:]])
    (process,) = found.health.processes
    assert process.seconds == pytest.approx(10.0) and process.lag.count == 10


def lossy(profile: Any) -> list[AttemptPart]:
    """One of two shares is lost with requests in flight, and refilled."""
    first = [window(s, 1, [0.007] * 10, users=5, busy=5) for s in range(3)]
    first.append(window(3, 1, [0.01] * 9, [0.2], users=5, busy=4, flying=3))
    found = refilled(first)
    for part in found:
        part.iterations = 100 if profile.model == "iterations" else 0
    return found


@pytest.mark.parametrize("model", ["closed", "open", "iterations"])
def test_losses_are_told_alike_from_the_gist_of_records(model: str) -> None:
    base = OPEN if model == "open" else CLOSED
    profile = msgspec.structs.replace(base, model=model, iterations=200)
    file = manifest(profile, feeds=["user"])
    options = RunOptions(file="shop.py")
    whole = assemble(file, options, parts(lossy(profile)))
    attempts = lossy(profile)
    found = gathered(attempts)
    single = assemble(file, options, parts(attempts), gathered=found)
    assert single.losses and single.losses == whole.losses
    assert single == whole
    assert document(single) == document(whole)


def document(result: JobResult) -> Any:
    return build_document(outcome_of(result))


def test_a_gist_has_no_values_and_nothing_that_grows() -> None:
    whole = made(0, random.Random(1), seconds=400)
    whole.end = RecordEnd(elapsed_s=400.0, values={"token": b"x" * 1000}, cut="stopped")
    small = gist(whole)
    assert small.end is not None and small.end.cut == "stopped"
    assert len(msgspec.msgpack.encode(small)) < 460
    assert len(whole.reports) == 400 and whole.end.values


def test_the_first_failures_of_a_result_are_bounded() -> None:
    attempts: list[AttemptPart] = []
    for share in range(8):
        told = made(share, random.Random(share))
        told.errors = [
            ErrorSample("Shop", "pay", f"reason {n + share}", at_s=float(10 - share))
            for n in range(100)
        ]
        told.errors += [ErrorSample("Shop", "pay", f"{share}-{n}", at_s=1.0) for n in range(100)]
        attempts.append(ended(told))
    result = assemble(manifest(), RunOptions(file="shop.py"), parts(attempts))
    assert len(result.errors) == MAX_ERROR_SAMPLES
    # Each process reports its own first error; the earliest is stored.
    assert next(e.at_s for e in result.errors if e.reason == "reason 50") == 3.0


def test_memory_does_not_grow_with_the_workers() -> None:
    plain = made(0, random.Random(1), seconds=30)
    stored = encode_record(plain)

    def peak_bytes(count: int) -> int:
        gc.collect()
        tracemalloc.start()
        found = RecordSums(manifest(), 0.0, 1)
        for share in range(count):
            told = decode_record(stored)
            told.share = share
            for report in told.reports:
                report.share = share
            for report in told.health:
                report.process = share % 20
            found.add(told)
            found.add_health([told.health])
            gist(told)
        found.reports()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    few, many = peak_bytes(3 * APART_MAX), peak_bytes(9 * APART_MAX)
    assert many < 1.4 * few
