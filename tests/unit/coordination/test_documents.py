"""The examples in the documents run as they stand, on the memory store."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCUMENTS = Path(__file__).resolve().parents[3] / "docs" / "coordination"
PAGES = ("README", "election", "members", "signals", "stores", "queue", "scheduler", "ttl")
EXAMPLES = [
    pytest.param(text, id=f"{page}-{number}")
    for page in PAGES
    for number, text in enumerate(
        re.findall(r"^```python\n(.*?)^```", (DOCUMENTS / f"{page}.md").read_text(), re.M | re.S)
    )
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_runs(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(text, "example", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


def test_every_page_has_an_example() -> None:
    assert len(EXAMPLES) >= len(PAGES)
