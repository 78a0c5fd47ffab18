"""Notes on a finished run that are no verdict: what a reader of the numbers must know.

They go into the summary and the results document, the same for a run on one machine and on a
cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from squall.stats.manifest import StepManifest
from squall.stats.short_numbers import percent
from squall.stats.totals.run import RunStats
from squall.stats.totals.step_rows import RowStats
from squall.stats.totals.workflow import WorkflowStats

# Less of the users' time is the rest after a single failure.
THROTTLED_SHARE = 0.01

MAYBE_TLS = "if the port speaks TLS, write https://"
# A server that expects TLS may close a connection on which it receives a plain request.
_CLOSED = ("connection closed before a response", "connection reset")


def notes_of(stats: RunStats) -> list[str]:
    return [note for workflow in stats.workflows.values() for note in _notes(stats, workflow)]


def may_want_tls(reason: str, url: str) -> bool:
    """Whether a request without a byte of an answer may have been sent to a port with TLS."""
    return reason in _CLOSED and url.startswith("http://")


def never_ran(workflow: WorkflowStats) -> list[str]:
    """The measured steps that no iteration reached, although there were iterations."""
    if not workflow.iteration.count:
        return []
    steps = [step.name for step in workflow.manifest.steps if step.protocol]
    return [name for name in steps if not _has_begun(workflow, name)]


def checks_never_made(workflow: WorkflowStats) -> list[str]:
    """The checks of the file that never ran although iterations did. One that belongs to a step
    chosen by weight may just not have been drawn."""
    manifest = workflow.manifest
    if workflow.last_second < 0:
        return []
    idle = [
        name
        for name in manifest.checks
        if not (workflow.checks[name].passed or workflow.checks[name].failed)
    ]
    steps = {step.name: step for step in manifest.steps}
    return [name for name in idle if not _by_weight(steps, manifest.check_steps.get(name, ()))]


def _by_weight(steps: dict[str, StepManifest], names: Sequence[str]) -> bool:
    """Whether one of the steps, or one before it, is chosen by its weight."""
    seen: set[str] = set()
    left = list(names)
    while left:
        step = steps.get(left.pop())
        if step is None or step.name in seen:
            continue
        if step.weight is not None:
            return True
        seen.add(step.name)
        left += step.after
    return False


@dataclass(frozen=True)
class AlwaysFailed:
    """A step whose every execution failed, or a hook (check, metric, end action, provider of a
    value) whose every execution raised in the author's own code."""

    workflow: str
    row: str
    """Empty for what is no step."""
    name: str
    """As it is shown: with the workflow if there are several."""
    count: int
    text: str
    first_at_s: float | None
    raised: bool = True
    """Every execution raised in the author's own code."""
    is_check: bool = False


def always_failed(stats: RunStats) -> list[AlwaysFailed]:
    """The steps in the order of the file, then the hooks, by workflow."""
    found: list[AlwaysFailed] = []
    for workflow in stats.workflows.values():
        # A step of a set-up that fails is an error of the run already.
        rows = workflow.rows.values() if workflow.manifest.is_test else ()
        steps = {step.name for step in workflow.manifest.steps}
        for row in rows:
            # Of a step that is not measured only failures are counted.
            iterations = 0 if row.protocol else workflow.iteration.count
            failed = row.name in steps and 0 < row.failed == row.count
            if (failed or row.always_raised) and row.count >= iterations:
                found.append(_failed(stats, workflow, row))
        found += [
            _raising(stats, workflow, hook.name, hook.raised)
            for hook in workflow.hooks.values()
            if 0 < hook.raised == hook.executions
        ]
    return found


def _failed(stats: RunStats, workflow: WorkflowStats, row: RowStats) -> AlwaysFailed:
    reasons = row.reasons
    step = _raising(stats, workflow, row.name, row.count, next(iter(reasons)), row=row.name)
    if row.always_raised:
        return step
    shown = next(iter(reasons)) if len(reasons) == 1 else _most(reasons)
    text = f"failed in {executions(row.count)}: {shown}"
    return replace(step, text=text, raised=False)


def _most(reasons: Mapping[str, int]) -> str:
    """`503 Service Unavailable (80 times) and 2 other reasons`"""
    reason, count = next(iter(reasons.items()))
    others = len(reasons) - 1
    rest = "1 other reason" if others == 1 else f"{others} other reasons"
    return f"{reason} ({count} times) and {rest}"


def _raising(
    stats: RunStats, workflow: WorkflowStats, name: str, count: int, reason: str = "", row: str = ""
) -> AlwaysFailed:
    samples = stats.error_samples(workflow.name, name)
    first = next((each for each in samples if reason in ("", each.reason)), None)
    where = f" at {first.location}" if first is not None and first.location else ""
    reason = reason or (first.reason if first is not None else "")
    named = len(stats.workflows) > 1
    return AlwaysFailed(
        workflow=workflow.name,
        row=row,
        name=f"{workflow.name}.{name}" if named else name,
        count=count,
        text=f"raised in {executions(count)}: {reason}{where}",
        first_at_s=None if first is None else first.at_s,
        is_check=name in workflow.manifest.checks,
    )


def executions(count: int) -> str:
    return "its only execution" if count == 1 else f"all {count} executions"


def _has_begun(workflow: WorkflowStats, step: str) -> bool:
    row = workflow.rows[step]
    # The windows include the warm-up, the totals do not.
    return bool(row.started or row.count) or any(window.count for window in row.windows)


def _never_answered_plain(stats: RunStats, workflow: WorkflowStats) -> bool:
    """Whether every connection was closed before a byte of an answer, and none used TLS."""
    if not workflow.requests.sent or workflow.requests.bytes_received:
        return False
    samples = [each for each in stats.errors.values() if each.workflow == workflow.name]
    sent = [each for each in samples if each.request]
    return bool(sent) and all(
        may_want_tls(each.reason, each.request.partition(" ")[2]) for each in sent
    )


def _still_waited(workflow: WorkflowStats) -> str:
    """What users waited for at the end of a run in which no exchange ended; no failure says it."""
    requests = workflow.requests
    waiting = any(
        step.protocol == "http" and workflow.rows[step.name].interrupted
        for step in workflow.manifest.steps
    )
    if not waiting or requests.answered or requests.failed:
        return ""
    end = "before the end of the run; a shorter timeout would make failures of them"
    if requests.sent:
        return f"no request was answered {end}"
    return f"no connection was ready {end}; with https://, the port may not speak TLS"


def _notes(stats: RunStats, workflow: WorkflowStats) -> Iterator[str]:
    if waited := _still_waited(workflow):
        yield f"{workflow.name}: {waited}"
    if _never_answered_plain(stats, workflow):
        yield (
            f"{workflow.name}: every connection was closed before a byte of an answer; {MAYBE_TLS}"
        )
    steps = never_ran(workflow)
    if steps:
        yield f"{workflow.name}: {', '.join(steps)} never ran"
    users_s = workflow.users.max * max(workflow.elapsed_s, workflow.last_second + 1.0)
    if workflow.rested_s > THROTTLED_SHARE * users_s > 0.0:
        share = workflow.rested_s / users_s
        yield (
            f"{workflow.name}: users rested for {percent(share)} of their time "
            "after iterations in which nothing was answered (10 ms, longer after each, up to 1 s); "
            "without that the load would have been higher"
        )
