"""The house rules that a machine can check; the limits only fall.

Reads every text file of the repository as text and every Python file as a syntax tree.
It must never import the code that it looks at.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests", "examples", "bench", "docs", ".ci")
ALLOWED_IN_ROOT = {
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "bench",
    "docs",
    "examples",
    "pyproject.toml",
    "src",
    "tests",
}
LINES_IN_FILE = 600
LINES_IN_FUNCTION = 70
BANNED_MODULES = {"utils", "util", "helpers", "helper", "common", "base"}
BANNED_WORDS = re.compile(r"\b(TODO|FIXME|XXX|[Ff]or now)\b")
BANNED_EVERYWHERE = {"pickle", "cPickle", "cloudpickle", "dill", "shelve"}
BANNED_IN_LAYER = {
    "api": {"numpy", "uvloop", "httptools"},
    "stats": {"asyncio", "uvloop", "socket", "subprocess"},
}
MAY_PRINT = ("cli", "target")
TEXT = {".py", ".md", ".toml", ".json", ".txt", ".js", ".sh", ".conf", ""}

Finding = tuple[int, str]
Rule = Callable[[Path, ast.Module], Iterator[Finding]]


def text_files() -> list[Path]:
    """Every file that people write, without caches and pictures."""
    loose = [path for path in ROOT.iterdir() if path.is_file() and path.name in ALLOWED_IN_ROOT]
    nested = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
    return sorted(
        path
        for path in (*loose, *nested)
        if path.is_file() and path.suffix in TEXT and "__pycache__" not in path.parts
    )


def python_files() -> list[Path]:
    return [path for path in text_files() if path.suffix == ".py"]


def layer_of(path: Path) -> str:
    """The package under `squall` that holds the file, "" for files outside of it."""
    parts = path.relative_to(ROOT).parts
    return parts[2] if parts[:2] == ("src", "squall") and len(parts) > 3 else ""


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and first name of every absolute import, also of those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module.partition(".")[0]


def long_functions(path: Path, tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LINES_IN_FUNCTION:
                yield node.lineno, f"{node.name} has {lines} lines, at most {LINES_IN_FUNCTION}"


def banned_imports(path: Path, tree: ast.Module) -> Iterator[Finding]:
    banned = BANNED_EVERYWHERE | BANNED_IN_LAYER.get(layer_of(path), set())
    for line, name in imports(tree):
        if name in banned:
            yield line, f"imports {name}, which this layer must not"


def missing_docstrings(path: Path, tree: ast.Module) -> Iterator[Finding]:
    if path.is_relative_to(ROOT / "src") and not ast.get_docstring(tree):
        yield 1, "says nowhere what it decides: no module docstring"


def stray_prints(path: Path, tree: ast.Module) -> Iterator[Finding]:
    if not path.is_relative_to(ROOT / "src") or layer_of(path) in MAY_PRINT:
        return
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="print")):
                yield node.lineno, "prints; only commands and the target server may"
            case _:
                pass


def listed(findings: Iterable[tuple[Path, int, str]]) -> str:
    return "\n".join(f"{path.relative_to(ROOT)}:{line}  {what}" for path, line, what in findings)


@pytest.mark.parametrize("rule", [long_functions, banned_imports, missing_docstrings, stray_prints])
def test_python_files_keep_the_house_rules(rule: Rule) -> None:
    findings = [
        (path, line, what)
        for path in python_files()
        for line, what in rule(path, ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not findings, listed(findings)


def test_files_stay_short() -> None:
    counted = [
        (path, len(path.read_text(encoding="utf-8").splitlines())) for path in python_files()
    ]
    findings = [
        (path, lines, f"{lines} lines, at most {LINES_IN_FILE}: split it by duty")
        for path, lines in counted
        if lines > LINES_IN_FILE
    ]
    assert not findings, listed(findings)


def test_nothing_is_left_for_later() -> None:
    findings = [
        (path, number, line.strip())
        for path in text_files()
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if BANNED_WORDS.search(line)
    ]
    assert not findings, listed(findings)


def test_modules_are_named_after_what_they_do() -> None:
    findings = [
        (path, 1, "a junk drawer: name it after its duty")
        for path in (ROOT / "src").rglob("*")
        if path.stem.strip("_") in BANNED_MODULES
    ]
    assert not findings, listed(findings)


def test_the_root_holds_nothing_but_the_listed_files() -> None:
    shown = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if shown.returncode != 0:
        pytest.skip(f"no git checkout, so personal files cannot be told apart: {shown.stderr}")
    in_root = {line.partition("/")[0] for line in shown.stdout.splitlines()}
    assert in_root - ALLOWED_IN_ROOT == set()
