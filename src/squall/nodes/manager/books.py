"""What the job's leader knows of a running job: every attempt's record so far, the sums,
the thresholds.

Parts of telemetry may come late, twice or not at all. A part is added only if it begins
where the last one ended; anything else is answered with what is known, and the worker
sends what is missing. So no report counts twice, and totals never fall. All of this is
volatile: a manager that starts anew asks for whole records, and the result of a job is
assembled from records that are committed, never from here.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from squall.engine.books import Books, Notes
from squall.engine.options import RunOptions
from squall.nodes.identity import AttemptKey
from squall.nodes.manager.kept import KeptRecord, Room, packed, window_of
from squall.nodes.messages import TelemetryPart
from squall.stats.manifest import FileManifest
from squall.stats.record import AttemptRecord
from squall.stats.report_sums import over_shares, summed_up
from squall.stats.reports import WindowReport
from squall.stats.snapshot import Snapshot
from squall.stats.threshold_binding import bind_all
from squall.stats.thresholds import ThresholdResult

TOGETHER = 128
"""So many reports are read and added at a time, while they are in the caches: thousands that
wait as objects for the end of their second are slower to read again than to decode."""
EARLY_S = 0.25
"""The last second of a workflow is shorter, and clocks of two machines differ a little."""


class Waiting(NamedTuple):
    """A report whose second is not shown yet, in the bytes in which its record keeps it."""

    workflow: str
    window: int
    data: bytes


class JobBooks:
    """One job. `warmup_s` and thresholds are those of its submission. Its records share
    `room` with those of the other jobs."""

    def __init__(
        self, manifest: FileManifest, options: RunOptions, room: Room | None = None
    ) -> None:
        self._room = room if room is not None else Room()
        self._warmup_s = options.warmup_s
        self._books = Books(manifest, bind_all(manifest, options.thresholds), options.warmup_s)
        self._records: dict[AttemptKey, KeptRecord] = {}
        self._health_at: dict[int, float] = {}
        self._waiting: list[Waiting] = []
        self._levels: dict[str, dict[int, tuple[int, int]]] = {}
        """Users, and busy ones, that each share of a workflow told last."""

    def take(self, part: TelemetryPart, worker: str) -> int:
        """Adds what is new in a part; the sequence up to which this attempt is known."""
        builder = self._records.get(part.key)
        taken = builder.sequence if builder is not None else 0
        if part.after > taken or part.upto <= taken:
            return taken
        one_by_one = part.upto - part.after == len(part.reports)
        if taken and not one_by_one and part.after:
            return taken
        if taken and not one_by_one:
            # So much is missing that the worker sent the whole. The live sums keep what
            # they have; the record, which counts in the end, is complete again.
            self._replace(part, worker)
            return part.upto
        if builder is None:
            builder = self._records[part.key] = self._begun(part, worker)
        reports = part.reports[taken - part.after :] if one_by_one else part.reports
        for report in reports:
            waits = Waiting(report.workflow, report.window, builder.add_window(report))
            self._waiting.append(waits)
        builder.sequence = part.upto
        for health in part.health:
            if health.at_s > self._health_at.get(health.process, -1.0):
                self._health_at[health.process] = health.at_s
                builder.add(health)
                self._books.add(health)
        for error in part.errors:
            builder.add(error)
            self._books.add(error)
        return part.upto

    def _replace(self, part: TelemetryPart, worker: str) -> None:
        former = self._records[part.key]
        if former.is_closed:
            former.sequence = part.upto
            return
        former.close()
        builder = self._records[part.key] = self._begun(part, worker)
        for report in (*part.reports, *part.health, *part.errors):
            builder.add(report)
        builder.sequence = part.upto

    def _begun(self, part: TelemetryPart, worker: str) -> KeptRecord:
        key = part.key
        head = AttemptRecord(
            workflow=key.workflow,
            share=key.share,
            attempt=key.attempt,
            worker=worker,
            joined_s=part.joined_s,
            silent_from_s=part.silent_from_s,
            width_s=part.width_s,
        )
        return KeptRecord(head, self._room, warmup_s=self._warmup_s)

    def judged(self) -> list[ThresholdResult]:
        """What the thresholds say now, judged second by second."""
        return self._books.close(())[0]

    def fill(self, key: AttemptKey, record: AttemptRecord) -> None:
        """A committed record of an attempt that this leader has not heard of: after a
        restart, the attempts that are over by then."""
        if key in self._records:
            return
        head = msgspec.structs.replace(record, reports=[], health=[], errors=[])
        known = self._records[key] = KeptRecord(head, self._room)
        known.close()
        self._waiting += [Waiting(r.workflow, r.window, packed(r)) for r in record.reports]
        for report in (*record.health, *record.errors):
            self._books.add(report)

    def knows(self, key: AttemptKey) -> bool:
        return key in self._records

    def record(self, key: AttemptKey) -> AttemptRecord | None:
        """The attempt's record as far as it reached this manager; None also when the log
        has it by now."""
        kept = self.kept(key)
        return kept.record if kept is not None else None

    def kept(self, key: AttemptKey) -> KeptRecord | None:
        """The same as it is kept, with its last reports one by one."""
        found = self._records.get(key)
        return found if found is not None and not found.is_closed else None

    def running(self) -> list[AttemptKey]:
        """The attempts of which a record is kept."""
        return [key for key, kept in self._records.items() if not kept.is_closed]

    def let_go(self, key: AttemptKey) -> None:
        """The log has what counts of it. What still comes is shown, and not kept."""
        self._records[key].close()

    def close(self) -> None:
        """The job is over, or led elsewhere."""
        for kept in self._records.values():
            kept.close()

    def started(self, workflow: str, at_s: float) -> None:
        """When a workflow began, on the clock of the job."""
        self._books.stats.workflows[workflow].started_at_s = at_s

    def second(self, now_s: float, notes: Notes) -> tuple[Snapshot, str]:
        """The moment, and the threshold that ends the job now, if one does."""
        self._add_up(now_s)
        return self._books.second(now_s, notes)

    def _add_up(self, now_s: float) -> None:
        """Reports of all shares become one for each workflow and window before they are
        added: with thousands of shares that is most of a manager's work. The second that
        is not over yet waits."""
        ready: dict[tuple[str, int], list[bytes]] = {}
        later: list[Waiting] = []
        for each in self._waiting:
            began_s = self._books.stats.workflows[each.workflow].started_at_s
            if began_s + each.window + 1 <= now_s + EARLY_S:
                ready.setdefault((each.workflow, each.window), []).append(each.data)
            else:
                later.append(each)
        self._waiting = later
        for workflow, window in sorted(ready):
            levels = self._levels.setdefault(workflow, {})
            merged = _sum_of(ready[workflow, window], levels)
            merged.users = sum(users for users, _ in levels.values())
            merged.busy = sum(busy for _, busy in levels.values())
            self._books.add(merged)


def _sum_of(parts: list[bytes], levels: dict[int, tuple[int, int]]) -> WindowReport:
    """Of one window over all shares; `levels` gets what each share tells."""
    sums: list[WindowReport] = []
    for at in range(0, len(parts), TOGETHER):
        reports = [window_of(data) for data in parts[at : at + TOGETHER]]
        for report in reports:
            levels[report.share] = (report.users, report.busy)
        sums += over_shares(reports)
    return sums[0] if len(sums) == 1 else summed_up(sums)
