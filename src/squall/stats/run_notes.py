"""Notes on a finished run that are no verdict: what a reader of the numbers must know.

They go into the summary and the results document, the same for a run on one machine and on a
cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from squall.stats.manifest import StepManifest
from squall.stats.totals.run import RunStats
from squall.stats.totals.workflow import WorkflowStats

# Less of the users' time is the rest after a single failure.
THROTTLED_SHARE = 0.01


def notes_of(stats: RunStats) -> list[str]:
    return [note for workflow in stats.workflows.values() for note in _notes(workflow)]


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
class RaisingStep:
    """A step whose every execution raised in the author's own code."""

    workflow: str
    row: str
    name: str
    """As it is shown: with the workflow if there are several."""
    count: int
    text: str
    first_at_s: float | None


def raising_steps(stats: RunStats) -> list[RaisingStep]:
    named = len(stats.workflows) > 1
    found: list[RaisingStep] = []
    for workflow in stats.workflows.values():
        for row in workflow.rows.values():
            # Of a step that is not measured only failures are counted.
            iterations = 0 if row.protocol else workflow.iteration.count
            if not workflow.manifest.is_test or not row.always_raised or row.count < iterations:
                continue
            reason = next(iter(row.reasons))
            samples = stats.error_samples(workflow.name, row.name)
            first = next((sample for sample in samples if sample.reason == reason), None)
            where = f" at {first.location}" if first is not None and first.location else ""
            found.append(
                RaisingStep(
                    workflow=workflow.name,
                    row=row.name,
                    name=f"{workflow.name}.{row.name}" if named else row.name,
                    count=row.count,
                    text=f"raised in all {row.count} executions: {reason}{where}",
                    first_at_s=None if first is None else first.at_s,
                )
            )
    return found


def _has_begun(workflow: WorkflowStats, step: str) -> bool:
    row = workflow.rows[step]
    # The windows include the warm-up, the totals do not.
    return bool(row.started or row.count) or any(window.count for window in row.windows)


def _notes(workflow: WorkflowStats) -> Iterator[str]:
    steps = never_ran(workflow)
    if steps:
        yield f"{workflow.name}: {', '.join(steps)} never ran"
    users_s = workflow.users.max * max(workflow.elapsed_s, workflow.last_second + 1.0)
    if workflow.rested_s > THROTTLED_SHARE * users_s > 0.0:
        percent = workflow.rested_s / users_s * 100
        yield (
            f"{workflow.name}: users rested for {percent:.2g} % of their time "
            "after iterations in which nothing was answered (10 ms, longer after each, up to 1 s); "
            "without that the load would have been higher"
        )
