"""What a reporter is: it takes the results document of a finished run somewhere.

Any class with these three coroutines is one; subclassing `Reporter` gives `connect` and
`close` that do nothing. A reporter is made before the run or with the author's file and
used after it, in one event loop, in the process that prints the summary.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Reporter(Protocol):
    """`connect`, `submit` and `close` are called once each, in this order."""

    async def connect(self) -> None:
        """Open what is needed. An exception costs this report, never another one."""

    async def submit(self, document: dict[str, Any]) -> None:
        """Take the results document, as `--json` writes it."""
        ...

    async def close(self) -> None:
        """Called also when `connect` or `submit` raised."""


METHODS = ("connect", "submit", "close")


def is_reporter(value: object) -> bool:
    """An object with the three methods; a class is not one, an instance is."""
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in METHODS
    )
