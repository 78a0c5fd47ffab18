"""How the summary is laid out: labelled sections, right-aligned tables, colour.

Colour only repeats what the text says, so a pipe or a colour-blind reader loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

LABEL_WIDTH = 12
_CODES = {"good": "32", "warn": "33", "bad": "31", "strong": "1", "dim": "2"}

Shade = Literal["good", "warn", "bad", "strong", "dim"]

VERDICT_SHADES: dict[str, Shade] = {"VALID": "good", "DEGRADED": "warn", "INVALID": "bad"}


class Paint:
    """`paint("912 ms", "bad")`; without colour the text as it is."""

    def __init__(self, color: bool) -> None:
        self._color = color

    def __call__(self, text: str, shade: Shade) -> str:
        return f"\x1b[{_CODES[shade]}m{text}\x1b[0m" if self._color and text else text


def section(label: str, lines: Sequence[str], paint: Paint) -> list[str]:
    """The label stands in front of the first line, the others begin below its text."""
    return [
        f"{paint(label, 'strong')}{' ' * (LABEL_WIDTH - len(label))}{line}"
        if index == 0
        else f"{'':{LABEL_WIDTH}}{line}"
        for index, line in enumerate(lines)
    ]


def aligned(rows: Sequence[Sequence[str]], gap: int = 2) -> list[str]:
    """Columns to the left, `gap` apart; the last one is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        (" " * gap)
        .join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        .rstrip()
        for row in rows
    ]
