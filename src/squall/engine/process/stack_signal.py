"""Finds the line where a core process hangs that can no longer report it.

A call into C that keeps the interpreter's lock stops every Python thread of its process, the
watchdog included. The kernel still delivers signals: on `SIGNAL` the process writes its stack
(`faulthandler` does it in C, without the lock) into the memory that it shares with its parent.
"""

from __future__ import annotations

import faulthandler
import re
import signal
from pathlib import PurePath

SIGNAL = signal.SIGUSR2
_FRAME = re.compile(r'^ +File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')


def answer_with_stack(descriptor: int) -> None:
    """Called in the core process: from here on the signal writes the stack to `descriptor`."""
    faulthandler.register(SIGNAL, file=descriptor, all_threads=False, chain=False)


def authors_place(stack: str, folder: str) -> str:
    """The innermost line of a stack in a file below `folder`, with its function; "" if none."""
    for line in stack.splitlines():
        found = _FRAME.match(line)
        if found is not None and PurePath(found["file"]).is_relative_to(folder):
            shown = PurePath(found["file"]).relative_to(folder)
            return f"{shown}:{found['line']} in {found['name']}"
    return ""
