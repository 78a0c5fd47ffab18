"""Standard output and error: colour, and readers that go away."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO, cast


def wants_color(stream: TextIO, *, no_color: bool) -> bool:
    """Only for a terminal, and never against `--no-color` or NO_COLOR."""
    if no_color or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def print_or_drop(text: str) -> None:
    """To stdout. A reader that has gone (`| head`) costs the text, not the exit code."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        drop_stdout()


def drop_stdout() -> None:
    """Python would complain again while it flushes at exit, so the rest goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Forgiving:
    """A stream whose reader may go away: what is written then goes nowhere. A progress line
    must never end a run, nor keep it from ending."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _drop(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def forgive_stderr() -> None:
    """For the whole process; a command calls it once, before anything else."""
    sys.stderr = cast("TextIO", Forgiving(sys.stderr))
