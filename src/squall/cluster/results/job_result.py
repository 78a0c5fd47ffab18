"""The result of a job as one blob, and its conversion to the outcome that reports are made from.

A result holds the same numbers as a local run: the reports of every window, summed over shares
and attempts, figures of each process, first failures, losses, and the judgement that the manager
made once. `outcome_of` converts it to the `RunOutcome` of a local run, so that summary, files and
exit codes come from the same code. Nothing here judges.
"""

from __future__ import annotations

import zlib
from datetime import UTC, datetime

import msgspec

from squall.api.errors import SquallError
from squall.engine.outcome import (
    DatacenterOutcome,
    Loss,
    ProcessInfo,
    RunInfo,
    RunOutcome,
    RunStatus,
    WorkflowOutcome,
)
from squall.stats.manifest import FileManifest
from squall.stats.reports import ErrorSample, WindowReport
from squall.stats.thresholds.judge import ThresholdResult
from squall.stats.totals.generator_health_summary import HealthSummary, fill_health
from squall.stats.totals.run import RunStats
from squall.stats.totals.windows import LoadWindow, RowWindow, Series
from squall.stats.verdict import Verdict

RESULT_MAX_BYTES = 256 * 1024 * 1024
"""The limit of an unpacked result; a day of twenty steps takes a tenth of it."""
MAGIC = b"SQR1"


class ResultBroken(SquallError):
    """This version cannot read the result."""


class ResultInfo(msgspec.Struct, kw_only=True):
    squall: str = ""
    python: str = ""
    command: tuple[str, ...] = ()
    git: str = ""
    seed: int = 0
    tags: dict[str, str] = {}
    cores: int = 0
    os: str = ""
    memory_mb: int = 0
    started_at: float = 0.0
    warmup_s: float = 0.0


class JobResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    job: str
    state: str
    """The terminal `JobState`."""
    status: RunStatus
    manifest: FileManifest
    info: ResultInfo
    elapsed_s: float
    workflows: list[WorkflowOutcome]
    processes: list[ProcessInfo] = []
    thresholds: list[ThresholdResult] = []
    verdict: Verdict = Verdict()
    losses: list[Loss] = []
    notes: list[str] = []
    interrupted: bool = False
    aborted_by: str = ""
    reason: str = ""
    width_s: int = 1
    reports: list[WindowReport] = []
    """One for each workflow and window, summed over all shares."""
    generator: HealthSummary = HealthSummary()
    errors: list[ErrorSample] = []
    missing_starts: dict[str, int] = {}
    """Planned starts that are in no report, by workflow."""
    refusal: str = ""
    refusal_code: int = 0
    datacenters: list[DatacenterResult] = []
    """The parts of a job that several datacenters ran, in their order."""


class DatacenterResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The part of one datacenter."""

    name: str
    part: float
    """Its share of the load, from 0 to 1."""
    tries: int = 1
    state: str
    """The terminal state of its job, or `lost`."""
    later_s: float = 0.0
    """How long after the first datacenter it began, by the clocks of the datacenters."""
    result: JobResult
    """Without what the whole has anyway: errors and the health of processes."""


def encode_result(result: JobResult) -> bytes:
    return MAGIC + zlib.compress(msgspec.msgpack.encode(result), 6)


def decode_result(data: bytes) -> JobResult:
    try:
        if not data.startswith(MAGIC):
            raise ResultBroken("this is not the result of a job")
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(data[len(MAGIC) :], RESULT_MAX_BYTES)
        if not unpacker.eof:
            raise ResultBroken("the result of the job is damaged or too large")
        return msgspec.msgpack.decode(content, type=JobResult)
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ResultBroken(f"the result of the job cannot be read: {error}") from None


def outcome_of(result: JobResult) -> RunOutcome:
    info = result.info
    return RunOutcome(
        manifest=result.manifest,
        stats=stats_of(result),
        thresholds=list(result.thresholds),
        verdict=result.verdict,
        status=result.status,
        workflows=list(result.workflows),
        processes=list(result.processes),
        info=RunInfo(
            id=result.job,
            squall=info.squall,
            python=info.python,
            command=info.command,
            git=info.git,
            seed=info.seed,
            tags=dict(info.tags),
            cores=info.cores,
            os=info.os,
            memory_mb=info.memory_mb,
            started_at=datetime.fromtimestamp(info.started_at, UTC),
            warmup_s=info.warmup_s,
        ),
        elapsed_s=result.elapsed_s,
        interrupted=result.interrupted,
        aborted_by=result.aborted_by,
        losses=list(result.losses),
        notes=list(result.notes),
        datacenters=[
            DatacenterOutcome(
                name=each.name,
                part=each.part,
                tries=each.tries,
                state=each.state,
                reason=each.result.reason,
                stats=stats_of(each.result),
                verdict=each.result.verdict,
                losses=list(each.result.losses),
                elapsed_s=each.result.elapsed_s,
                later_s=each.later_s,
            )
            for each in result.datacenters
        ],
    )


def stats_of(result: JobResult) -> RunStats:
    """The statistics of the whole run, from the stored reports."""
    stats = RunStats(result.manifest, result.info.warmup_s)
    for outcome in result.workflows:
        stats.workflows[outcome.name].started_at_s = outcome.started_at_s
    fill_health(stats.health, result.generator)
    for report in (*result.reports, *result.errors):
        stats.add(report)
    close(stats, result)
    return stats


def close(stats: RunStats, result: JobResult) -> None:
    """Sets what is known only at the end: lengths, starts that are in no report, widths."""
    for outcome in result.workflows:
        workflow = stats.workflows[outcome.name]
        workflow.elapsed_s = outcome.elapsed_s
        workflow.starts.planned += result.missing_starts.get(outcome.name, 0)
        for series in (workflow.windows, workflow.iteration.windows):
            _widen(series, result.width_s)
        for row in workflow.rows.values():
            _widen(row.windows, result.width_s)


def _widen(series: Series[LoadWindow] | Series[RowWindow], width_s: int) -> None:
    while series.width_s < width_s:
        series.halve()
