"""Where a core process is that cannot tell it itself.

A call into C that keeps the interpreter's lock stops every thread of its process that
could look. The kernel still delivers signals: for `SIGNAL` the process writes its stack
(`faulthandler`, in C, without that lock) into the memory that it shares with its parent.
"""

from __future__ import annotations

import faulthandler
import re
import signal
from pathlib import PurePath

SIGNAL = signal.SIGUSR2
_FRAME = re.compile(r'^ +File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')


def answer_with_stack(descriptor: int) -> None:
    """In the core process: from here on the signal writes its stack there."""
    faulthandler.register(SIGNAL, file=descriptor, all_threads=False, chain=False)


def authors_place(stack: str, folder: str) -> str:
    """The innermost line of a file below `folder`, with its function; "" if there is none."""
    for line in stack.splitlines():
        found = _FRAME.match(line)
        if found is not None and PurePath(found["file"]).is_relative_to(folder):
            shown = PurePath(found["file"]).relative_to(folder)
            return f"{shown}:{found['line']} in {found['name']}"
    return ""
