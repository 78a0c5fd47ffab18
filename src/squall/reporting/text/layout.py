"""Lays out the summary: labelled sections, aligned tables, colour.

Colour only repeats what the text says, so no information is lost without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

LABEL_WIDTH = 12
_CODES = {"good": "32", "warn": "33", "bad": "31", "strong": "1", "dim": "2"}

COLOR_CODES = ("0", *_CODES.values())
"""The codes that `Paint` writes."""

Shade = Literal["good", "warn", "bad", "strong", "dim"]

VERDICT_SHADES: dict[str, Shade] = {"VALID": "good", "DEGRADED": "warn", "INVALID": "bad"}


class Paint:
    """`paint("912 ms", "bad")` adds colour; without colour it returns the text unchanged."""

    def __init__(self, color: bool) -> None:
        self._color = color

    def __call__(self, text: str, shade: Shade) -> str:
        return f"\x1b[{_CODES[shade]}m{text}\x1b[0m" if self._color and text else text


def section(label: str, lines: Sequence[str], paint: Paint) -> list[str]:
    """Puts the label in front of the first line and indents the others to its text."""
    return [
        f"{paint(label, 'strong')}{' ' * (LABEL_WIDTH - len(label))}{line}"
        if index == 0
        else f"{'':{LABEL_WIDTH}}{line}"
        for index, line in enumerate(lines)
    ]


def aligned(rows: Sequence[Sequence[str]], gap: int = 2) -> list[str]:
    """Aligns columns left, `gap` apart; the last one is not padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        (" " * gap)
        .join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        .rstrip()
        for row in rows
    ]
