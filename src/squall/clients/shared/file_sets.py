"""Files that a workflow names by a folder or a pattern: found, read once and kept in memory.

Paths are relative to the workflow file and come in alphabetical order, the same on every machine. A
bundle finds its files with `found_in` and `matching`, too, so a run on another machine reads the
same ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from squall.api.arguments import FileSet, Prepared
from squall.api.errors import CallError

if TYPE_CHECKING:
    from squall.clients.http.shared import HTTPShared

# A folder that was named by mistake, such as the home folder, must not fill the memory.
MOST_FILES = 10_000
MOST_BYTES = 1 << 30
_MAGIC = frozenset("*?[")
# Arguments whose default is a path.
_NAMING = ("File", "Directory", "FileGlob")


def directory_of(value: Any, shared: HTTPShared) -> FileSet:
    """Reads all files of a directory. `str()` of each is its path in the directory."""
    folder = _text(value, "a directory")
    found = found_in(folder, shared.base_dir)
    return _read(value, {name: shared.base_dir / folder / name for name in found}, folder)


def glob_of(value: Any, shared: HTTPShared) -> FileSet:
    """Reads all files that match a pattern. `str()` of each is its path."""
    pattern = _text(value, "a pattern")
    found = matching(pattern, shared.base_dir)
    return _read(value, {name: shared.base_dir / name for name in found}, pattern)


def found_in(folder: str, base_dir: Path) -> list[str]:
    """The paths of all files in a directory and the directories below it, relative to it."""
    root = base_dir / folder
    if not root.is_dir():
        what = "is not a directory" if root.exists() else "no such directory"
        raise CallError(f"{root}: {what}")
    if Path(os.path.realpath(base_dir)).is_relative_to(os.path.realpath(root)):
        # There would be other files on another machine: a bundle carries only what is needed.
        raise CallError(
            f"directory {folder} contains the workflow file; put the data into one of its own"
        )
    paths = (os.path.join(place, name) for place, _, names in os.walk(root) for name in names)
    found = _sorted((os.path.relpath(path, root) for path in paths), f"directory {folder}")
    if not found:
        raise CallError(f"directory {root} has no files")
    return found


def matching(pattern: str, base_dir: Path) -> list[str]:
    """The paths of all files that match a pattern, relative to the workflow file."""
    if not is_pattern(pattern):
        raise CallError(f'"{pattern}" is no pattern; write one such as "pictures/*.png"')
    folder, rest = _fixed_folder(pattern)
    try:
        paths = [path for path in (base_dir / folder).glob(rest) if path.is_file()]
    except (ValueError, NotImplementedError) as error:
        raise CallError(f'"{pattern}" is no pattern: {error}') from error
    named = (
        str(path) if os.path.isabs(folder) else os.path.relpath(path, base_dir) for path in paths
    )
    found = _sorted(named, f'pattern "{pattern}"')
    if not found:
        raise CallError(f'no file matches "{pattern}" in {base_dir}')
    return found


def is_pattern(text: str) -> bool:
    return not _MAGIC.isdisjoint(text)


def named_files(kind: type[Prepared], value: Any) -> list[str]:
    """The files that the default of an argument names, for a bundle: paths; directories, which end
    with a slash; and patterns."""
    if kind.__name__ == "Email" and isinstance(value, Mapping):
        given = cast("Mapping[str, Any]", value).get("attachments")
        listed: list[object] = cast("list[object]", given) if isinstance(given, list) else [given]
        return [str(cast(object, each)) for each in listed if isinstance(each, str | PathLike)]
    if not isinstance(value, str | PathLike) or kind.__name__ not in _NAMING:
        return []
    path = str(cast(object, value))
    return [os.path.join(path, "")] if kind.__name__ == "Directory" else [path]


def expanded(written: str, base_dir: Path) -> list[str]:
    """The files behind one text of `named_files`."""
    if written.endswith("/"):
        return [os.path.join(written, name) for name in found_in(written, base_dir)]
    if is_pattern(written) and not (base_dir / written).exists():
        return matching(written, base_dir)
    return [written]


def _fixed_folder(pattern: str) -> tuple[str, str]:
    """The part of a pattern before its first wildcard, and the rest: `Path.glob` takes neither an
    absolute pattern nor one that begins with ".."."""
    parts = Path(pattern).parts
    fixed = next(number for number, part in enumerate(parts) if is_pattern(part))
    return os.path.join("", *parts[:fixed]), os.path.join(*parts[fixed:])


def _read(value: Any, places: dict[str, Path], shown: str) -> FileSet:
    # A command that only makes a bundle does without the HTTP client.
    from squall.clients.http.body import PreparedFile

    files: list[PreparedFile] = []
    left = MOST_BYTES
    for name, path in places.items():
        try:
            left -= path.stat().st_size
            if left < 0:
                raise CallError(f"{shown} has more than {MOST_BYTES >> 30} GiB of files")
            content = path.read_bytes()
        except OSError as error:
            raise CallError(f"cannot read {path}: {error.strerror or error}") from error
        files.append(PreparedFile(name.replace(os.sep, "/"), path.name, content))
    return FileSet(value, files)


def _sorted(paths: Iterable[str], what: str) -> list[str]:
    found: list[str] = []
    for path in paths:
        found.append(path)
        if len(found) > MOST_FILES:
            raise CallError(f"{what} has more than {MOST_FILES:,} files")
    return sorted(found)


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str | PathLike) or not str(cast(object, value)):
        raise CallError(f"{what} is a path, not {value!r}")
    return str(cast(object, value))
