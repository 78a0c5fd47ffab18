"""Compares a scheduled run with the run before it.

The comparison is that of `squall compare`, from the same documents and by the same code, cut down
to what a history can keep. It takes seconds for a long run with many steps, so an agent runs it
in a thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from squall.cluster.results.job_result import JobResult, outcome_of
from squall.reporting.compare.changes import compare
from squall.reporting.compare.text import render_comparison
from squall.reporting.document.build import build_document, encode_document
from squall.reporting.document.model import typed
from squall.reporting.document.read import ResultsFile
from squall.store_mode.schedules.records import ChangeNote, RunComparison

CHANGES_MAX = 20
Judge = Callable[[JobResult, JobResult], Awaitable[RunComparison]]
"""Compares the run before with the run."""
REASON_MAX = 200


def is_comparable(result: JobResult) -> bool:
    """Whether the next run may be compared with this one."""
    return not result.refusal and result.status == "completed" and result.verdict.state != "INVALID"


def reason_of(result: JobResult) -> str:
    """Why the run did not pass, in one line; empty if it passed."""
    failed = (f"{each.name}: {each.error}" for each in result.workflows if each.error)
    broken = (f"{each.expression} failed" for each in result.thresholds if not each.passed)
    texts = (result.refusal, result.reason, *failed, *broken, *result.verdict.reasons)
    return next((each for each in texts if each), "")[:REASON_MAX]


async def judge_here(before: JobResult, after: JobResult) -> RunComparison:
    return judged(before, after)


def judged(before: JobResult, after: JobResult) -> RunComparison:
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
    return RunComparison(
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


def _read(result: JobResult) -> ResultsFile:
    content = encode_document(build_document(outcome_of(result)))
    document: dict[str, Any] = msgspec.json.decode(content)
    return ResultsFile(f"job {result.job}", document, typed(document))
