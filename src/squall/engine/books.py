"""The numbers of a run and their judges: statistics, thresholds, verdict.

Apart from the controller because it brings numpy, whose import costs a tenth of a
second: it is opened when the load has started, not before.
"""

from __future__ import annotations

from collections.abc import Sequence

from squall.stats.manifest import FileManifest
from squall.stats.reports import ErrorSample, HealthReport, WindowReport
from squall.stats.run import RunStats
from squall.stats.snapshot import Snapshot, VerdictState
from squall.stats.threshold_binding import BoundThreshold
from squall.stats.thresholds import ThresholdJudge, ThresholdResult
from squall.stats.verdict import Verdict, judge, judge_live

Notes = Sequence[tuple[VerdictState, str]]


class Books:
    """Adds up what the core processes report and judges it, each second and at the end."""

    def __init__(
        self, manifest: FileManifest, thresholds: Sequence[BoundThreshold], warmup_s: float
    ) -> None:
        self.stats = RunStats(manifest, warmup_s)
        self._judge = ThresholdJudge(thresholds, self.stats)

    def add(self, report: WindowReport | HealthReport | ErrorSample) -> None:
        self.stats.add(report)

    def second(self, now_s: float, notes: Notes) -> tuple[Snapshot, str]:
        """The moment, and the threshold that ends the run now, if one does."""
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

    def close(self, notes: Notes) -> tuple[list[ThresholdResult], Verdict]:
        return self._judge.final(), judge(self.stats, notes)
