"""Lines of styled text, measured in terminal cells.

A style is a name; the code that knows the terminal decides its colour, if any. Every line of a
panel is exactly as wide as requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from rich.cells import cell_len, set_cell_size

Style = Literal[
    "plain", "dim", "strong", "good", "warn", "bad", "chosen", "one", "two", "three", "four", "five"
]


class Span(NamedTuple):
    text: str
    style: Style = "plain"


Line = tuple[Span, ...]
LINE_STYLES: tuple[Style, ...] = ("one", "two", "three", "four", "five")
"""For lines of a plot and the names that explain them."""


def width_of(spans: Iterable[Span]) -> int:
    return sum(cell_len(span.text) for span in spans)


def plain(line: Iterable[Span]) -> str:
    """The text without its styles."""
    return "".join(span.text for span in line)


def fitted(spans: Sequence[Span], width: int) -> Line:
    """The line, cut or padded with spaces to exactly this many cells."""
    kept: list[Span] = []
    left = width
    for span in spans:
        size = cell_len(span.text)
        if size > left:
            span, size = Span(set_cell_size(span.text, left), span.style), left
        if size:
            kept.append(span)
        left -= size
        if left <= 0:
            break
    if left > 0:
        kept.append(Span(" " * left))
    return tuple(kept)


def cell(text: str, width: int, *, right: bool = False) -> str:
    """The text, cut or padded to the width; `right` aligns numbers."""
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width)
    return " " * (width - size) + text if right else text + " " * (width - size)


def shortened(text: str, width: int, mark: str) -> str:
    """The text, cut to the width with a mark at the end that shows that it was cut."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - cell_len(mark), 0)) + mark if width > 0 else ""


def side_by_side(left: Sequence[Line], right: Sequence[Line], bar: str) -> list[Line]:
    """Joins two blocks of lines with a bar between them; pads the shorter one."""
    height = max(len(left), len(right))
    wide = width_of(left[0]) if left else 0
    other = width_of(right[0]) if right else 0
    rows: list[Line] = []
    for index in range(height):
        first = left[index] if index < len(left) else fitted((), wide)
        second = right[index] if index < len(right) else fitted((), other)
        rows.append((*first, Span(bar, "dim"), *second))
    return rows
