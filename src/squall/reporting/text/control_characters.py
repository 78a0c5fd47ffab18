"""Removes control characters from text of others before it reaches a terminal.

Names, errors and printed lines come from other machines and from targets. An escape sequence in
them could rewrite what the terminal shows, its title or its clipboard. All text for people passes
one of three places: `standard_streams.print_or_drop`, the stream that replaces stderr, and the
live screen's `render_line`.
"""

from __future__ import annotations

import re

from squall.reporting.text.layout import COLOR_CODES

# Sequences first, so that no rest of one stays visible; then single characters: C0, DEL and C1
# except tab and newline, the line separators of Unicode, and the marks that reverse the direction
# of text.
_FOREIGN = re.compile(
    rf"(?P<own>\x1b\[(?:{'|'.join(COLOR_CODES)})m)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
_SINGLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def cleaned(text: str) -> str:
    """The text without control characters, apart from newlines, tabs and Squall's own colours."""
    return _FOREIGN.sub(lambda found: found["own"] or "", text)


def one_line(text: str) -> str:
    """`cleaned` on a single line, so that a text of others cannot pass for a line of Squall's."""
    return " ".join(cleaned(text).split("\n"))


def cell_text(text: str) -> str:
    """The text for a cell of the screen. Control characters have no width there, so that the line
    stays as wide as it was laid out."""
    return _SINGLE.sub("", text)
