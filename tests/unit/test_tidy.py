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
from functools import cache
from pathlib import Path

import pytest

from tests.lab.syntax_trees import nodes_of, paused_collector, tree_of

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = ("src", "lab", "tests", "examples", "bench", "deploy", "docs", ".ci")
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
    "lab",
    "pyproject.toml",
    "src",
    "tests",
}
LINES_IN_FILE = 600
LINES_IN_FUNCTION = 70
MODULES_IN_FOLDER = 15
# Folders that may hold more modules, with their number. The table only shrinks.
CROWDED: dict[str, int] = {}
# Names that say nothing about a duty: junk drawers, metaphors, gerunds for things, prepositions.
BANNED_MODULES = {
    *("utils", "util", "helpers", "helper", "common", "base", "misc", "stuff", "tools"),
    *("pulse", "heart", "life", "graves", "takers", "patience", "errands", "office", "desk"),
    *("kept", "books", "rests", "marks", "vault", "shelf", "silence", "moments"),
    *("keeping", "telling", "handling", "reaching", "leaving", "watching", "onlooking"),
    *("alone", "beside", "upkeep", "advice", "words", "facts", "parcels", "holding"),
}
# Names of classes that several modules define, each with a meaning of its own. The table only
# shrinks: say whose it is (`StepRecord`, `WorkSlot`).
AMBIGUOUS_CLASSES = {
    *("Admission", "BlobHeld", "Checkpoints", "Counter", "Fence", "Fetch", "Gauge"),
    *("HandOver", "Histogram", "Housekeeping", "JobRecord", "Keyring", "Kind"),
    *("Listener", "Log", "Member", "OutcomeUnknown", "Prepare", "Profile", "Refusal"),
    *("Role", "ScheduleRunner", "Sender", "Shop", "Timers"),
}
BANNED_WORDS = re.compile(r"\b(TODO|FIXME|XXX|[Ff]or now)\b")
BANNED_EVERYWHERE = {"pickle", "cPickle", "cloudpickle", "dill", "shelve"}
BANNED_IN_LAYER = {
    "api": {"numpy", "uvloop", "httptools"},
    "stats": {"asyncio", "uvloop", "socket", "subprocess"},
}
MAY_PRINT = ("cli", "target")
MAY_TOUCH_THE_WORLD = {
    "runtime",  # the only way to the world for everything that is not listed here
    "settings",  # read from a file and the environment, before a node starts
    "api",  # the author's side: lives in core processes, with the engine
    "engine",  # hot path on the real loop; a model stands in for it in a simulation
    "clients",
    "target",
    "cli",
    "reporting",
    "web",  # serves viewers in a thread of its own, beside what a simulation runs
    "python.py",
    "run_arguments.py",
    "client.py",
    "job_callbacks.py",
}
LIBRARIES_TOUCH_IT = {
    # A store lives outside of the simulation, where the memory store stands in for it. Its
    # library does the input and output; SQLite blocks, so it has threads of its own.
    "coordination/stores/sqlite/store.py": {"concurrent", "run_in_executor", "read_text"},
    "coordination/stores/s3/objects.py": {"urllib"},
    # `os` for the text of an error number.
    "coordination/stores/redis/connection.py": {"ssl", "create_connection", "os"},
    # Its own Lua files, once, when it is imported.
    "coordination/stores/redis/scripts.py": {"read_text"},
    # Secrets lie outside of the data directory, which is all that runtime.disk reaches: a
    # mounted file, a variable, or one HTTP request in a thread.
    "coordination/secrets/sources.py": {"urllib", "to_thread", "read_text", "os", "secrets"},
    "coordination/operations/secret_rotation.py": {"os", "read_text"},
    # A client reads the environment and the secret's file before it has a runtime.
    "cluster/client/access.py": {"os", "read_text"},
    "cluster/client/connection.py": {"os", "secrets", "read_text"},
    "cluster/client/local_datacenter.py": {"os", "read_bytes", "write_bytes"},
    "store_mode/access.py": {"os"},
    # What a term runs, its end and its failure are awaited and ended in one function.
    "store_mode/node.py": {"ensure_future"},
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
TEXT = {".py", ".lua", ".md", ".toml", ".json", ".txt", ".js", ".sh", ".conf", ""}

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
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.lineno, node.module.partition(".")[0]


def long_functions(path: Path, tree: ast.Module) -> Iterator[Finding]:
    for node in nodes_of(tree):
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
    for node in nodes_of(tree):
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


def docstrings_without_a_subject(path: Path, tree: ast.Module) -> Iterator[Finding]:
    """ "Of one member." says whose it is, not what it is."""
    for node in nodes_of(tree):
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and (ast.get_docstring(node) or "").startswith("Of "):
            yield getattr(node, "lineno", 1), 'a docstring that begins with "Of": say what it is'


def stray_prints(path: Path, tree: ast.Module) -> Iterator[Finding]:
    if not path.is_relative_to(ROOT / "src") or layer_of(path) in MAY_PRINT:
        return
    for node in nodes_of(tree):
        match node:
            case ast.Call(func=ast.Name(id="print")):
                yield node.lineno, "prints; only commands and the target server may"
            case _:
                pass


def listed(findings: Iterable[tuple[Path, int, str]]) -> str:
    return "\n".join(f"{path.relative_to(ROOT)}:{line}  {what}" for path, line, what in findings)


RULES: tuple[Rule, ...] = (
    long_functions,
    banned_imports,
    touches_the_world,
    missing_docstrings,
    docstrings_without_a_subject,
    stray_prints,
)


@cache
def findings_by_rule() -> dict[str, list[tuple[Path, int, str]]]:
    """Parses each file once for all rules."""
    found: dict[str, list[tuple[Path, int, str]]] = {rule.__name__: [] for rule in RULES}
    with paused_collector():
        for path in python_files():
            tree = tree_of(path)
            for rule in RULES:
                found[rule.__name__] += [(path, line, what) for line, what in rule(path, tree)]
    return found


@pytest.mark.parametrize("rule", [rule.__name__ for rule in RULES])
def test_python_files_keep_the_house_rules(rule: str) -> None:
    findings = findings_by_rule()[rule]
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
    assert list(touches_the_world(ROOT / "src/squall/cluster/settings_tree.py", tree))
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


def test_folders_hold_few_modules() -> None:
    counted = Counter(
        path.parent.relative_to(ROOT).as_posix()
        for folder in ("src", "lab")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py"
    )
    crowded = {name: count for name, count in counted.items() if count > MODULES_IN_FOLDER}
    assert crowded == CROWDED, "split a folder that grew; shorten the table when one shrank"


def test_every_folder_explains_itself() -> None:
    """What lives here, and where to start: two lines at least for a folder with several modules."""
    silent = [
        path.parent.relative_to(ROOT).as_posix()
        for folder in ("src", "lab")
        for path in (ROOT / folder).rglob("__init__.py")
        if len(ast.get_docstring(tree_of(path)) or "") < 40
    ]
    assert silent == []


def test_modules_are_named_after_what_they_do() -> None:
    findings = [
        (path, 1, "a junk drawer: name it after its duty")
        for folder in ("src", "lab")
        for path in (ROOT / folder).rglob("*")
        if path.stem.strip("_") in BANNED_MODULES and "__pycache__" not in path.parts
    ]
    assert not findings, listed(findings)


def test_one_class_name_means_one_thing() -> None:
    counted = Counter(
        node.name
        for path in python_files()
        if path.is_relative_to(ROOT / "src")
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    repeated = {name for name, count in counted.items() if count > 1}
    assert repeated == AMBIGUOUS_CLASSES, "say whose it is; shorten the table when one is renamed"


def imported_tests(tree: ast.Module) -> Iterator[Finding]:
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
        else:
            continue
        if any(part.startswith("test_") for name in names for part in name.split(".")):
            yield node.lineno, "imports a test module: move what they share into a lab"


def test_no_module_of_the_tests_imports_a_test_module() -> None:
    findings = [
        (path, line, what)
        for path in python_files()
        if path.is_relative_to(ROOT / "tests")
        for line, what in imported_tests(tree_of(path))
    ]
    assert not findings, listed(findings)


@pytest.mark.parametrize(
    "code",
    [
        "from tests.unit.stats.test_verdict import made",
        "from tests.unit.stats import test_verdict",
        "import tests.unit.stats.test_verdict",
        "def f():\n    from tests.unit.stats.test_verdict import made",
    ],
)
def test_an_import_of_a_test_module_is_found(code: str) -> None:
    assert list(imported_tests(ast.parse(code)))


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
