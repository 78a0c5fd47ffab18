"""Standard output and error: colour, and readers that go away."""

from __future__ import annotations

import os
import sys
from typing import TextIO


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
