"""The user's selection on the screen, and the workflow and rows it refers to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from squall.stats.manifest import ITERATION
from squall.ui.state import RunState

Pane = Literal["", "log", "help"]


@dataclass
class ViewSelection:
    """The user's selection: page, row and panes."""

    page: int = 0
    """With several workflows 0 is the overview and 1 the first of them."""
    row: int = 0
    step: bool = False
    """Plots of the chosen row only."""
    pane: Pane = ""
    whole: bool = False
    scroll: int = 0


def page_name(state: RunState, view: ViewSelection) -> str | None:
    """The workflow of the page; None is the overview."""
    names = state.names
    if len(names) == 1:
        return names[0]
    return names[view.page - 1] if 0 < view.page <= len(names) else None


def row_names(state: RunState, name: str | None) -> list[str]:
    """The rows of the table of a page, also before anything was measured."""
    if name is None:
        return state.names
    moment = state.moment(name)
    if moment is not None:
        return [row.name for row in moment.rows]
    steps = [step.name for step in state.planned(name).steps if step.protocol]
    return [*steps, ITERATION]
