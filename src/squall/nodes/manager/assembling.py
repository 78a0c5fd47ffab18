"""Adds up the stored records of a job for its result, in the memory of one record.

Each is read, added to the sums and let go. Between two of them others have their turn: a
job of thousands of shares takes minutes to add up, and a manager that stood still for so
long would be taken for dead.
"""

from __future__ import annotations

from squall.nodes.datacenter.machine import Datacenter
from squall.nodes.datacenter.records import AttemptFacts
from squall.nodes.identity import AttemptKey, JobId
from squall.nodes.manager.transfers import Transfers
from squall.nodes.manager.views_parts import fate_of, fitted_manifest, record_digests
from squall.nodes.results.gathering import Gathering, gist
from squall.runtime.interfaces import Clock
from squall.stats.record import AttemptRecord
from squall.stats.reports import HealthReport

Attempt = tuple[AttemptKey, AttemptFacts]


class Assembling:
    """The records of one job. `gists` are by digest; a record that cannot be read has none
    and counts as nothing."""

    def __init__(self, machine: Datacenter, transfers: Transfers, clock: Clock, job: JobId) -> None:
        self._machine = machine
        self._transfers = transfers
        self._clock = clock
        self._job = job
        self._width_s = 1
        self.gists: dict[str, AttemptRecord] = {}

    async def gathered(self) -> Gathering:
        """The sums of what the log names when this returns. A record that arrives while
        others are added takes the place of one that was added: then all over again."""
        while True:
            digests = self._digests()
            found = await self._added()
            if found is not None and digests == self._digests():
                return found

    def _digests(self) -> list[str]:
        tables = self._machine.tables
        return list(record_digests(tables, tables.jobs[self._job]))

    async def _added(self) -> Gathering | None:
        """None: a record has wider windows than those before it, so that all have to be
        added in windows of that width. In a long run all have, so it is mostly the first."""
        tables = self._machine.tables
        job = tables.jobs[self._job]
        found = Gathering(fitted_manifest(job), job.submission.options.warmup_s, self._width_s)
        attempts = list(tables.attempts_of(self._job))
        healths: dict[int, list[Attempt]] = {}
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

    async def _health(self, attempt: Attempt) -> list[HealthReport]:
        """What another share of the same process tells of it."""
        record = await self._counted(attempt)
        return record.health if record is not None else []

    async def _counted(self, attempt: Attempt) -> AttemptRecord | None:
        key, facts = attempt
        digest = facts.facts.digest if facts.facts is not None else ""
        if not digest:
            return None
        # Reading, and adding what was read before: a turn for others after each.
        await self._clock.sleep(0.0)
        record = await self._transfers.record(digest)
        if record is None:
            return None
        self.gists[digest] = gist(record)
        await self._clock.sleep(0.0)
        tables = self._machine.tables
        fate = fate_of(tables, tables.jobs[self._job], key, facts, record)
        return record if fate != "dropped" else None
