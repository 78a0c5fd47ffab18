"""What became of a scheduled run, and of it beside the run before.

The judgement is that of `squall compare`, made from the same documents by the same code;
here it is only cut to what a history can keep. It takes seconds for a long run of many steps,
so an agent makes it beside its loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from squall.nodes.agent.schedules_records import ChangeNote, Comparison
from squall.nodes.results.result import JobResult, outcome_of
from squall.reporting.compare import compare
from squall.reporting.compare_text import render_comparison
from squall.reporting.document import build_document, encode_document
from squall.reporting.model import typed
from squall.reporting.reading import Read

CHANGES_MAX = 20
Judge = Callable[[JobResult, JobResult], Awaitable[Comparison]]
"""The run before, and the run."""
REASON_MAX = 200


def is_comparable(result: JobResult) -> bool:
    """Whether the next run may be held against this one."""
    return not result.refusal and result.status == "completed" and result.verdict.state != "INVALID"


def reason_of(result: JobResult) -> str:
    """Why it is not what one hopes for: one line, or nothing."""
    failed = (f"{each.name}: {each.error}" for each in result.workflows if each.error)
    broken = (f"{each.expression} failed" for each in result.thresholds if not each.passed)
    said = (result.refusal, result.reason, *failed, *broken, *result.verdict.reasons)
    return next((each for each in said if each), "")[:REASON_MAX]


async def judge_here(before: JobResult, after: JobResult) -> Comparison:
    return judged(before, after)


def judged(before: JobResult, after: JobResult) -> Comparison:
    """As `squall compare BEFORE AFTER`."""
    found = compare([_read(before)], [_read(after)])
    changes = [
        ChangeNote(
            step=step.name,
            column=each.column,
            judgement=each.judgement,
            before=each.before or 0.0,
            after=each.after or 0.0,
            low=each.low,
            high=each.high,
        )
        for step in found.steps
        for each in step.changes
        if each.judgement in ("worse", "better")
    ]
    count = render_comparison(found).splitlines()[-1]
    text = count if found.judged else f"{count}: {found.obstacles[0]}"[:REASON_MAX]
    return Comparison(
        to=before.job,
        text=text,
        judged=found.judged,
        worse=found.number("worse"),
        better=found.number("better"),
        same=found.number("same"),
        few=found.number("few"),
        changes=tuple(sorted(changes, key=_bad_first)[:CHANGES_MAX]),
    )


def _bad_first(change: ChangeNote) -> bool:
    return change.judgement != "worse"


def _read(result: JobResult) -> Read:
    content = encode_document(build_document(outcome_of(result)))
    document: dict[str, Any] = msgspec.json.decode(content)
    return Read(f"job {result.job}", document, typed(document))
