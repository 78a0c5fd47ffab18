"""Writes to standard output and error: colour, JSON documents, readers that close the pipe."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any, TextIO, cast

from squall.reporting.text.control_characters import cleaned

# A pipe, and a terminal, that nothing reads any more.
_READER_GONE = (errno.EPIPE, errno.EIO)


def wants_color(stream: TextIO, *, no_color: bool) -> bool:
    """True for a terminal unless `--no-color` or NO_COLOR is set."""
    if no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def print_or_drop(text: str, *, exact: bool = False) -> None:
    """Prints to stdout, without control characters unless `exact` (data for programs). If the
    reader has closed the pipe (`| head`) or the terminal, drops the text without changing the
    exit code."""
    try:
        sys.stdout.write(f"{text if exact else cleaned(text)}\n")
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in _READER_GONE:
            raise
        drop_stdout()


def print_json(value: Any) -> int:
    """One JSON document on stdout; returns the exit code 0."""
    import msgspec

    print_or_drop(msgspec.json.encode(value_of(value)).decode(), exact=True)
    return 0


def value_of(value: Any) -> Any:
    """Plain data with every field, because readers of the JSON do not know the defaults."""
    import msgspec

    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        return {shown: value_of(getattr(value, name)) for name, shown in names}
    if isinstance(value, dict):
        return {key: value_of(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [value_of(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def drop_stdout() -> None:
    """Sends the rest to /dev/null, because Python would raise again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class TextStream:
    """A stream for people: without control characters, and it drops its output once the reader
    has closed the pipe or the terminal. A progress line must never end a run, nor prevent it from
    ending."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(cleaned(text))
        except OSError as error:
            self._drop_after(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._drop_after(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _drop_after(self, error: OSError) -> None:
        if error.errno not in _READER_GONE:
            raise error
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def guard_stderr() -> None:
    """Makes stderr a `TextStream`. Call it once, before anything else."""
    sys.stderr = cast("TextIO", TextStream(sys.stderr))
