"""Conditions that can only be false if the code is wrong.

A violation must never be caught and repaired: the node stops, because its next step would
rest on a false assumption. The check stays on under `python -O`. Watchers are called for every
violation, including one that an `except Exception` swallows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager


class InvariantViolation(AssertionError):
    """A bug in Squall itself, never a mistake of a user, a peer or the network."""


def invariant(condition: object, text: str) -> None:
    """`text` states the violation in the present tense."""
    if not condition:
        violation = InvariantViolation(text)
        for watcher in tuple(_watchers):
            watcher(violation)
        raise violation


@contextmanager
def watching(watcher: Callable[[InvariantViolation], None]) -> Generator[None]:
    """Calls `watcher` for every violation inside the block."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


_watchers: list[Callable[[InvariantViolation], None]] = []
