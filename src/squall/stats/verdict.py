"""Judges whether the generator's numbers can be trusted: VALID, DEGRADED or INVALID.

The verdict says nothing about the system under test. Rules, with the numbers of
`VerdictSettings`; the worst of them is the verdict, and each gives one line:

- *blocked loop*: one line of the author held the event loop of a process for more than
  10 % of its time: INVALID; more than 1 %: DEGRADED.
- *saturated*: seconds in which a process had at least 95 % CPU **and** a loop lag of
  10 ms or more at p99; more than half of its time and at least 3 s: INVALID; more than
  10 %: DEGRADED. A full CPU alone is healthy as long as the loop is on time.
- *loop lag*: p99 over the run and all processes above 100 ms: INVALID; above 20 ms and a
  tenth of the latency measured: DEGRADED. In a run with fewer than 500 samples of it (5 s of one
  process), the highest percentile that has 5 samples above it, instead of p99.
- *starts* of open models: fewer than 95 % of the planned made: INVALID; any dropped:
  DEGRADED.
- *late starts*: DEGRADED if they raised a percentile of the iteration by more than 10 ms and a
  tenth (docs/decisions/0010-lateness-by-its-effect.md).
- *users* that could not start: more than 5 %: INVALID; any: DEGRADED.
- *iterations* of a planned number that were not made: INVALID.
- findings of others: a feed without rows, a process that died, a timeout
  (`engine.run.controller`), load that was lost with a worker (`cluster.results.assemble`).

During the run, proportions are judged only after three seconds, and a planned start that still
waits for a free user does not count as lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from squall.stats.histogram import Histogram
from squall.stats.manifest import START
from squall.stats.short_numbers import brief_duration, duration, percent, whole_percent
from squall.stats.snapshot import VerdictState
from squall.stats.totals.generator_health import BlockedAt, ProcessStats
from squall.stats.totals.run import RunStats
from squall.stats.totals.workflow import WorkflowStats
from squall.stats.verdict_settings import VerdictSettings

_SEVERITY: dict[VerdictState, int] = {"VALID": 0, "DEGRADED": 1, "INVALID": 2}

# Judged from the highest down: the tail shows the effect of few late starts, or beats, first.
LATE_QUANTILES = (0.99, 0.95, 0.9, 0.5)
# A percentile with fewer samples above it is the luck of single starts, or beats: the loop lag is
# measured 100 times a second, so p99 of a run of one second would be its longest hiccup.
SAMPLES_BEYOND = 5
# A late loop that used less of its core did not get it: other programs had the processor.
BUSY_CPU = 0.5
# Two hundred workflows whose starts were late are one finding to a reader.
ALIKE_MAX = 5

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


def judge(
    stats: RunStats,
    extra: Sequence[ExtraReason] = (),
    *,
    completed: Mapping[str, int] | None = None,
) -> Verdict:
    """Judges a finished run. `completed` are the workflows that nothing ended early (no user,
    threshold, timeout or error), with the iterations that are missing with a lost worker, which
    `extra` judges."""
    found = [*_findings(stats, is_live=False), *_shortfalls(stats, completed or {})]
    return _verdict(found, extra)


def judge_live(stats: RunStats, extra: Sequence[ExtraReason] = ()) -> Verdict:
    """Judges a run so far."""
    return _verdict(_findings(stats, is_live=True), extra)


def _verdict(found: Iterable[_Finding], extra: Sequence[ExtraReason]) -> Verdict:
    findings = [*found, *(_Finding(state, _headline(text), text) for state, text in extra)]
    # Every process reports the same finding, such as a feed without rows.
    findings = [finding for finding in dict.fromkeys(findings) if finding.state != "VALID"]
    if not findings:
        return Verdict()
    # The sort is stable: findings of one severity keep the order of the rules.
    findings.sort(key=lambda finding: -_SEVERITY[finding.state])
    return Verdict(
        state=findings[0].state,
        reasons=_reasons(findings),
        headline=findings[0].headline,
    )


def _reasons(findings: Iterable[_Finding]) -> list[str]:
    """One line for each finding; of the same finding in many workflows the first few."""
    texts: dict[tuple[VerdictState, str], list[str]] = {}
    for finding in findings:
        texts.setdefault((finding.state, finding.headline), []).append(finding.text)
    reasons: list[str] = []
    for (_, headline), same in texts.items():
        reasons += same[:ALIKE_MAX]
        if len(same) > ALIKE_MAX:
            reasons.append(f"{headline}: {len(same) - ALIKE_MAX} more like these")
    return reasons


def _findings(stats: RunStats, *, is_live: bool) -> Iterator[_Finding]:
    settings = stats.settings
    processes = [p for p in stats.health.processes.values() if p.seconds > 0]
    if is_live:
        processes = [p for p in processes if p.seconds >= settings.live_after_s]
    yield from _blocked(processes, settings)
    yield from _saturated(stats, processes, settings)
    if processes:
        yield from _lag(stats, processes, settings)
    for workflow in stats.workflows.values():
        if workflow.unopened and workflow.manifest.is_test:
            yield _users(stats, workflow)
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


def _saturated(
    stats: RunStats, processes: Sequence[ProcessStats], settings: VerdictSettings
) -> Iterator[_Finding]:
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
        f"{worst.seconds:.0f} s; {_less_load(stats, processes)}",
    )


def _lag(
    stats: RunStats, processes: Sequence[ProcessStats], settings: VerdictSettings
) -> Iterator[_Finding]:
    """A late event loop takes an answer's time too late, by at most its lag."""
    lag = stats.health.lag
    q = next((q for q in LATE_QUANTILES if _has_samples_beyond(lag, q)), None)
    if q is None:
        return
    late_s = lag.quantile(q)
    latencies = [w.iteration.service for w in stats.workflows.values() if w.manifest.is_test]
    latency_s = max((each.quantile(0.99) for each in latencies if each.count), default=0.0)
    degraded_s = max(settings.lag_degraded_s, settings.effect_degraded_share * latency_s)
    state = _state(late_s, min(degraded_s, settings.lag_invalid_s), settings.lag_invalid_s)
    cpu = max(process.cpu for process in processes)
    blocked_share = max(sum(each.blocked_s.values()) / each.seconds for each in processes)
    if blocked_share > settings.blocked_degraded_share:
        advice = "lines of your file blocked its loop"
    elif cpu < BUSY_CPU:
        advice = "the machine was busy with other programs; start again on an idle one"
    else:
        advice = _less_load(stats, processes)
    yield _Finding(
        state,
        "loop lag",
        f"loop lag p{q * 100:g} {brief_duration(late_s)} at {whole_percent(cpu)} CPU: the "
        f"generator was late to see answers; {advice}",
    )


def _less_load(stats: RunStats, processes: Sequence[ProcessStats]) -> str:
    """Advice for a generator that was too busy itself."""
    users = sum(workflow.users.max for workflow in stats.workflows.values())
    if 0 < users <= len(processes):
        # Neither fewer users nor more processes would give a user more of a core.
        return "its steps compute too much"
    return "start again with fewer VUs or more processes"


def _users(stats: RunStats, workflow: WorkflowStats) -> _Finding:
    missing, wanted = workflow.unopened, workflow.opened + workflow.unopened
    share = missing / wanted
    why = next((f": {each.reason}" for each in stats.error_samples(workflow.name, START)), "")
    state = "INVALID" if share > stats.settings.users_invalid_share else "DEGRADED"
    noun = "user" if wanted == 1 else "users"
    text = f"{missing} of {wanted} {noun} of {workflow.name} did not start{why}"
    return _Finding(state, "missing users", text)


def _shortfalls(stats: RunStats, completed: Mapping[str, int]) -> Iterator[_Finding]:
    """A number of iterations is what the author asked for: fewer are another test."""
    for name, lost in completed.items():
        workflow = stats.workflows[name]
        profile = workflow.manifest.profile
        if profile.model != "iterations" or workflow.last_second < 0:
            continue
        # Windows include the warm-up. Iterations that a dead process finished are in `made` only.
        made = sum(window.made for window in workflow.windows) - workflow.iteration.interrupted
        if made + lost >= profile.iterations:
            continue
        text = f"{workflow.name} made {max(made, 0)} of {profile.iterations} iterations"
        if workflow.elapsed_s >= profile.duration_s:
            text += f": its duration of {profile.duration_s:g} s ended first; give it a longer one"
        yield _Finding("INVALID", "missing iterations", text)


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
        text = (
            f"{workflow.name} made {made} of {starts.planned} planned starts "
            f"({_percent(made_share)}), {starts.dropped} dropped"
        )
        # Starts that were neither made nor dropped are gone with a process or a worker, which has
        # its own line: another rate would not have made them.
        text += f"; {advice}" if dropped_share > 1 - settings.made_invalid_share else ""
        yield _Finding("INVALID", "lost starts", text)
    elif starts.dropped:
        yield _Finding(
            "DEGRADED",
            "dropped starts",
            f"{workflow.name} dropped {starts.dropped} of {starts.planned} planned starts "
            f"({_percent(dropped_share)}); {advice}",
        )
    yield from _late_starts(workflow, settings, advice)


def _late_starts(
    workflow: WorkflowStats, settings: VerdictSettings, advice: str
) -> Iterator[_Finding]:
    """Late starts count by what they do to the numbers: response time runs from the planned start,
    service time from the real one, so a percentile of the one may be above that of the other."""
    starts, row = workflow.starts, workflow.iteration
    if not starts.late or row.response is None:
        return
    service = row.service
    for q in LATE_QUANTILES:
        if not _has_samples_beyond(service, q):
            continue
        true_s, shown_s = service.quantile(q), row.response.quantile(q)
        tolerated_s = max(settings.late_degraded_s, settings.effect_degraded_share * true_s)
        if shown_s - true_s > tolerated_s:
            share = starts.late / starts.planned
            yield _Finding(
                "DEGRADED",
                "late starts",
                f"{workflow.name} made {starts.late} of {starts.planned} starts late "
                f"({_percent(share)}, at most {brief_duration(starts.late_max_s)}), which raised "
                f"its p{q * 100:g} from {duration(true_s)} to {duration(shown_s)}; {advice}",
            )
            return


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


def _has_samples_beyond(histogram: Histogram, q: float) -> bool:
    return round(histogram.count * (1 - q), 6) >= SAMPLES_BEYOND


def _percent(share: float) -> str:
    """Whole percents from 10 on, and never 0 % for a little."""
    return whole_percent(share) if share >= 0.1 else percent(share)
