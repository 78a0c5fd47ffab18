"""What a presenter can do with the run that it shows."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from squall.engine.load_change import LoadChange


@dataclass(frozen=True)
class RunControls:
    """Stops and changes a run on this machine, a job of a cluster, or the parts of several
    datacenters."""

    interrupt: Callable[[bool], None]
    """Stops the run: gracefully, or with True at once. May be called again."""
    change: Callable[[LoadChange], Coroutine[Any, Any, None]]
    """Returns when the change is accepted; raises `SquallError` with the reason if it is not."""
    stops: bool = True
    """False: `interrupt` ends this command and not the run, which others own."""
