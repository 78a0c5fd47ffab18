"""The interface of a reporter, which delivers the results document of a finished run.

Any class with these three coroutines is a reporter; subclasses of `Reporter` inherit a
`connect` and a `close` that do nothing. Squall creates a reporter before the run or with the
author's file, and uses it after the run, in one event loop of the process that prints the summary.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Reporter(Protocol):
    """`connect`, `submit` and `close` are called once each, in this order."""

    async def connect(self) -> None:
        """Opens connections. If it raises, only this report is lost; the others are delivered."""

    async def submit(self, document: dict[str, Any]) -> None:
        """Sends the results document, as `--json` writes it."""
        ...

    async def close(self) -> None:
        """Releases what `connect` opened; also called if `connect` or `submit` raised."""


METHODS = ("connect", "submit", "close")


def is_reporter(value: object) -> bool:
    """Whether an object has the three methods. A class is not a reporter, its instance is."""
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in METHODS
    )
