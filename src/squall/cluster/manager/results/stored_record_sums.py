"""Sums the stored records of a job for its result, with one record in memory at a time.

A job of thousands of shares takes minutes to sum. Between two records other tasks get a turn:
a manager whose loop stood still for so long would be taken for dead.
"""

from __future__ import annotations

from squall.cluster.datacenter.records import AttemptFacts
from squall.cluster.datacenter.state_machine import Datacenter
from squall.cluster.group.blob_transfers import Transfers
from squall.cluster.manager.results.committed_parts import fate_of, fitted_manifest, record_digests
from squall.cluster.protocol.job_keys import AttemptKey, JobId
from squall.cluster.results.record_sums import RecordSums, gist
from squall.runtime.interfaces import Clock
from squall.stats.attempt_record import AttemptRecord
from squall.stats.reports import HealthReport

KeyedAttempt = tuple[AttemptKey, AttemptFacts]


class StoredRecordSums:
    """Sums the records of one job. `gists` holds the gist of each record by digest; a record
    that cannot be read has none and counts as nothing."""

    def __init__(
        self,
        machine: Datacenter,
        transfers: Transfers,
        clock: Clock,
        job: JobId,
        workflow: str = "",
    ) -> None:
        """With `workflow`, only its records."""
        self._machine = machine
        self._transfers = transfers
        self._clock = clock
        self._job = job
        self._workflow = workflow
        self._width_s = 1
        self.gists: dict[str, AttemptRecord] = {}

    async def gathered(self) -> RecordSums:
        """The sums of the records that the log names when this returns."""
        while True:
            digests = self._digests()
            found = await self._added()
            # A final record that was committed meanwhile replaces a cut one that is in the
            # sums already (R8): start again.
            if found is not None and digests == self._digests():
                return found

    def _digests(self) -> list[str]:
        tables = self._machine.tables
        return list(record_digests(tables, tables.jobs[self._job], self._workflow))

    async def _added(self) -> RecordSums | None:
        """Returns None when a record has wider windows than those before it: all have to be
        summed in windows of that width. In a long run all records are wide, so this happens
        at the first one."""
        tables = self._machine.tables
        job = tables.jobs[self._job]
        manifest = fitted_manifest(job, self._workflow)
        found = RecordSums(manifest, job.submission.options.warmup_s, self._width_s)
        attempts = [
            each
            for each in tables.attempts_of(self._job)
            if self._workflow in ("", each[0].workflow)
        ]
        healths: dict[int, list[KeyedAttempt]] = {}
        for attempt in attempts:
            healths.setdefault(attempt[1].process, []).append(attempt)
        for attempt in attempts:
            record = await self._counted(attempt)
            if record is None:
                continue
            if record.width_s > self._width_s:
                self._width_s = record.width_s
                return None
            found.add(record)
            same = healths.pop(attempt[1].process, [])
            if same:
                others = [await self._health(each) for each in same if each != attempt]
                found.add_health([record.health, *others])
        for _ in found.settle():
            await self._clock.sleep(0.0)
        return found

    async def _health(self, attempt: KeyedAttempt) -> list[HealthReport]:
        """The health reports of the same process, as another share of it has them."""
        record = await self._counted(attempt)
        return record.health if record is not None else []

    async def _counted(self, attempt: KeyedAttempt) -> AttemptRecord | None:
        key, facts = attempt
        digest = facts.facts.digest if facts.facts is not None else ""
        if not digest:
            return None
        # A turn for other tasks before and after: reading and summing both take a while.
        await self._clock.sleep(0.0)
        record = await self._transfers.record(digest)
        if record is None:
            return None
        self.gists[digest] = gist(record)
        await self._clock.sleep(0.0)
        tables = self._machine.tables
        fate = fate_of(tables, tables.jobs[self._job], key, facts, record)
        return record if fate != "dropped" else None
