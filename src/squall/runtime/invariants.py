"""Conditions that can only be false if the code is wrong.

A broken one must never be caught and repaired: the node stops, because what it would do
next rests on something that is not so. The check stays on under `python -O`. A watcher
hears of every violation, also of one that some `except Exception` swallows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager


class InvariantViolation(AssertionError):
    """A bug in Squall itself; never a mistake of a user, a peer or the network."""


def invariant(condition: object, text: str) -> None:
    """`text` says what is not so, in the present tense."""
    if not condition:
        violation = InvariantViolation(text)
        for watcher in tuple(_watchers):
            watcher(violation)
        raise violation


@contextmanager
def watching(watcher: Callable[[InvariantViolation], None]) -> Generator[None]:
    """Tells `watcher` of every violation inside the block."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


_watchers: list[Callable[[InvariantViolation], None]] = []
