"""Checks output files before a run, and writes each whole or not at all after it.

A reader never sees half a document: it is written to a temporary file in the same folder, which
is then renamed. A target that is not a plain file (a pipe, /dev/stdout) is never replaced.
"""

from __future__ import annotations

import os
from pathlib import Path

from squall.api.errors import UsageError


def check_writable(path: str | Path, flag: str = "--json") -> None:
    """Raises `UsageError` if a file at `path` cannot be written."""
    place = _place(path)
    folder = place.parent
    if place.is_dir():
        raise UsageError(f"{flag} {path}: is a directory; name a file in it")
    if not folder.is_dir():
        raise UsageError(f"{flag} {path}: there is no directory {folder}; create it first")
    if place.exists() and not os.access(place, os.W_OK):
        raise UsageError(f"{flag} {path}: no permission to write the file; choose another")
    if not _is_special(place) and not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{flag} {path}: no permission to write to {folder}; choose another")


def write_whole(path: str | Path, content: bytes, flag: str = "--json") -> None:
    """Replaces the file at `path` in one step."""
    place = _place(path)
    try:
        if _is_special(place):
            place.write_bytes(content)
            return
        _replace(place, content)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{flag} {path}: could not be written: {reason}") from error


def _replace(place: Path, content: bytes) -> None:
    # Imported here: needed only after a run, but this module is imported before it.
    import tempfile

    descriptor, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        # mkstemp lets only the owner read; a report gets the permissions of any new file.
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, place)
    except BaseException:
        os.unlink(name)
        raise


def _umask() -> int:
    # The umask can only be read by setting it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _place(path: str | Path) -> Path:
    """Follows a link: the file it names is replaced, not the link. /dev/stdout is a link too, but
    the file behind it is open and must not be replaced."""
    given = Path(path)
    return given if _is_special(given) else Path(os.path.realpath(given))


def _is_special(place: Path) -> bool:
    return place.exists() and (not place.is_file() or place.is_relative_to("/dev"))
