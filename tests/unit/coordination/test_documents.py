"""The examples in the documents run as they stand, on the memory store."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.programs import ROOT

DOCUMENTS = ROOT / "docs" / "coordination"
WRONG = """
from squall.coordination import Coordinator
from squall.coordination.events import CoordinatorDead, CoordinatorDemoted


def handle(event: CoordinatorDead) -> None: ...


async def main(member: Coordinator) -> None:
    member.on(CoordinatorDemoted, handle)
    async for event in member.events(CoordinatorDemoted):
        print(event.reasons)
    Coordinator("memory:", max_retry=3)
"""
PAGES = sorted(DOCUMENTS.glob("*.md"))


def examples(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)


EXAMPLES = [
    pytest.param(text, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, text in enumerate(examples(page))
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_runs(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(text, "example", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_has_an_example_on_the_memory_store(page: Path) -> None:
    found = examples(page)
    assert found
    assert all("memory:" in text or "MemoryStore" in text for text in found)


def test_type_checkers_accept_the_examples(tmp_path: Path) -> None:
    """Events have the type that was asked for, options their own."""
    pyright = Path(sys.executable).with_name("pyright")
    if not pyright.exists():
        pytest.skip("pyright is not installed")
    for page in PAGES:
        for number, text in enumerate(examples(page)):
            (tmp_path / f"{page.stem}_{number}.py").write_text(text)
    (tmp_path / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [str(pyright), "--pythonpath", sys.executable, "--outputjson", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert {Path(each["file"]).name for each in found} == {"wrong.py"}, done.stdout
    lines = {each["range"]["start"]["line"] for each in found}
    assert {WRONG.splitlines()[line].strip() for line in lines} == {
        "member.on(CoordinatorDemoted, handle)",
        "print(event.reasons)",
        'Coordinator("memory:", max_retry=3)',
    }
