"""Merges several results documents into one, as parts of one load made side by side.

Counts, users, starts and histograms are added; windows are aligned by the time since the start;
percentiles come from merged histograms only. Rates follow from the added counts and the longest
time, so two generators of 500/s become one of 1000/s. Thresholds are judged again on the whole.
Parts that do not fit together, or did not run at the same time, are reported in the notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import msgspec

from squall.engine.outcome import (
    Loss,
    ProcessInfo,
    RunInfo,
    RunOutcome,
    RunStatus,
    WorkflowOutcome,
)
from squall.reporting.document.merge_thresholds import judged_again
from squall.stats.histogram import Histogram
from squall.stats.manifest import FileManifest, Profile, Stage, WorkflowManifest
from squall.stats.reports import RequestsDelta, add_hooks
from squall.stats.snapshot import VerdictState
from squall.stats.totals.protocols import named, protocols_of
from squall.stats.totals.run import RunStats
from squall.stats.totals.step_rows import CheckStats, MetricStats, OutcomeStats, RowStats
from squall.stats.totals.windows import HealthWindow, LoadWindow, RowWindow, Series
from squall.stats.totals.workflow import WorkflowStats
from squall.stats.verdict import Verdict

_VERDICTS: tuple[VerdictState, ...] = ("VALID", "DEGRADED", "INVALID")
_STATUSES: tuple[RunStatus, ...] = ("completed", "partial", "timeout", "interrupted", "failed")
_IDS_MAX = 3
BY_DATACENTER = "the numbers by datacenter are in the documents of the runs and are not merged"
APART = "these runs did not overlap; rates and users are sums as if they had"


def merge_outcomes(parts: Sequence[RunOutcome]) -> RunOutcome:
    """One outcome; a single part is returned unchanged."""
    if len(parts) == 1:
        return parts[0]
    manifest = _manifest(parts)
    stats = RunStats(manifest, max(part.info.warmup_s for part in parts))
    processes: list[ProcessInfo] = []
    losses: list[Loss] = []
    for part in parts:
        for workflow in part.stats.workflows.values():
            _add_workflow(stats.workflows[workflow.name], workflow)
        numbers = _add_health(stats, part, processes)
        losses += [
            replace(loss, process=numbers.get(loss.process, loss.process)) for loss in part.losses
        ]
        for sample in part.stats.errors.values():
            stats.add(sample)
    return RunOutcome(
        manifest=manifest,
        stats=stats,
        thresholds=judged_again(
            [part.thresholds for part in parts], stats, apart=_are_apart(parts)
        ),
        verdict=Verdict(
            state=_VERDICTS[max(_VERDICTS.index(part.verdict.state) for part in parts)],
            reasons=[f"{p.info.id}: {reason}" for p in parts for reason in p.verdict.reasons],
        ),
        status=_STATUSES[max(_STATUSES.index(part.status) for part in parts)],
        workflows=_workflow_outcomes(parts),
        processes=processes,
        info=_info([part.info for part in parts]),
        elapsed_s=max(part.elapsed_s for part in parts),
        parent_cpu=max(part.parent_cpu for part in parts),
        interrupted=any(part.interrupted for part in parts),
        aborted_by=next((part.aborted_by for part in parts if part.aborted_by), ""),
        losses=losses,
        notes=_notes(parts),
    )


def differences(parts: Sequence[RunOutcome]) -> list[str]:
    """The differences that a reader of the merged numbers must know, one line each."""
    lines: list[str] = []
    first = parts[0]
    for part in parts[1:]:
        pair = f"{part.info.id} and {first.info.id}"
        names, known = _names(part), _names(first)
        if names != known:
            lines.append(f"{pair} have different workflows: {', '.join(sorted(names ^ known))}")
        for name in sorted(names & known):
            one, two = part.stats.workflows[name], first.stats.workflows[name]
            if one.manifest.profile != two.manifest.profile:
                lines.append(f"{pair} have different load profiles of {name}")
            if set(one.rows) != set(two.rows):
                different = ", ".join(sorted(set(one.rows) ^ set(two.rows)))
                lines.append(f"{pair} have different steps of {name}: {different}")
        if part.info.warmup_s != first.info.warmup_s:
            lines.append(f"{pair} have different warm-ups")
    return lines


def _names(part: RunOutcome) -> set[str]:
    return set(part.stats.workflows)


def _notes(parts: Sequence[RunOutcome]) -> list[str]:
    head = f"merged from {len(parts)} runs: {', '.join(part.info.id for part in parts)}"
    notes = dict.fromkeys(note for part in parts for note in part.notes)
    apart = [APART] if _are_apart(parts) else []
    split = [BY_DATACENTER] if any(part.datacenters for part in parts) else []
    return [head, *apart, *split, *differences(parts), *notes]


def _are_apart(parts: Sequence[RunOutcome]) -> bool:
    """By their wall clocks, some part had ended before another one began."""
    begins = [part.info.started_at for part in parts]
    return max(begins) >= min(p.info.started_at + timedelta(seconds=p.elapsed_s) for p in parts)


def _manifest(parts: Sequence[RunOutcome]) -> FileManifest:
    found: dict[str, list[WorkflowManifest]] = {}
    for part in parts:
        for workflow in part.manifest.workflows:
            found.setdefault(workflow.name, []).append(workflow)
    paths = dict.fromkeys(part.manifest.path for part in parts)
    workflows = [
        msgspec.structs.replace(
            same[0],
            profile=_profile([each.profile for each in same]),
            steps=list({step.name: step for each in same for step in each.steps}.values()),
            checks=list(dict.fromkeys(name for each in same for name in each.checks)),
            metrics=list(
                {metric.name: metric for each in same for metric in each.metrics}.values()
            ),
        )
        for same in found.values()
    ]
    return FileManifest(path=" + ".join(paths), workflows=workflows)


def _profile(parts: Sequence[Profile]) -> Profile:
    """The load of all parts together; the first one's if they cannot be added."""
    first = parts[0]
    shapes = {
        (part.model, part.duration_s, tuple(stage.duration_s for stage in part.stages))
        for part in parts
    }
    if len(shapes) > 1:
        return first
    stages = zip(*(part.stages for part in parts), strict=True)
    return msgspec.structs.replace(
        first,
        vus=sum(part.vus for part in parts),
        max_vus=sum(part.max_vus for part in parts),
        iterations=sum(part.iterations for part in parts),
        rate_per_s=sum(part.rate_per_s for part in parts),
        stages=tuple(
            Stage(same[0].duration_s, sum(stage.target for stage in same)) for same in stages
        ),
    )


def _info(parts: Sequence[RunInfo]) -> RunInfo:
    ids = [part.id for part in parts]
    more = f"+{len(ids) - _IDS_MAX}" if len(ids) > _IDS_MAX else ""
    first = parts[0]
    shared = [part.tags.items() for part in parts]
    same_git = len({part.git for part in parts}) == 1
    return replace(
        first,
        id="+".join(ids[:_IDS_MAX]) + more,
        tags=dict(item for item in first.tags.items() if all(item in each for each in shared)),
        git=first.git if same_git else "",
        started_at=min(part.started_at for part in parts),
        warmup_s=max(part.warmup_s for part in parts),
    )


def _workflow_outcomes(parts: Sequence[RunOutcome]) -> list[WorkflowOutcome]:
    found: dict[str, list[WorkflowOutcome]] = {}
    for part in parts:
        for each in part.workflows:
            found.setdefault(each.name, []).append(each)
    merged: list[WorkflowOutcome] = []
    for same in found.values():
        worst = next((each for each in same if each.status != "completed"), same[0])
        merged.append(
            replace(
                worst,
                started_at_s=min(each.started_at_s for each in same),
                elapsed_s=max(each.elapsed_s for each in same),
                cores=(),
            )
        )
    return merged


def _add_workflow(total: WorkflowStats, part: WorkflowStats) -> None:
    if part.last_second >= 0:
        begun = total.last_second >= 0
        total.started_at_s = (
            min(total.started_at_s, part.started_at_s) if begun else part.started_at_s
        )
        total.last_second = max(total.last_second, part.last_second)
        # Each part left out its own warm-up; the time that counts is the longest.
        total.elapsed_s = max(total.elapsed_s, part.measured_s + total.warmup_s)
    for row in part.rows.values():
        _add_row(total.rows.setdefault(row.name, RowStats(row.name, row.protocol)), row)
    _add_row(total.iteration, part.iteration)
    for check in part.checks.values():
        sum_of = total.checks.setdefault(check.name, CheckStats(check.name))
        sum_of.passed += check.passed
        sum_of.failed += check.failed
    add_hooks(total.hooks, part.hooks.values())
    for metric in part.metrics.values():
        empty = MetricStats(metric.name, metric.kind, metric.unit)
        total.metrics.setdefault(metric.name, empty).merge(metric)
    _add_starts(total, part)
    for name in RequestsDelta.__struct_fields__:
        setattr(total.requests, name, getattr(total.requests, name) + getattr(part.requests, name))
    total.statuses.update(part.statuses)
    total.dns.merge(part.dns)
    total.connect.merge(part.connect)
    total.tls.merge(part.tls)
    for each in protocols_of(part).values():
        named(total.protocols, each.name).merge(each)
    total.users.max += part.users.max
    total.busy_max += part.busy_max
    _overlay_load(total.windows, part.windows)


def _add_starts(total: WorkflowStats, part: WorkflowStats) -> None:
    mine, other = total.starts, part.starts
    mine.planned += other.planned
    mine.made += other.made
    mine.late += other.late
    mine.late_max_s = max(mine.late_max_s, other.late_max_s)
    mine.dropped += other.dropped
    mine.interrupted += other.interrupted


def _add_row(total: RowStats, part: RowStats) -> None:
    if total.has_response or part.has_response:
        # A closed part shows service time, an open one response time: each adds what it shows.
        mine = total.latency.copy()
        mine.merge(part.latency)
        total.response = mine
    total.started += part.started
    total.count += part.count
    total.ok += part.ok
    total.failed += part.failed
    total.interrupted += part.interrupted
    for outcome in part.outcomes.values():
        fresh = OutcomeStats(outcome.key, ok=outcome.ok, raised=outcome.raised)
        mine = total.outcomes.setdefault(outcome.key, fresh)
        mine.raised = mine.raised and outcome.raised
        mine.count += outcome.count
        mine.exchanges += outcome.exchanges
        mine.statuses.update(outcome.statuses)
        mine.service.merge(outcome.service)
    total.first_byte = _sum(total.first_byte, part.first_byte)
    _widen(total.windows, part.windows.width_s)
    for index, window in enumerate(part.windows):
        total.windows.at(index * part.windows.width_s).absorb(_copy(window))


def _copy(window: RowWindow) -> RowWindow:
    made = RowWindow()
    made.absorb(window)
    return made


def _sum(total: Histogram | None, part: Histogram | None) -> Histogram | None:
    if part is None:
        return total
    if total is None:
        return part.copy()
    total.merge(part)
    return total


def _widen(
    series: Series[RowWindow] | Series[LoadWindow] | Series[HealthWindow], to_s: int
) -> None:
    """Adds windows. Widths are powers of two, so a wider window holds whole narrower ones."""
    while series.width_s < to_s:
        series.halve()


def _overlay_load(total: Series[LoadWindow], part: Series[LoadWindow]) -> None:
    _widen(total, part.width_s)
    # Users are a level: the most of a window's seconds, and then added over the parts.
    levels: dict[int, tuple[int, int]] = {}
    for index, window in enumerate(part):
        second = index * part.width_s
        mine = total.at(second)
        mine.planned += window.planned
        mine.made += window.made
        mine.late += window.late
        mine.dropped += window.dropped
        users, busy = levels.get(second // total.width_s, (0, 0))
        levels[second // total.width_s] = (max(users, window.users), max(busy, window.busy))
    for position, (users, busy) in levels.items():
        total.windows[position].users += users
        total.windows[position].busy += busy


def _add_health(stats: RunStats, part: RunOutcome, processes: list[ProcessInfo]) -> dict[int, int]:
    """Adds the processes of a part under new numbers, so that runs stay apart; returns these."""
    total, health = stats.health, part.stats.health
    known = {info.index for info in part.processes} | set(health.processes)
    numbers = {index: len(processes) + place for place, index in enumerate(sorted(known))}
    infos = {info.index: info for info in part.processes}
    for index, number in numbers.items():
        info = infos.get(index, ProcessInfo(index=index, pid=0))
        processes.append(replace(info, index=number))
        process = health.processes.get(index)
        if process is not None:
            process.index = number
            total.processes[number] = process
    _widen(total.windows, health.windows.width_s)
    for index, window in enumerate(health.windows):
        total.windows.at(index * health.windows.width_s).absorb(window)
    return numbers
