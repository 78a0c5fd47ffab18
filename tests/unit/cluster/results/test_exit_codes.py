"""One table of exit codes: for a run on one machine, and for a job of a cluster or a store."""

from __future__ import annotations

import pytest

from squall.api.errors import ExitCode
from squall.cluster.results.job_result import (
    JobResult,
    ResultInfo,
    decode_result,
    encode_result,
    outcome_of,
)
from squall.engine.outcome import RunStatus, WorkflowOutcome
from squall.engine.run_options import RunOptions
from squall.reporting.document.build import build_document
from squall.reporting.document.rebuild import rebuild
from squall.stats.snapshot import VerdictState
from squall.stats.thresholds.judge import ThresholdResult
from squall.stats.verdict import Verdict
from tests.unit.cluster.results.lab.records import local_run, manifest

TABLE: list[tuple[RunStatus, VerdictState, bool, str, ExitCode]] = [
    # status, verdict, whether its thresholds hold, the one that aborted it
    ("completed", "VALID", True, "", ExitCode.PASSED),
    ("completed", "DEGRADED", True, "", ExitCode.PASSED),
    ("completed", "VALID", False, "", ExitCode.THRESHOLDS),
    ("completed", "INVALID", True, "", ExitCode.INVALID),
    ("completed", "INVALID", False, "", ExitCode.INVALID),
    ("completed", "VALID", False, "errors < 1%", ExitCode.THRESHOLDS),
    ("completed", "INVALID", False, "errors < 1%", ExitCode.THRESHOLDS),
    ("partial", "VALID", True, "", ExitCode.AUTHOR),
    ("partial", "VALID", False, "", ExitCode.AUTHOR),
    ("failed", "VALID", True, "", ExitCode.AUTHOR),
    ("failed", "INVALID", True, "", ExitCode.INVALID),
    ("timeout", "INVALID", True, "", ExitCode.INVALID),
    ("timeout", "VALID", True, "", ExitCode.INVALID),
    ("timeout", "VALID", False, "", ExitCode.INVALID),
    ("interrupted", "VALID", True, "", ExitCode.INTERRUPTED),
    ("interrupted", "INVALID", False, "", ExitCode.INTERRUPTED),
]


@pytest.mark.parametrize(("status", "verdict", "holds", "aborted_by", "code"), TABLE)
def test_the_exit_code_is_the_same_everywhere(
    status: RunStatus, verdict: VerdictState, holds: bool, aborted_by: str, code: ExitCode
) -> None:
    file = manifest()
    thresholds = [
        ThresholdResult(expression="errors < 1%", passed=holds, value=0.5, unit="%", samples=9)
    ]
    local = local_run(file, RunOptions(file="shop.py"), [], 9.7)
    local.status, local.verdict, local.thresholds = status, Verdict(state=verdict), thresholds
    local.interrupted, local.aborted_by = status == "interrupted", aborted_by
    job = JobResult(
        job="k3f9-7",
        state="completed",
        status=status,
        manifest=file,
        info=ResultInfo(),
        elapsed_s=9.7,
        workflows=[WorkflowOutcome(name="Shop", status="completed")],
        thresholds=thresholds,
        verdict=Verdict(state=verdict),
        interrupted=status == "interrupted",
        aborted_by=aborted_by,
    )
    remote = outcome_of(decode_result(encode_result(job)))
    assert local.exit_code == remote.exit_code == code
    assert rebuild(build_document(local)).exit_code == code
    assert local.passed == remote.passed == (status == "completed" and holds)
