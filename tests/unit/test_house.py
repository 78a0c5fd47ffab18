"""Nothing is shipped that nobody uses: settings without a reader, modules that only tests
import, laboratory code in the wheel.

Reads the product as syntax trees; only the settings tree is imported.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pytest

from squall.cluster.settings_tree import Settings
from tests.lab.syntax_trees import nodes_of, tree_of

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"

ENTRY_POINTS = (
    "squall",
    "squall.__main__",
    "squall.cli.main",
    "squall.client",
    "squall.coordination",
    "squall.engine.process.core",
    "squall.engine.run.in_process",
    "squall.python",
    "squall.target.__main__",
)
"""What users import or run, and the programs that Squall starts by name."""

UNUSED: set[str] = set()


@cache
def modules() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted((SOURCE / "squall").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


# Modules.


def names_in(module: str) -> Iterator[str]:
    """What a module may import: by statement, by a name in a string, by a table of names that
    an f-string completes (`f"squall.cli.{folder}.{module}"`), or as a file beside it. Imports
    for type checkers alone do not count."""
    path = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    texts, patterns = set[str](), list[str]()
    pending: list[ast.AST] = [tree_of(path)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending += node.orelse
            continue
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = (
                re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"([\w.]+)"
                for part in node.values
            )
            patterns.append("".join(parts))
    yield from texts
    for pattern in patterns:
        if pattern.startswith(re.escape("squall.")):
            found = (re.fullmatch(pattern, name) for name in modules())
            yield from (match[0] for match in found if match and texts.issuperset(match.groups()))
    yield from (f"{package}.{t.removesuffix('.py')}" for t in texts if t.endswith(".py"))


def reached(entry_points: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    pending = [each for each in entry_points if each in modules()]
    while pending:
        module = pending.pop()
        if module in found:
            continue
        found.add(module)
        package = module.rpartition(".")[0]
        pending += [each for each in (*names_in(module), package) if each in modules()]
    return found


def test_every_entry_point_exists() -> None:
    assert [each for each in ENTRY_POINTS if each not in modules()] == []


def test_no_module_is_imported_by_tests_only() -> None:
    unused = set(modules()) - reached(ENTRY_POINTS)
    assert unused == UNUSED


# Names of modules that only tests, benchmarks and the laboratory use. The table only shrinks.
UNUSED_NAMES = {
    *("RELATIVE_ERROR", "SCHEMA_PATH"),
    *("entries_of", "read_range", "with_prefix", "write_document"),
}


def test_no_function_class_or_constant_is_used_by_tests_only() -> None:
    words = Counter(
        word
        # Some pages of the documents are written from tables in the code.
        for path in (*modules().values(), *(ROOT / "docs").rglob("*.py"))
        for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))
    )
    unused = {
        name
        for path in modules().values()
        for node in tree_of(path).body
        for name in defined_by(node)
        if words[name] == 1
    }
    assert unused == UNUSED_NAMES


def defined_by(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case _:
            return []


def test_a_module_that_nobody_imports_is_found() -> None:
    fewer = tuple(each for each in ENTRY_POINTS if each != "squall.engine.run.in_process")
    assert "squall.engine.run.in_process" not in reached(fewer)


# Settings.


def sections() -> Iterator[tuple[str, type]]:
    for field in msgspec.structs.fields(Settings):
        assert isinstance(field.type, type)
        yield field.name, field.type


@cache
def readers() -> dict[str, set[Path]]:
    """The modules that read an attribute, by its name."""
    found: dict[str, set[Path]] = {}
    for path in modules().values():
        for node in nodes_of(tree_of(path)):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.setdefault(node.attr, set()).add(path)
    return found


def reads(name: str, defined_in: Path) -> bool:
    """Whether some other module of the product reads an attribute of this name."""
    return bool(readers().get(name, set()) - {defined_in})


def methods_that_read(name: str, section: type, defined_in: Path) -> Iterator[str]:
    """Methods of a section that use the value; its own checks do not count."""
    for node in nodes_of(tree_of(defined_in)):
        if isinstance(node, ast.ClassDef) and node.name == section.__name__:
            for method in node.body:
                if not isinstance(method, ast.FunctionDef) or method.name.startswith("__"):
                    continue
                if f"self.{name}" in ast.unparse(method):
                    yield method.name


def unread(section: type, names: list[str]) -> list[str]:
    path = modules()[section.__module__]
    return [
        name
        for name in names
        if not reads(name, path)
        and not any(reads(method, path) for method in methods_that_read(name, section, path))
    ]


@pytest.mark.parametrize(("name", "section"), list(sections()), ids=lambda each: str(each))
def test_every_setting_has_a_reader(name: str, section: type) -> None:
    settings_tree = modules()["squall.cluster.settings_tree"]
    assert reads(name, settings_tree), f"no module reads the section [{name}]"
    assert unread(section, list(section.__annotations__)) == []


def test_a_setting_without_a_reader_is_found() -> None:
    from squall.settings.shared_sections import TimerSettings

    names = ["heartbeat_round_s", "a_setting_that_nobody_reads"]
    assert unread(TimerSettings, names) == ["a_setting_that_nobody_reads"]


# The wheel, and what a run imports.


def test_the_wheel_holds_the_product_alone() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    build = configuration["tool"]["hatch"]["build"]
    # `packages` ships this folder and nothing else; any other key could add files, here or for
    # all targets. `dev-mode-dirs` concerns an editable installation only.
    assert build.pop("dev-mode-dirs")
    assert build == {"targets": {"wheel": {"packages": ["src/squall"]}}}
    laboratory = {"sim", "simulation", "scenarios", "mutants", "fakes", "tests", "lab"}
    assert [name for name in modules() if set(name.split(".")) & laboratory] == []


def test_a_local_run_imports_no_metrics_library() -> None:
    program = (
        "import sys, squall.cli.run.command, squall.engine.run.in_process; "
        "sys.exit('prometheus_client' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
