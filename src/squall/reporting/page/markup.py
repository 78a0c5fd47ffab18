"""HTML that is safe by construction: whatever is not `Markup` is escaped.

A results document holds texts of strangers (step names, bodies of answers, tracebacks),
so no section may put strings together by hand; all of them go through `tag`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TypeAlias


class Markup(str):
    """A text that already is HTML."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Sequence[Child] | None"
Attribute: TypeAlias = "str | int | float | bool | None"

_VOID = {"br", "hr", "meta", "rect", "line", "wbr"}
"""Elements that never have children; the two SVG shapes close themselves as well."""


def tag(element: str, *children: Child, **attributes: Attribute) -> Markup:
    """`tag("td", "a < b", class_="number")`; underscores in names stand for hyphens.

    An attribute that is None or False is left out, True stands without a value.
    """
    head = element + "".join(_attribute(name, value) for name, value in attributes.items())
    if element in _VOID:
        return Markup(f"<{head}/>")
    return Markup(f"<{head}>{joined(*children)}</{element}>")


def joined(*children: Child) -> Markup:
    return Markup("".join(map(_text, children)))


def table(
    label: str,
    head: list[Markup],
    rows: Child,
    foot: Child = None,
    *,
    compact: bool = False,
    class_: str | None = None,
) -> Markup:
    """A table in a frame of its own, so that a wide one scrolls inside of the page."""
    inner = tag(
        "table",
        tag("thead", tag("tr", head)),
        tag("tbody", rows),
        tag("tfoot", foot) if foot else None,
        class_=class_,
    )
    # A frame that scrolls must be reachable with the keyboard and say what it is.
    frame = "scroll compact" if compact else "scroll"
    return tag("div", inner, class_=frame, tabindex=0, role="region", aria_label=label)


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int | float):
        return escape(str(child))
    return "".join(map(_text, child))


def _attribute(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    plain = name.rstrip("_").replace("_", "-")
    return f" {plain}" if value is True else f' {plain}="{escape(str(value))}"'
