"""Imports the author's file, and distinguishes the author's code from all other code.

Decides under which name a file is imported, which of its classes run, which frames of
a stack are the author's, and how an import failure is reported: always in one line that
names the author's own deepest line. Code of Squall, of the standard library and of installed
packages, and generated code, is never reported as the author's.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib
import importlib.util
import inspect
import linecache
import os
import re
import sys
import sysconfig
import textwrap
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path, PurePath
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any, TypeVar, cast

from squall.api.errors import AuthorError, ConfigError, SquallError, UsageError
from squall.api.feeds import Feed
from squall.api.hooks import (
    BARE,
    Hook,
    Step,
    action,
    check,
    depends,
    metric,
    state,
    step,
    then,
)
from squall.api.metrics import Metric
from squall.api.protocols.proto import Proto
from squall.api.resources import Resource
from squall.api.values import bearer, env
from squall.engine.plan.lost_declarations import kind_of
from squall.engine.plan.written_code import def_line, value_of

T = TypeVar("T")

LONGEST_MESSAGE = 400
"""Characters of an exception's text that are shown in one line."""

TRACEBACK_ENDS = 12
"""Frames kept at each end of a long traceback: a recursion has a thousand equal ones."""

LONGEST_CHAIN = 5
"""Exceptions of a `raise ... from` chain that are shown."""

_INSTALLED = frozenset({"site-packages", "dist-packages", ".venv", "venv", ".tox", ".nox"})
_DECORATORS = (action, check, depends, metric, state, step, then)
_CALLED_IN_FILES = {
    called.__name__: called for called in (*_DECORATORS, Feed, Proto, Resource, bearer, env)
}
_WITH_SIDE_EFFECTS = frozenset({"antigravity", "this"})
_OF_CLIENTS = frozenset({"google", "graphql", "grpc", "hpack", "qh3"})


@dataclass(frozen=True, slots=True)
class AuthorFile:
    """The file that this process runs, and its name in messages."""

    path: Path
    shown: str


# Global because a core process runs one file; error samples need not name it.
_current: AuthorFile | None = None


def load_file(path: Path, shown: str) -> ModuleType:
    """Imports an author's file. Raises an `AuthorError`, or a `ConfigError` if a declaration
    in the file raised one; both name the author's line."""
    global _current
    path = Path(os.path.abspath(path))
    refuse_no_python_file(path, shown)
    _current = file = AuthorFile(path, shown)
    linecache.checkcache(str(path))
    name = _module_name(path.stem)
    loader = SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None, "a location and a loader always make a spec"
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    try:
        # Compiled here and not by the loader, so that the file leaves no cached bytecode: that
        # could be stale after two edits within one second.
        exec(loader.source_to_code(loader.get_data(str(path)), str(path)), module.__dict__)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        sys.path[:] = before
        raise _explained(_unwrapped(error), file) from error
    return module


def workflow_classes(module: ModuleType, base: type[T]) -> list[type[T]]:
    """The workflows that run: defined in this file, public, not abstract themselves. Raises a
    `ConfigError` if two of them have one name."""
    _refuse_hidden_workflow(module, base)
    found: dict[str, tuple[str, type[T]]] = {}
    for bound, value in vars(module).items():
        _refuse_bare_depends(module, bound, value)
        _refuse_stray_hook(module, bound, value)
        if not isinstance(value, type) or value.__module__ != module.__name__:
            continue
        if not issubclass(value, base) or value is base or value.__name__.startswith("_"):
            continue
        if value.__dict__.get("abstract") is True:
            continue
        first, known = found.setdefault(value.__name__, (bound, value))
        if known is not value:
            # Such as two classes that one function made.
            raise ConfigError(
                f"{_shown_name(str(module.__file__))}  {value.__name__}: {first} and {bound} are "
                "two workflows of this name; give one of them another name"
            )
    return [value for _, value in found.values()]


def _refuse_bare_depends(module: ModuleType, bound: str, value: object) -> None:
    """Raises a `ConfigError` if `@depends` without parentheses took the place of its class."""
    given = getattr(value, BARE, ())
    if len(given) == 1 and getattr(given[0], "__name__", "") == bound:
        line = class_line(given[0])
        raise ConfigError(
            f"{shown_line(str(module.__file__), line)}  {bound}: "
            'write @depends("Workflow") with its parentheses'
        )


def _refuse_stray_hook(module: ModuleType, bound: str, value: object) -> None:
    """Raises a `ConfigError` if a hook belongs to no class, because its indentation is wrong."""
    if isinstance(value, Hook | Step) and not value.name:
        place = shown_line(str(module.__file__), def_line(value.function))
        kind = kind_of(cast(object, value))
        raise ConfigError(
            f"{place}  {bound}: this {kind} stands "
            "outside a class and never runs; indent it into its workflow"
        )


def class_line(workflow: type) -> int:
    """The line of `class`, below the decorators."""
    try:
        lines, first = inspect.getsourcelines(workflow)
    except (OSError, TypeError):
        return 0
    for offset, text in enumerate(lines):
        if text.lstrip().startswith("class "):
            return first + offset
    return first


def attribute_lines(workflow: type) -> dict[str, list[int]]:
    """The line of each class attribute that is assigned in the class, or in a base of its file. A
    list or tuple that is written there is followed by the lines of its items."""
    found: dict[str, list[int]] = {}
    for base in reversed(workflow.__mro__):
        if base.__module__ != workflow.__module__:
            continue
        try:
            lines, first = inspect.getsourcelines(base)
            tree = ast.parse(textwrap.dedent("".join(lines)))
        except (OSError, TypeError, SyntaxError):
            continue
        for node in tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else ():
            if not isinstance(node, ast.Assign | ast.AnnAssign):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            items = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else []
            written = [first + each.lineno - 1 for each in (node, *items)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            found |= dict.fromkeys(names, written)
    return found


def _refuse_hidden_workflow(module: ModuleType, base: type) -> None:
    """Raises a `ConfigError` if a class statement of the file replaces a workflow.

    Python keeps only the last class of a name, so that the first would never run. The module no
    longer has it, therefore the source is read. Only statements at the top level count: of the
    classes under `if` and `else` one exists.
    """
    filename = str(module.__file__)
    workflows: dict[str, int] = {}
    for node in ast.parse("".join(linecache.getlines(filename))).body:
        if not isinstance(node, ast.ClassDef):
            continue
        if node.name in workflows:
            raise ConfigError(
                f"{shown_line(filename, node.lineno)}  {node.name}: a second class of this name "
                f"replaces the workflow of line {workflows[node.name]}; "
                "give one of them another name"
            )
        bases = [value_of(each, vars(module)) for each in node.bases]
        is_workflow = any(isinstance(each, type) and issubclass(each, base) for each in bases)
        if is_workflow and not node.name.startswith("_"):
            workflows[node.name] = node.lineno


def author_frames(
    stack: TracebackType | FrameType | None, root: Path | None = None
) -> list[tuple[FrameType, int]]:
    """The author's frames of a traceback or of a running stack with their lines, outermost
    first. `root` is the folder of the author's file; by default that of the loaded file."""
    if root is None:
        if _current is None:
            return []
        root = _current.path.parent
    folder = str(root)
    if isinstance(stack, FrameType):
        frames = list(_walk_up(stack))[::-1]
    else:
        frames = list(traceback.walk_tb(stack))
    return [
        (frame, line) for frame, line in frames if _is_authors(frame.f_code.co_filename, folder)
    ]


def author_location(exception: BaseException) -> str:
    """`shop.py:31 in pay`: the author's deepest line, or "" if none was involved."""
    frames = author_frames(exception.__traceback__)
    if not frames:
        return ""
    frame, line = frames[-1]
    function = function_name(frame.f_code)
    place = shown_line(frame.f_code.co_filename, line)
    return f"{place} in {function}" if function else place


def author_traceback(exception: BaseException) -> str:
    """The exception as Python prints it, with the author's frames only."""
    parts = [_one_traceback(exception)]
    current = exception
    seen = {id(exception)}
    while len(seen) < LONGEST_CHAIN:
        if current.__cause__ is not None:
            current, link = current.__cause__, "which was the direct cause of:"
        elif current.__context__ is not None and not current.__suppress_context__:
            current, link = current.__context__, "and while that was handled:"
        else:
            break
        if id(current) in seen:
            break
        seen.add(id(current))
        parts += [link, _one_traceback(current)]
    return "\n".join(reversed(parts))


def shown_line(filename: str, line: int) -> str:
    """`shop.py:31`, with the path as the author named it on the command line."""
    return f"{_shown_name(filename)}:{line}"


def author_place(filename: str, line: int) -> str:
    """`shop.py:31` if that line is the author's, else ""."""
    if _current is None or not _is_authors(filename, _folder(_current)):
        return ""
    return shown_line(filename, line)


def is_installed(filename: str) -> bool:
    """Whether a file belongs to the standard library, Squall or an installed package; it is
    not the author's then, wherever the author keeps modules."""
    root = "" if _current is None else _folder(_current)
    inside = _inside(filename, root) if root else None
    if not _INSTALLED.isdisjoint(PurePath(filename if inside is None else inside).parts):
        return True
    return any(
        _inside(filename, foreign) is not None and not (root and _inside(root, foreign) is not None)
        for foreign in _foreign_folders()
    )


def function_name(code: CodeType) -> str:
    """The named function around this code; "" at the top level of a file."""
    names = [name for name in code.co_qualname.split(".") if not name.startswith("<")]
    return names[-1] if names else ""


def refuse_no_python_file(path: Path, shown: str) -> None:
    """Raises a `UsageError` if the path is not a Python file. Called before anything starts."""
    if path.is_dir():
        raise UsageError(f"{shown}  is a directory; name a Python file (.py) in it")
    if not path.exists():
        hint = f"; for a URL, write http://{shown}" if _is_address(shown) else ""
        raise UsageError(f"{shown}  no such file{_similar_file(path) or hint}")
    # A named pipe would be waited for, and could be read only once.
    if path.suffix != ".py" or not path.is_file():
        raise UsageError(f"{shown}  is not a Python file (.py)")


def _is_address(text: str) -> bool:
    """Whether a text looks like a URL without its scheme: `127.0.0.1:8080/`, `shop.test/cart`."""
    host, _, port = text.partition("/")[0].partition(":")
    if port.isdecimal() or host == "localhost":
        return True
    return "." in host.strip(".") and not text.endswith(".py")


def _similar_file(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix == ".py"]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def _module_name(stem: str) -> str:
    """The file's stem, unless that name belongs to another module.

    The file's folder comes first on the path, so a file `http.py` would also hide the standard
    `http` from later imports: the standard module is therefore imported first, and so are packages
    that a client needs.
    """
    is_standard = stem in sys.stdlib_module_names and stem not in _WITH_SIDE_EFFECTS
    if is_standard or stem in _OF_CLIENTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(stem)
    if stem in sys.stdlib_module_names or stem in sys.modules or "." in stem:
        return "squall_file_" + stem.replace(".", "_")
    return stem


def _unwrapped(error: BaseException) -> BaseException:
    """The error that a descriptor raised while its class was made. Python 3.11 wraps it in a
    RuntimeError."""
    if isinstance(error, RuntimeError) and str(error).startswith("Error calling __set_name__"):
        cause = error.__cause__
        if isinstance(cause, Exception):
            # Only the wrapper's traceback has the author's class statement; the lines of the
            # descriptor are ours.
            return cause.with_traceback(error.__traceback__)
    return error


def _explained(error: BaseException, file: AuthorFile) -> SquallError:
    text = _one_line(error)
    where = file.shown
    if isinstance(error, SyntaxError) and _is_authors(error.filename or "", _folder(file)):
        where = shown_line(error.filename or "", error.lineno or 1)
        text = f"{type(error).__name__}: {error.msg}"
    elif frames := author_frames(error.__traceback__, file.path.parent):
        frame, line = frames[-1]
        where = shown_line(frame.f_code.co_filename, line)
    message = str(error) if isinstance(error, ConfigError) else _wrong_call(error, file)
    if not message:
        return AuthorError(f"{where}  {text}")
    if re.search(re.escape(where.rpartition(":")[0] or where) + r":\d", message):
        return ConfigError(message)
    owner = _class_of(error, file)
    if owner and not re.match(rf"{owner}\b", message):
        message = f"{owner}: {message}"
    return ConfigError(f"{where}  {message}")


def _class_of(error: BaseException, file: AuthorFile) -> str:
    """The class whose body raised the error; "" outside of class bodies."""
    for frame, _ in reversed(author_frames(error.__traceback__, file.path.parent)):
        code = frame.f_code
        if not code.co_flags & inspect.CO_OPTIMIZED and code.co_name != "<module>":
            return code.co_name
    return ""


def _wrong_call(error: BaseException, file: AuthorFile) -> str:
    """Says which arguments one of Squall's names takes, if the author's line called it with
    others; "" for any other error. Python raises that error in the frame of the caller."""
    frames = author_frames(error.__traceback__, file.path.parent)
    deepest = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1:]
    if not isinstance(error, TypeError) or [frame for frame, _ in frames[-1:]] != deepest:
        return ""
    match = re.match(r"(\w+)(?:\.__init__)?\(\) (.+)", str(error))
    if match is None:
        return ""
    name, problem = match.groups()
    called: Callable[..., Any] | None = _CALLED_IN_FILES.get(name)
    if name == Metric.__name__:
        # The four kinds share one constructor.
        name, called = "Counter, Gauge, Rate and Sample", Metric
    if called is None:
        return ""
    return f"{name}() {problem}; it takes {_arguments(called)}"


def _arguments(called: Callable[..., Any]) -> str:
    named = [str(each).partition(":")[0].partition("=")[0] for each in _parameters(called)]
    return ", ".join(name for name in named if name != "*misplaced") or "nothing"


def _parameters(called: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(called).parameters.values())


def _one_line(error: BaseException) -> str:
    try:
        message = " ".join(str(error).split())
    except Exception:
        message = "(its text cannot be shown)"
    if len(message) > LONGEST_MESSAGE:
        message = message[: LONGEST_MESSAGE - 3] + "..."
    name = type(error).__name__
    return f"{name}: {message}" if message else name


def _one_traceback(exception: BaseException) -> str:
    lines = ["Traceback (most recent call last):"]
    frames = author_frames(exception.__traceback__)
    hidden = len(frames) - 2 * TRACEBACK_ENDS
    for position, (frame, line) in enumerate(frames):
        if hidden > 0 and TRACEBACK_ENDS <= position < TRACEBACK_ENDS + hidden:
            if position == TRACEBACK_ENDS:
                lines.append(f"  ... {hidden} more")
            continue
        code = frame.f_code
        lines.append(f'  File "{_shown_name(code.co_filename)}", line {line}, in {code.co_name}')
        source = linecache.getline(code.co_filename, line, frame.f_globals).strip()
        if source:
            lines.append(f"    {source}")
    if not frames:
        lines.clear()
    lines.append("".join(traceback.format_exception_only(exception)).rstrip("\n"))
    return "\n".join(lines)


def _shown_name(filename: str) -> str:
    if _current is None:
        return filename
    if filename == str(_current.path):
        return _current.shown
    inside = _inside(filename, _folder(_current))
    return filename if inside is None else str(PurePath(_current.shown).parent / inside)


def _folder(file: AuthorFile) -> str:
    return str(file.path.parent)


def _walk_up(frame: FrameType) -> Iterator[tuple[FrameType, int]]:
    # f_lineno is None between lines; 0 keeps the frame without inventing a line.
    current: FrameType | None = frame
    while current is not None:
        yield current, current.f_lineno or 0
        current = current.f_back


@lru_cache(maxsize=4096)
def _is_authors(filename: str, root: str) -> bool:
    inside = _inside(filename, root)
    if inside is None or not _INSTALLED.isdisjoint(PurePath(inside).parts):
        return False
    return not any(
        _inside(filename, foreign) is not None and _inside(root, foreign) is None
        for foreign in _foreign_folders()
    )


def _inside(filename: str, folder: str) -> str | None:
    """The path relative to `folder`; None if it is elsewhere or no path at all."""
    if not os.path.isabs(filename):
        return None
    for base, name in ((folder, filename), (os.path.realpath(folder), os.path.realpath(filename))):
        prefix = base.rstrip(os.sep) + os.sep
        if name.startswith(prefix):
            return name[len(prefix) :]
    return None if filename.rstrip(os.sep) != folder.rstrip(os.sep) else ""


@cache
def _foreign_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders.append(str(Path(__file__).parents[2]))
    if sys.prefix != sys.base_prefix:
        folders.append(sys.prefix)
    return tuple(dict.fromkeys(folders))
