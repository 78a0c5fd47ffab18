"""The parts of datacenters in the results document: written from an outcome, and read back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from squall.engine.outcome import DatacenterOutcome
from squall.reporting.document.model import DatacenterDoc, RowDoc
from squall.reporting.document.rows import row_entry
from squall.stats.manifest import ITERATION, FileManifest, StepManifest, WorkflowManifest
from squall.stats.reports import RequestsDelta
from squall.stats.totals.run import RunStats
from squall.stats.totals.step_rows import RowStats
from squall.stats.verdict import Verdict

_REQUESTS = ("sent", "answered", "failed", "bytes_sent", "bytes_received")


def datacenter_entry(datacenter: DatacenterOutcome) -> dict[str, Any]:
    workflows = datacenter.stats.workflows.values()
    return {
        "name": datacenter.name,
        "part": round(datacenter.part, 6),
        "tries": datacenter.tries,
        "state": datacenter.state,
        "reason": datacenter.reason or None,
        "later_s": round(datacenter.later_s, 3),
        "elapsed_s": round(datacenter.elapsed_s, 6),
        "verdict": {
            "state": datacenter.verdict.state,
            "reasons": list(datacenter.verdict.reasons),
        },
        "requests": {
            name: sum(getattr(workflow.requests, name) for workflow in workflows)
            for name in _REQUESTS
        },
        "steps": [
            {"workflow": workflow.name, **row_entry(row, workflow.rated_s, [])}
            for workflow in workflows
            if workflow.last_second >= 0
            for row in (*workflow.rows.values(), workflow.iteration)
        ],
        "losses": [asdict(loss) for loss in datacenter.losses],
    }


def datacenter_outcome(
    entry: DatacenterDoc,
    manifest: FileManifest,
    warmup_s: float,
    fill_row: Callable[[RowStats, RowDoc], None],
) -> DatacenterOutcome:
    """`manifest` is that of the whole run. The counts of requests are those of all workflows
    together, under the first one."""
    own: dict[str, list[RowDoc]] = {}
    for row in entry.steps:
        own.setdefault(row.workflow, []).append(row)
    workflows = [
        WorkflowManifest(
            name=workflow.name,
            is_test=workflow.is_test,
            profile=workflow.profile,
            steps=[
                StepManifest(name=row.name, protocol=row.protocol or "http")
                for row in own.get(workflow.name, ())
                if row.name != ITERATION
            ],
        )
        for workflow in manifest.workflows
    ]
    stats = RunStats(FileManifest(path=manifest.path, workflows=workflows), warmup_s)
    for name, rows in own.items():
        workflow = stats.workflows.get(name)
        if workflow is None:
            continue
        for row in rows:
            filled = workflow.iteration if row.name == ITERATION else workflow.rows[row.name]
            fill_row(filled, row)
            if row.rps and row.count:
                # The time that its rates were computed with.
                workflow.elapsed_s = row.count / row.rps + workflow.skipped_s
            seconds = len(row.windows.count) * row.windows.every_s
            workflow.last_second = max(workflow.last_second, seconds - 1)
    if workflows:
        requests = {name: getattr(entry.requests, name) for name in _REQUESTS}
        stats.workflows[workflows[0].name].requests = RequestsDelta(**requests)
    return DatacenterOutcome(
        name=entry.name,
        part=entry.part,
        tries=entry.tries,
        state=entry.state,
        reason=entry.reason or "",
        stats=stats,
        verdict=Verdict(state=entry.verdict.state, reasons=list(entry.verdict.reasons)),
        losses=list(entry.losses),
        elapsed_s=entry.elapsed_s,
        later_s=entry.later_s,
    )
