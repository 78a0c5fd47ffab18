"""The live statistics of a run: totals, thresholds, verdict.

Separate from the controller because it imports numpy, which takes a tenth of a second: the
controller imports this module only when the load has started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from squall.stats.manifest import FileManifest
from squall.stats.reports import ErrorSample, HealthReport, WindowReport
from squall.stats.run_notes import notes_of
from squall.stats.snapshot import Snapshot, VerdictState
from squall.stats.thresholds.binding import BoundThreshold
from squall.stats.thresholds.judge import ThresholdJudge, ThresholdResult
from squall.stats.totals.run import RunStats
from squall.stats.verdict import Verdict, judge, judge_live

Notes = Sequence[tuple[VerdictState, str]]


class LiveStats:
    """Adds up what the core processes report and judges it, each second and at the end."""

    def __init__(
        self,
        manifest: FileManifest,
        thresholds: Sequence[BoundThreshold],
        warmup_s: float,
        scopes: Mapping[str, RunStats] | None = None,
    ) -> None:
        """`scopes` has the statistics of each datacenter, for thresholds that name one."""
        self.stats = RunStats(manifest, warmup_s)
        self._judge = ThresholdJudge(thresholds, self.stats, scopes)

    def add(self, report: WindowReport | HealthReport | ErrorSample) -> None:
        self.stats.add(report)

    def second(self, now_s: float, notes: Notes) -> tuple[Snapshot, str]:
        """Returns a snapshot, and the threshold that ends the run now ("" if none does)."""
        judgement = self._judge.judge_live(now_s)
        verdict = judge_live(self.stats, notes)
        snapshot = self.stats.snapshot(
            now_s,
            verdict=verdict.state,
            reasons=verdict.reasons,
            headline=verdict.headline,
            thresholds=judgement.states,
        )
        return snapshot, judgement.abort

    def close(
        self, notes: Notes, *, completed: Mapping[str, int] | None = None
    ) -> tuple[list[ThresholdResult], Verdict]:
        """`completed`: see `judge`."""
        return self._judge.final(), judge(self.stats, notes, completed=completed)

    def notes(self, warnings: Sequence[str], changes: Sequence[str] = ()) -> list[str]:
        """The notes of a finished run; `warnings` are those of its shares, `changes` those of its
        load."""
        every = [*self.stats.manifest.all_warnings, *warnings, *notes_of(self.stats)]
        # Two changes in the same tenth of a second read alike, and both were made.
        return [*dict.fromkeys(every), *changes]
