"""Judges the thresholds of several runs again, on their merged numbers.

Two kinds cannot be, so their worst part decides: those with `over`, because no document holds
single seconds; and those on a rate, if the runs did not overlap, because no target saw the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from squall.api.errors import ConfigError
from squall.stats.thresholds.binding import BoundThreshold, bind
from squall.stats.thresholds.grammar import parse_threshold
from squall.stats.thresholds.judge import ThresholdJudge, ThresholdResult
from squall.stats.totals.run import RunStats


def judged_again(
    parts: Iterable[Sequence[ThresholdResult]], stats: RunStats, *, apart: bool
) -> list[ThresholdResult]:
    """`apart`: the runs did not overlap."""
    found: dict[tuple[str, str, bool], list[ThresholdResult]] = {}
    for part in parts:
        for result in part:
            key = (result.expression, result.workflow, result.builtin)
            found.setdefault(key, []).append(result)
    return [_judged(same, stats, apart) for same in found.values()]


def _judged(same: Sequence[ThresholdResult], stats: RunStats, apart: bool) -> ThresholdResult:
    bound = _bound(same[0], stats)
    if bound is None or bound.threshold.over_s is not None or (apart and bound.base == "rate"):
        worst = _worst(same, bound)
        note = "; ".join(part for part in (worst.note, "the worst of the parts") if part)
        return msgspec.structs.replace(worst, note=note)
    whole = ThresholdJudge([bound], stats).final()[0]
    failed_at = [each.first_failed_at_s for each in same if each.first_failed_at_s is not None]
    if whole.passed or not failed_at:
        return whole
    return msgspec.structs.replace(whole, first_failed_at_s=min(failed_at))


def _worst(same: Sequence[ThresholdResult], bound: BoundThreshold | None) -> ThresholdResult:
    """One that failed, if any did; and of those the farthest from what the threshold wants."""
    worst = [each for each in same if not each.passed] or list(same)
    known = [(each.value, at) for at, each in enumerate(worst) if each.value is not None]
    if bound is None or len(known) < len(worst):
        return worst[0]
    _, at = min(known) if bound.threshold.op in (">", ">=") else max(known)
    return worst[at]


def _bound(result: ThresholdResult, stats: RunStats) -> BoundThreshold | None:
    try:
        # A text of the k6 form cannot be parsed with the name of its workflow in front.
        text = result.expression.removeprefix(f"{result.workflow}.")
        threshold = parse_threshold(text, default_workflow=result.workflow or None)
        bound = bind(threshold, stats.manifest)
    except ConfigError:
        return None
    return msgspec.structs.replace(bound, builtin=result.builtin, expression=result.expression)
