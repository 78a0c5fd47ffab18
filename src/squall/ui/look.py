"""Which characters and signs a terminal gets.

Three looks: UTF-8 with colour, UTF-8 without colour (words in place of signs, because a
sign alone would lean on its colour), and plain ASCII. A look never changes what is said.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
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
        """In front of a cell that breaks a threshold."""
        return "▲" if self.color and self.utf8 else "^"

    @property
    def chosen(self) -> str:
        """In front of the row that the plots are about."""
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
        """Of a sparkline, from nothing to most."""
        return " ▁▂▃▄▅▆▇█" if self.utf8 else " .:-=+*#"

    @property
    def parts(self) -> str:
        """Eighths of a cell, of a bar that grows to the right."""
        return " ▏▎▍▌▋▊▉█" if self.utf8 else " ##"

    def shown(self, text: str) -> str:
        """Names and messages come from anywhere; a control character must not move the cursor."""
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
