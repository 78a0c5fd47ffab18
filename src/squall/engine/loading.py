"""Importing the author's file, and telling the author's code from everybody else's.

Decides under which name a file is imported, which of its classes run, which frames of
a stack are the author's, and how a failure at import reads: always one line with the
author's own deepest line. Code of Squall, of the standard library, of installed
packages and generated code is never named as the author's.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path, PurePath
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import TypeVar

from squall.api.errors import AuthorError, ConfigError, SquallError, UsageError

T = TypeVar("T")

LONGEST_MESSAGE = 400
"""Characters of an exception's text that fit into the one line a person reads."""

TRACEBACK_ENDS = 12
"""Frames kept at each end of a long traceback; a recursion has a thousand alike."""

LONGEST_CHAIN = 5
"""Exceptions of a `raise ... from` chain that are shown."""

_INSTALLED = frozenset({"site-packages", "dist-packages", ".venv", "venv", ".tox", ".nox"})
_WITH_SIDE_EFFECTS = frozenset({"antigravity", "this"})


@dataclass(frozen=True, slots=True)
class AuthorFile:
    """The file this process runs, and how people are told its name."""

    path: Path
    shown: str


_current: AuthorFile | None = None
"""One core process runs one file, so error samples need not carry it around."""


def load_file(path: Path, shown: str) -> ModuleType:
    """Import an author's file. Failures are an `AuthorError`, or a `ConfigError` if the
    file's own declarations raised one; both name the author's line."""
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
        # Compiled here and not by the loader: like a script, the author's file leaves
        # no cached bytecode, which could be stale after two edits within one second.
        exec(loader.source_to_code(loader.get_data(str(path)), str(path)), module.__dict__)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        sys.path[:] = before
        raise _explained(_unwrapped(error), file) from error
    return module


def workflow_classes(module: ModuleType, base: type[T]) -> list[type[T]]:
    """The workflows that run: defined in this file, public, not abstract themselves."""
    found: dict[str, type[T]] = {}
    for bound, value in vars(module).items():
        if not isinstance(value, type) or value.__module__ != module.__name__:
            continue
        if not issubclass(value, base) or value is base or value.__name__.startswith("_"):
            continue
        if value.__dict__.get("abstract") is True:
            continue
        # Of two classes with one name, the one that has the name now: the last defined.
        if bound == value.__name__ or value.__name__ not in found:
            found[value.__name__] = value
    return list(found.values())


def author_frames(
    stack: TracebackType | FrameType | None, root: Path | None = None
) -> list[tuple[FrameType, int]]:
    """The author's frames of a traceback or of a running stack with their lines,
    outermost first. `root` is the folder of the author's file, by default the loaded one."""
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
    """The exception as Python prints it, with nothing but the author's frames."""
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


def is_installed(filename: str) -> bool:
    """Part of the standard library, of Squall or of an installed package: not the
    author's, wherever the author keeps modules."""
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
    """Says what is wrong with a path before anything is read or started."""
    if path.is_dir():
        raise UsageError(f"{shown}  is a directory; name a Python file (.py) in it")
    if not path.exists():
        raise UsageError(f"{shown}  no such file{_similar_file(path)}")
    if path.suffix != ".py":
        raise UsageError(f"{shown}  is not a Python file (.py)")


def _similar_file(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix == ".py"]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def _module_name(stem: str) -> str:
    """The file's stem, unless that name belongs to another module.

    The file's folder comes first on the path, so a file `http.py` would also hide the
    standard `http` from whoever imports it later: that one is imported before.
    """
    if stem in sys.stdlib_module_names and stem not in _WITH_SIDE_EFFECTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(stem)
    if stem in sys.stdlib_module_names or stem in sys.modules or "." in stem:
        return "squall_file_" + stem.replace(".", "_")
    return stem


def _unwrapped(error: BaseException) -> BaseException:
    """Python 3.11 hides what a descriptor raised when its class was made in a RuntimeError."""
    if isinstance(error, RuntimeError) and str(error).startswith("Error calling __set_name__"):
        cause = error.__cause__
        if isinstance(cause, Exception):
            # The class statement is only in the wrapper's traceback, the descriptor's
            # own lines are not the author's.
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
    if isinstance(error, ConfigError):
        message = str(error)
        named = re.search(re.escape(where.rpartition(":")[0] or where) + r":\d", message)
        return ConfigError(message if named else f"{where}  {message}")
    return AuthorError(f"{where}  {text}")


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
    folders.append(str(Path(__file__).parents[1]))
    if sys.prefix != sys.base_prefix:
        folders.append(sys.prefix)
    return tuple(dict.fromkeys(folders))
