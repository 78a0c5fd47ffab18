"""Secrets never leave through a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from squall.reporting.document.build import write_document
from squall.reporting.redaction import Redactor
from squall.stats.reports import ErrorSample


def test_a_value_is_hidden_plain_and_encoded() -> None:
    redact = Redactor(["a/b c", ""])
    text = "GET /?key=a%2Fb+c&old=a/b%20c\nAuthorization: Bearer a/b c"
    assert redact(text) == "GET /?key=***&old=***\nAuthorization: Bearer ***"


def test_a_secret_inside_another_leaves_no_rest() -> None:
    assert Redactor(["abcd", "abcdefgh"])("x abcdefgh y") == "x *** y"


def test_very_short_values_are_left_alone() -> None:
    assert Redactor(["1"])("12 of 31") == "12 of 31"


def test_the_results_document_holds_no_secret(tmp_path: Path, make_outcome: Any) -> None:
    outcome = make_outcome()
    outcome.stats.add(
        ErrorSample(
            workflow="Shop", row="login", reason="bad token s3cret", at_s=1.0, body="s3cret"
        )
    )
    path = tmp_path / "out.json"
    write_document(path, outcome, Redactor(["s3cret"]))
    text = path.read_text()
    assert "s3cret" not in text
    assert "bad token ***" in text
    assert json.loads(text)["workflows"][0]["steps"][0]["count"] == 500
