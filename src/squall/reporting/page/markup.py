"""HTML that is safe by construction: whatever is not `Markup` is escaped.

A results document holds foreign text (step names, response bodies, tracebacks), so no section
may concatenate strings by hand; all of them use `tag`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TypeAlias


class Markup(str):
    """A text that is already HTML, which `tag` does not escape."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Sequence[Child] | None"
Attribute: TypeAlias = "str | int | float | bool | None"

# Elements that never have children, two SVG shapes among them.
_VOID = {"br", "hr", "meta", "rect", "line", "wbr"}


def tag(element: str, *children: Child, **attributes: Attribute) -> Markup:
    """`tag("td", "a < b", class_="number")`; underscores in names stand for hyphens.

    An attribute that is None or False is omitted; True is written without a value.
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
    """A table in its own frame, so that a wide one scrolls inside the page."""
    inner = tag(
        "table",
        tag("thead", tag("tr", head)),
        tag("tbody", rows),
        tag("tfoot", foot) if foot else None,
        class_=class_,
    )
    # Accessibility: a scrollable frame needs keyboard focus and a label.
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
