"""Every table of the documents is one: each row has as many cells as the head."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lab.programs import ROOT

PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")])
RULE = re.compile(r"\|(\s*:?-+:?\s*\|)+\s*$")


def cells(row: str) -> int:
    """An escaped bar is no border; one in code is."""
    return len(re.sub(r"\\\|", "", row.strip()).split("|")) - 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_row_has_as_many_cells_as_its_head(page: Path) -> None:
    blocks = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for block in blocks.split("\n\n"):
        rows = block.strip("\n").splitlines()
        rules = [number for number, row in enumerate(rows) if RULE.match(row.strip())]
        if not rules:
            continue
        head = rules[0] - 1
        for row in rows[head:]:
            assert row.strip().startswith("|") and row.strip().endswith("|"), row
            assert cells(row) == cells(rows[head]), row
