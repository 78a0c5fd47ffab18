"""Assembles results on a manager from the committed state and the stored records: the result of a
job, and that of one workflow while its job goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from squall.cluster.datacenter.records import JobRecord
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.group.blob_transfers import Transfers
from squall.cluster.manager.results.committed_parts import fitted_manifest, job_parts
from squall.cluster.manager.results.stored_record_sums import StoredRecordSums
from squall.cluster.protocol.job_keys import JobId
from squall.cluster.protocol.messages import JobState
from squall.cluster.results.assemble import assemble
from squall.cluster.results.job_result import JobResult
from squall.engine.run_options import RunOptions
from squall.runtime.interfaces import Clock
from squall.stats.thresholds.judge import ThresholdResult


class ResultAssembler:
    """Reads the records of a job and makes its result of them."""

    def __init__(
        self,
        machine: Datacenter,
        transfers: Transfers,
        clock: Clock,
        *,
        group_ms: Callable[[], int],
        options_of: Callable[[JobRecord], RunOptions],
    ) -> None:
        self._machine = machine
        self._transfers = transfers
        self._clock = clock
        self._group_ms = group_ms
        self._options_of = options_of

    async def job(
        self, name: JobId, status: JobState, judged: Sequence[ThresholdResult]
    ) -> JobResult:
        """`judged` are the thresholds as the job's leader judged them while the job ran."""
        records = StoredRecordSums(self._machine, self._transfers, self._clock, name)
        gathered = await records.gathered()
        tables = self._machine.tables
        job = tables.jobs[name]
        parts = job_parts(tables, job, status, records.gists, self._group_ms())
        parts.judged = list(judged)
        return assemble(
            fitted_manifest(job),
            job.submission.options,
            parts,
            secrets=self._options_of(job).secrets.values(),
            gathered=gathered,
        )

    async def workflow(self, name: JobId, workflow: str) -> JobResult:
        """The result of a workflow that is over. It has the thresholds of its class; those that
        were given with the job are judged at the end of the job."""
        records = StoredRecordSums(self._machine, self._transfers, self._clock, name, workflow)
        gathered = await records.gathered()
        tables = self._machine.tables
        job = tables.jobs[name]
        parts = job_parts(tables, job, "completed", records.gists, self._group_ms())
        parts.workflows = [each for each in parts.workflows if each.name == workflow]
        parts.attempts = [each for each in parts.attempts if each.workflow == workflow]
        parts.adjustments = [each for each in parts.adjustments if each.workflow in ("", workflow)]
        if any(each.status != "completed" for each in parts.workflows):
            parts.state, parts.reason = "failed", parts.workflows[0].error
        return assemble(
            fitted_manifest(job, workflow),
            msgspec.structs.replace(job.submission.options, thresholds=()),
            parts,
            secrets=self._options_of(job).secrets.values(),
            gathered=gathered,
        )
