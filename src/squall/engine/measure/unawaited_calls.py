"""Collects calls of async functions that the author's code did not await: they never ran.

Python warns about each when it drops the coroutine. In a core process such a warning becomes a
note of the result, once per place; other warnings are shown as usual.
"""

from __future__ import annotations

import re
import warnings
from typing import TextIO

from squall.engine.plan.author_file import author_place

NOTES_MAX = 20
"""Places that are noted; a generated name of a coroutine must not fill the result."""

_UNAWAITED = re.compile(r"coroutine '(.+)' was never awaited")


class UnawaitedCalls:
    """Takes Python's warnings of this kind for the rest of the process."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._show_other = warnings.showwarning

    def install(self) -> None:
        warnings.showwarning = self._show

    def _show(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        found = _UNAWAITED.match(str(message))
        if found is None:
            self._show_other(message, category, filename, lineno, file, line)
            return
        # A coroutine that was kept in a variable is dropped elsewhere, in a line of the engine.
        place = author_place(filename, lineno)
        call = f"{place} ({found[1]})" if place else found[1]
        note = f"never awaited, so it did nothing: {call}; write await"
        if note not in self.notes and len(self.notes) < NOTES_MAX:
            self.notes.append(note)
