"""Repeats a run from its result, second by second, so that thresholds are judged as they were while
it ran."""

from __future__ import annotations

from collections.abc import Sequence

from squall.cluster.results.job_result import JobResult
from squall.stats.reports import WindowReport
from squall.stats.thresholds.binding import BoundThreshold
from squall.stats.thresholds.judge import ThresholdJudge, ThresholdResult
from squall.stats.totals.generator_health_summary import fill_health
from squall.stats.totals.run import RunStats


def replay(runs: Sequence[tuple[RunStats, JobResult]], judge: ThresholdJudge) -> None:
    """Adds the reports of each second to the statistics of each run, then judges. Several runs are
    one job and its parts, which share a clock."""
    seconds: dict[int, list[tuple[RunStats, WindowReport]]] = {}
    for stats, result in runs:
        offsets: dict[str, int] = {}
        for outcome in result.workflows:
            stats.workflows[outcome.name].started_at_s = outcome.started_at_s
            offsets[outcome.name] = round(outcome.started_at_s)
        for report in result.reports:
            at = report.window + offsets[report.workflow]
            seconds.setdefault(at, []).append((stats, report))
        fill_health(stats.health, result.generator)
        for error in result.errors:
            stats.add(error)
    for second in sorted(seconds):
        for stats, result in runs:
            for outcome in result.workflows:
                # The workflow is over: its last, shorter second is not awaited.
                if 0 < outcome.started_at_s + outcome.elapsed_s <= second:
                    stats.workflows[outcome.name].elapsed_s = outcome.elapsed_s
        for stats, report in seconds[second]:
            stats.add(report)
        judge.judge_live(float(second + 1))


def judged_while_running(
    final: list[ThresholdResult],
    bound: Sequence[BoundThreshold],
    width_s: int,
    judged: Sequence[ThresholdResult],
) -> list[ThresholdResult]:
    """Where the windows are wider than a second, sliding thresholds take what was `judged` while
    the job ran."""
    if width_s == 1:
        return final
    sliding = {str(each) for each in bound if each.threshold.over_s is not None}
    live = {each.expression: each for each in judged if each.expression in sliding}
    return [live.get(each.expression, each) for each in final]
