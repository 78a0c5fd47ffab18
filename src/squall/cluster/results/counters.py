"""The counters of reports: of an attempt while it runs, of a job in its result or in a snapshot."""

from __future__ import annotations

from squall.cluster.protocol.messages import Counters
from squall.cluster.results.job_result import JobResult
from squall.stats.manifest import ITERATION
from squall.stats.report_sums import failed_executions
from squall.stats.reports import WindowReport
from squall.stats.snapshot import Snapshot


def counted(before: Counters, report: WindowReport) -> Counters:
    """The counters after one more report."""
    iteration = report.iteration
    ended = sum(outcome.count for outcome in iteration.outcomes) + iteration.interrupted
    return Counters(
        planned=before.planned + report.starts.planned,
        made=before.made + report.starts.made,
        finished=before.finished + ended,
        sent=before.sent + report.requests.sent,
        answered=before.answered + report.requests.answered,
        failed=before.failed + failed_executions(report),
        users=report.users,
        actions=before.actions + sum(row.started for row in report.rows),
    )


def final_counters(result: JobResult) -> dict[str, Counters]:
    """The counters of each workflow of a job that has ended, with its warm-up."""
    found = {workflow.name: Counters() for workflow in result.workflows}
    for report in result.reports:
        found[report.workflow] = counted(found.get(report.workflow, Counters()), report)
    return found


def live_counters(snapshot: Snapshot) -> dict[str, Counters]:
    """The counters of each workflow that has started, without its warm-up."""
    return {
        each.name: Counters(
            planned=each.planned,
            made=each.made,
            finished=each.iterations,
            sent=each.sent,
            answered=each.answered,
            failed=sum(row.failed for row in each.rows if row.name != ITERATION),
            users=each.users,
            actions=sum(row.count for row in each.rows if row.name != ITERATION),
        )
        for each in snapshot.workflows
    }
