"""One finding of an examination: a verdict, what was found, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Verdict = Literal["good", "doubtful", "bad"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `squall coord doctor`."""

    about: str
    verdict: Verdict
    text: str
    advice: str = ""


def worst(findings: Sequence[Finding]) -> Verdict:
    verdicts = {finding.verdict for finding in findings}
    return "bad" if "bad" in verdicts else "doubtful" if "doubtful" in verdicts else "good"
