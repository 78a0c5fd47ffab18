"""The reports of a job summed over its shares, for a receiver above this datacenter.

A job that is one datacenter's part is shown and judged where the parts come together: by a gate,
or by the client that split it. The receiver asks with a cursor and gets what is new, so it adds
each report once; a receiver that has nothing gets all, in several answers. The sums are volatile
like all live numbers: another leader starts another stream.
"""

from __future__ import annotations

import msgspec

from squall.cluster.group.telemetry.report_store import ReportMemory, RunningRecord
from squall.cluster.protocol.encoded_reports import TimedReport, encode_report
from squall.cluster.protocol.gates.job_reports import JobReports, ReportCursor, WorkflowReports
from squall.stats.attempt_record import AttemptRecord
from squall.stats.reports import ErrorSample, WindowReport
from squall.stats.totals.run import RunStats

ANSWER_BYTES = 1024 * 1024
"""Reports in one answer: a quarter of the limit of a bulk message."""
ERRORS_PER_ANSWER = 100


class SummedReports:
    """The sums of one job. `stream` names this leader's numbering."""

    def __init__(self, stream: str, memory: ReportMemory, warmup_s: float) -> None:
        self.stream = stream
        self._memory = memory
        self._warmup_s = warmup_s
        self._workflows: dict[str, RunningRecord] = {}

    def add(self, report: WindowReport) -> None:
        """Adds one window over all shares; a late share adds to the same window again."""
        found = self._workflows.get(report.workflow)
        if found is None:
            head = AttemptRecord(workflow=report.workflow, share=0, attempt=1, worker="")
            found = RunningRecord(head, self._memory, warmup_s=self._warmup_s)
            self._workflows[report.workflow] = found
        found.add_window(TimedReport(report.window, encode_report(report)))

    def after(
        self, cursor: ReportCursor, stats: RunStats, *, elapsed_s: float, workers: int
    ) -> JobReports:
        """What a receiver with this cursor lacks. `stats` are the live statistics of the job."""
        if cursor.stream != self.stream:
            cursor = ReportCursor()
        errors = list(stats.errors.values())
        new = errors[cursor.errors : cursor.errors + ERRORS_PER_ANSWER]
        upto = cursor.errors + len(new)
        more = upto < len(errors)
        found: list[WorkflowReports] = []
        left = ANSWER_BYTES
        for workflow in stats.workflows.values():
            if workflow.last_second < 0:
                continue
            after = cursor.windows.get(workflow.name, 0)
            record = self._workflows.get(workflow.name)
            if record is not None and record.is_closed:
                record = None
            reports: list[bytes] = []
            last = after
            if record is not None and left > 0:
                last, reports = record.after(after, left)
                left -= sum(map(len, reports))
            more = more or (record is not None and last < record.sequence)
            found.append(
                WorkflowReports(
                    name=workflow.name,
                    started_at_s=workflow.started_at_s,
                    elapsed_s=workflow.elapsed_s,
                    adjusted_per_s=workflow.adjusted_per_s,
                    paused=workflow.paused,
                    upto=last,
                    reports=[msgspec.Raw(data) for data in reports],
                )
            )
        return JobReports(
            stream=self.stream,
            elapsed_s=elapsed_s,
            workers=workers,
            workflows=found,
            errors=[_bare(error) for error in new],
            errors_upto=upto,
            more=more,
        )

    def close(self) -> None:
        for record in self._workflows.values():
            record.close()


def _bare(error: ErrorSample) -> ErrorSample:
    """Only what a live line shows: the result has the rest, without secrets."""
    return msgspec.structs.replace(error, traceback=None, request="", body="")
