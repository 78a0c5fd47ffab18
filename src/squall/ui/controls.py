"""The controls that the screen offers for a run.

The screen shows a key only for controls that exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Controls:
    """`stop` ends gracefully, `stop_now` cancels what runs; both may be called again."""

    stop: Callable[[], None]
    stop_now: Callable[[], None]
    pause: Callable[[], None] | None = None
    resume: Callable[[], None] | None = None
    adjust: Callable[[float], None] | None = None
    """Multiplies the load: 1.1 is a tenth more."""

    @property
    def can_pause(self) -> bool:
        return self.pause is not None and self.resume is not None
