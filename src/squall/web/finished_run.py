"""Makes the data that a page shows of a finished run from its outcome."""

from __future__ import annotations

from squall.engine.outcome import RunOutcome
from squall.reporting.redaction import Redactor
from squall.web.feed import FinishedRun


def finished_run(outcome: RunOutcome, redact: Redactor) -> FinishedRun:
    """The results document and the report, as `--json` and `--html` write them."""
    from squall.reporting.document.build import build_document, encode_document
    from squall.reporting.page.render import render_html
    from squall.reporting.text.summary import render_summary

    document = redact.document(build_document(outcome))
    summary = redact(render_summary(outcome))
    return FinishedRun(
        document=encode_document(document),
        report=render_html(document, summary).encode("utf-8", "replace"),
    )
