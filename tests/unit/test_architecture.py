"""The architecture page and the glossary name functions and files that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "squall"
HOP = re.compile(r"^\| .* \| `(?P<name>[\w.]+)` \| `(?P<file>[\w/]+\.py)` \|$", re.MULTILINE)


def hops(page: str) -> list[tuple[str, str]]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return [(found["name"], found["file"]) for found in HOP.finditer(text)]


def defines(file: Path, name: str) -> bool:
    scope: list[ast.stmt] = ast.parse(file.read_text(encoding="utf-8")).body
    for part in name.split("."):
        found = [
            node
            for node in scope
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == part
        ]
        if not found:
            return False
        scope = found[0].body
    return True


@pytest.mark.parametrize("page", ["architecture.md", "glossary.md"])
def test_every_named_function_exists(page: str) -> None:
    named = hops(page)
    assert len(named) >= 20, "the tables changed their form"
    missing = [
        f"{file}: {name}"
        for name, file in named
        if not (SOURCE / file).is_file() or not defines(SOURCE / file, name)
    ]
    assert missing == []


def test_the_architecture_page_lists_every_folder_of_the_top_level() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = [path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()]
    assert [name for name in folders if f"`{name}/`" not in text] == []
