"""The characters and signs that a terminal can show.

There are three styles: UTF-8 with colour, UTF-8 without colour (words instead of signs, because a
sign alone relies on its colour), and plain ASCII. The style never changes the content.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TerminalStyle:
    """What the terminal supports, and the characters to draw with."""

    color: bool = True
    utf8: bool = True

    @property
    def good(self) -> str:
        return "✓" if self.color and self.utf8 else "ok"

    @property
    def bad(self) -> str:
        return "✗" if self.color and self.utf8 else "x"

    @property
    def mark(self) -> str:
        """The sign before a cell that violates a threshold."""
        return "▲" if self.color and self.utf8 else "^"

    @property
    def chosen(self) -> str:
        """The sign before the row that the plots show."""
        return "▸" if self.utf8 else ">"

    @property
    def rule(self) -> str:
        return "─" if self.utf8 else "-"

    @property
    def bar(self) -> str:
        return "│" if self.utf8 else "|"

    @property
    def tee(self) -> str:
        return "┬" if self.utf8 else "+"

    @property
    def tick(self) -> str:
        return "┤" if self.utf8 else "|"

    @property
    def corner(self) -> str:
        return "┼" if self.utf8 else "+"

    @property
    def more(self) -> str:
        return "…" if self.utf8 else "~"

    @property
    def levels(self) -> str:
        """The characters of a sparkline, from the lowest to the highest."""
        return " ▁▂▃▄▅▆▇█" if self.utf8 else " .:-=+*#"

    @property
    def parts(self) -> str:
        """The characters for eighths of a cell in a bar that grows to the right."""
        return " ▏▎▍▌▋▊▉█" if self.utf8 else " ##"

    def shown(self, text: str) -> str:
        """The text without control characters, which could move the cursor: names and messages
        may come from a server."""
        if text.isprintable() and (self.utf8 or text.isascii()):
            return text
        return "".join(
            char
            if char.isprintable() and (self.utf8 or char.isascii())
            else " "
            if char.isspace()
            else "?"
            for char in text
        )
