"""Judges whether the generator's numbers can be trusted: VALID, DEGRADED or INVALID.

The verdict says nothing about the system under test. Rules, with the numbers of
`VerdictSettings`; the worst of them is the verdict, and each gives one line:

- *blocked loop*: one line of the author held the event loop of a process for more than
  10 % of its time: INVALID; more than 1 %: DEGRADED.
- *saturated*: seconds in which a process had at least 95 % CPU **and** a loop lag of
  10 ms or more at p99; more than half of its time and at least 3 s: INVALID; more than
  10 %: DEGRADED. A full CPU alone is healthy as long as the loop is on time.
- *loop lag*: p99 over the run and all processes above 100 ms: INVALID; 20 ms: DEGRADED.
- *starts* of open models: fewer than 95 % of the planned made: INVALID; any dropped:
  DEGRADED; more than 1 % late: DEGRADED.
- findings of the engine: users that could not start, a feed without rows, a process that
  died, a descriptor limit.

During the run, proportions are judged only after three seconds, and a planned start that still
waits for a free user does not count as lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from squall.stats.snapshot import VerdictState
from squall.stats.totals.generator_health import BlockedAt, ProcessStats
from squall.stats.totals.run import RunStats
from squall.stats.totals.workflow import WorkflowStats
from squall.stats.verdict_settings import VerdictSettings

_SEVERITY: dict[VerdictState, int] = {"VALID": 0, "DEGRADED": 1, "INVALID": 2}

ExtraReason = tuple[VerdictState, str]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    state: VerdictState = "VALID"
    reasons: list[str] = []
    """One line each, the most severe first."""
    headline: str = ""
    """The first reason in two words, for a header: `loop lag`."""


class _Finding(NamedTuple):
    state: VerdictState
    headline: str
    text: str


def judge(stats: RunStats, extra: Sequence[ExtraReason] = ()) -> Verdict:
    """Judges a finished run."""
    return _verdict(_findings(stats, is_live=False), extra)


def judge_live(stats: RunStats, extra: Sequence[ExtraReason] = ()) -> Verdict:
    """Judges a run so far."""
    return _verdict(_findings(stats, is_live=True), extra)


def _verdict(found: Iterable[_Finding], extra: Sequence[ExtraReason]) -> Verdict:
    findings = [*found, *(_Finding(state, _headline(text), text) for state, text in extra)]
    findings = [finding for finding in findings if finding.state != "VALID"]
    if not findings:
        return Verdict()
    # The sort is stable: findings of one severity keep the order of the rules.
    findings.sort(key=lambda finding: -_SEVERITY[finding.state])
    return Verdict(
        state=findings[0].state,
        reasons=[finding.text for finding in findings],
        headline=findings[0].headline,
    )


def _findings(stats: RunStats, *, is_live: bool) -> Iterator[_Finding]:
    settings = stats.settings
    processes = [p for p in stats.health.processes.values() if p.seconds > 0]
    if is_live:
        processes = [p for p in processes if p.seconds >= settings.live_after_s]
    yield from _blocked(processes, settings)
    yield from _saturated(processes, settings)
    if processes:
        yield from _lag(stats.health.lag.quantile(0.99), settings)
    for workflow in stats.workflows.values():
        young = is_live and workflow.last_second + 1 < settings.live_after_s
        if workflow.manifest.profile.is_open and not young:
            yield from _starts(workflow, settings, is_live=is_live)


def _blocked(processes: Sequence[ProcessStats], settings: VerdictSettings) -> Iterator[_Finding]:
    worst: dict[BlockedAt, float] = {}
    for process in processes:
        for where, seconds in process.blocked_s.items():
            share = min(seconds / process.seconds, 1.0)
            worst[where] = max(worst.get(where, 0.0), share)
    for where, share in sorted(worst.items(), key=lambda item: -item[1]):
        state = _state(share, settings.blocked_degraded_share, settings.blocked_invalid_share)
        workflow, step, location, call = where
        name = ".".join(part for part in (workflow, step) if part) or "the file"
        text = f"{name} blocked the loop for {_percent(share)} of the run"
        text += f" at {location}" if location else ""
        text += f" ({call})" if call else ""
        yield _Finding(state, "blocked loop", text)


def _saturated(processes: Sequence[ProcessStats], settings: VerdictSettings) -> Iterator[_Finding]:
    busy = [process for process in processes if process.saturated_s > 0]
    if not busy:
        return
    worst = max(busy, key=lambda process: process.saturated_s / process.seconds)
    share = worst.saturated_s / worst.seconds
    invalid_share = settings.saturated_invalid_share
    if worst.saturated_s < settings.saturated_least_s:
        invalid_share = float("inf")
    state = _state(share, settings.saturated_degraded_share, invalid_share)
    which = f"process {worst.index} of the " if len(processes) > 1 else ""
    cpu = worst.saturated_cpu_s / worst.saturated_s
    yield _Finding(
        state,
        "CPU",
        f"{which}generator at {_percent(cpu)} CPU for {worst.saturated_s:.0f} of "
        f"{worst.seconds:.0f} s; start again with fewer VUs or more processes",
    )


def _lag(p99_s: float, settings: VerdictSettings) -> Iterator[_Finding]:
    state = _state(p99_s, settings.lag_degraded_s, settings.lag_invalid_s)
    yield _Finding(
        state,
        "loop lag",
        f"loop lag p99 {p99_s * 1e3:.0f} ms: the generator was late to see answers; "
        "start again with fewer VUs or more processes",
    )


def _starts(
    workflow: WorkflowStats, settings: VerdictSettings, *, is_live: bool
) -> Iterator[_Finding]:
    starts = workflow.starts
    if starts.planned == 0:
        return
    made = starts.planned - starts.dropped if is_live else starts.made
    made_share = made / starts.planned
    dropped_share = starts.dropped / starts.planned
    advice = _more_users(workflow)
    if made_share < settings.made_invalid_share:
        yield _Finding(
            "INVALID",
            "lost starts",
            f"{workflow.name} made {made} of {starts.planned} planned starts "
            f"({_percent(made_share)}), {starts.dropped} dropped; {advice}",
        )
    elif starts.dropped:
        yield _Finding(
            "DEGRADED",
            "dropped starts",
            f"{workflow.name} dropped {starts.dropped} of {starts.planned} planned starts "
            f"({_percent(dropped_share)}); {advice}",
        )
    late_share = starts.late / starts.planned
    if late_share > settings.late_degraded_share:
        yield _Finding(
            "DEGRADED",
            "late starts",
            f"{workflow.name} made {starts.late} of {starts.planned} starts late "
            f"({_percent(late_share)}, at most {starts.late_max_s * 1e3:.0f} ms); {advice}",
        )


def _more_users(workflow: WorkflowStats) -> str:
    """Advice: more users, or more processes if the generator was the limit."""
    max_vus = workflow.manifest.profile.max_vus
    if max_vus and workflow.busy_max < max_vus:
        return "lower the rate or use more processes"
    return f"raise max_vus above {max_vus}" if max_vus else "raise max_vus"


def _state(value: float, degraded: float, invalid: float) -> VerdictState:
    if value > invalid:
        return "INVALID"
    return "DEGRADED" if value > degraded else "VALID"


def _headline(text: str) -> str:
    """The reason up to its first punctuation, so that a header stays short."""
    return text.partition(";")[0].partition(":")[0]


def _percent(share: float) -> str:
    """`84 %`; two digits at least, so that 0.04 % does not read as 0."""
    percent = share * 100
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"
