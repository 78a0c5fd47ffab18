"""The house rules that a machine can check; the limits only fall.

Reads every text file of the repository as text and every Python file as a syntax tree.
It must never import the code that it looks at.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src", "tests", "examples", "bench", "deploy", "docs", ".ci")
ALLOWED_IN_ROOT = {
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "bench",
    "deploy",
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
MAY_TOUCH_THE_WORLD = {
    "runtime",  # the only way to the world for everything that is not listed here
    "sim",  # which simulates it, and reads the real clock for people
    "scenarios",  # toy programs and campaigns of the simulation, no part of a node
    "api",  # the author's side: lives in core processes, with the engine
    "engine",  # hot path on the real loop; a model stands in for it in a simulation
    "clients",
    "target",
    "cli",
    "reporting",
    "python.py",
    "client.py",
}
LIBRARIES_TOUCH_IT = {
    # A store lives outside of the simulation, where the memory store stands in for it. Its
    # library does the input and output; SQLite blocks, so it has threads of its own.
    "coordination/stores/sqlite.py": {"concurrent", "run_in_executor", "read_text"},
    "coordination/stores/s3_objects.py": {"urllib"},
    "coordination/stores/redis_line.py": {"ssl", "create_connection"},
    # Secrets lie outside of the data directory, which is all that runtime.disk reaches: a
    # mounted file, a variable, or one HTTP request in a thread.
    "coordination/secrets.py": {"urllib", "to_thread", "read_text", "os", "secrets"},
    "coordination/rotation.py": {"os", "read_text"},
    # What a term runs, its end and its failure are awaited and ended in one function.
    "nodes/agent/node.py": {"ensure_future"},
}
WORLD_MODULES = {
    *("time", "secrets", "uuid", "tempfile", "shutil", "glob", "fcntl", "mmap", "os", "io"),
    *("socket", "ssl", "select", "selectors", "socketserver", "urllib", "ctypes"),
    *("threading", "_thread", "multiprocessing", "concurrent", "queue", "subprocess", "signal"),
    *("uvloop", "logging", "sched", "resource"),
}
WORLD_CALLS = {
    *("create_task", "ensure_future", "run_in_executor", "to_thread", "TaskGroup"),
    *("open_connection", "start_server", "open_unix_connection", "start_unix_server"),
    *("create_server", "create_connection", "create_datagram_endpoint", "create_unix_server"),
    *("create_subprocess_exec", "create_subprocess_shell", "subprocess_exec", "add_reader"),
    *("add_writer", "add_signal_handler", "sock_connect", "sock_recv", "sock_sendall"),
    *("read_text", "read_bytes", "write_text", "write_bytes", "utcnow", "today"),
}
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


def place_of(path: Path) -> str:
    """The package under `squall` that holds the file, or the name of a module beside them."""
    parts = path.relative_to(ROOT).parts
    return parts[2] if parts[:2] == ("src", "squall") else ""


def touches_the_world(path: Path, tree: ast.Module) -> Iterator[Finding]:
    """Time, randomness, sockets, files, threads, processes, tasks that nobody owns."""
    if place_of(path) in {"", *MAY_TOUCH_THE_WORLD}:
        return
    exempt = LIBRARIES_TOUCH_IT.get("/".join(path.relative_to(ROOT).parts[2:]), set[str]())
    for line, name in imports(tree):
        if name in WORLD_MODULES and name not in exempt:
            yield line, f"imports {name}: ask the runtime"
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="open")):
                yield node.lineno, "opens a file: ask runtime.disk"
            case ast.Call(func=ast.Attribute(value=of, attr="open")) if re.search(
                r"Path\(|path$|file$", ast.unparse(of)
            ):
                yield node.lineno, "opens a file: ask runtime.disk"
            case ast.Call(func=ast.Attribute(attr=name)) if name in WORLD_CALLS - exempt:
                yield node.lineno, f"calls {name}: ask the runtime or the TaskRunner"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="datetime"), attr="now")):
                yield node.lineno, "reads the wall clock: ask runtime.clock"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="random"), attr=name)):
                yield node.lineno, f"calls random.{name}: ask runtime.random"
            case ast.Call(func=ast.Name(id="Random")):
                yield node.lineno, "makes a source of randomness: ask runtime.random"
            case ast.ImportFrom(module="random", names=names) if any(
                alias.name != "Random" for alias in names
            ):
                yield node.lineno, "imports from random: only the type Random"
            case ast.ImportFrom(module="asyncio", names=names) if any(
                alias.name in WORLD_CALLS for alias in names
            ):
                yield node.lineno, "imports a task or a socket from asyncio: ask the runtime"
            case _:
                pass


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


@pytest.mark.parametrize(
    "rule",
    [long_functions, banned_imports, touches_the_world, missing_docstrings, stray_prints],
)
def test_python_files_keep_the_house_rules(rule: Rule) -> None:
    findings = [
        (path, line, what)
        for path in python_files()
        for line, what in rule(path, ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not findings, listed(findings)


@pytest.mark.parametrize(
    "code",
    [
        "import time",
        "from time import monotonic",
        "import os",
        "import socket",
        "import threading",
        "def f():\n    import subprocess",
        "from random import randint",
        "import random\nx = random.random()",
        "import random\nx = random.Random(1)",
        "from random import Random\nx = Random()",
        "import asyncio\nasyncio.create_task(f())",
        "import asyncio\nasyncio.get_running_loop().create_task(f())",
        "import asyncio\nasyncio.open_connection('h', 1)",
        "from asyncio import create_task",
        "import asyncio\nasyncio.create_subprocess_exec('ls')",
        "x = open('f')",
        "from pathlib import Path\nPath('f').read_bytes()",
        "from pathlib import Path\nPath('f').open()",
        "from datetime import datetime\nx = datetime.now()",
    ],
)
def test_a_node_cannot_reach_around_its_runtime(code: str) -> None:
    tree = ast.parse(code)
    assert list(touches_the_world(ROOT / "src/squall/wire/any.py", tree))
    assert list(touches_the_world(ROOT / "src/squall/settings.py", tree))
    assert not list(touches_the_world(ROOT / "src/squall/runtime/any.py", tree))


@pytest.mark.parametrize(
    "code",
    [
        "import random\ndef f(source: random.Random) -> float:\n    return source.random()",
        "from random import Random\ndef f(source: Random) -> float:\n    return source.random()",
        "async def f(runtime):\n    await runtime.disk.open('wal')",
        "def f(seal):\n    return seal.open(b'box')",
        "import asyncio\nasync def f():\n    await asyncio.sleep(1)",
    ],
)
def test_what_comes_from_the_runtime_is_free_to_use(code: str) -> None:
    assert not list(touches_the_world(ROOT / "src/squall/wire/any.py", ast.parse(code)))


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


def test_no_two_test_modules_have_one_name() -> None:
    """pytest imports them by their names alone."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("*.py"))
    assert [name for name, count in names.items() if count > 1] == ["conftest.py"]


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
