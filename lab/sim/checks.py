"""Observers that watch a simulated run and fail it when it breaks a promise.

A node or a scenario reports what it did through a probe. Each report is an `Event`, one
line of the trace, and one call of every check. A check sees all nodes at once, which no
node can; it must never change anything that a node could notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lab.sim.errors import CheckFailed


@dataclass(frozen=True, slots=True)
class Event:
    time: float
    """World time, which no node can read."""
    node: str
    name: str
    fields: Mapping[str, Any]

    def __str__(self) -> str:
        shown = " ".join(f"{key}={value}" for key, value in self.fields.items())
        return f"{self.name} {shown}".rstrip()


class Probe(Protocol):
    """Reports to the checks what a node does: `probe("leads", term=3)`."""

    def __call__(self, name: str, /, **fields: Any) -> None: ...


class Check(Protocol):
    def observe(self, event: Event) -> None:
        """Raises `CheckFailed` if the event breaks the promise."""
        ...


def check(condition: object, text: str) -> None:
    if not condition:
        raise CheckFailed(text)


class Counts:
    """Counts the events by name, so that a scenario can require that something happened."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def observe(self, event: Event) -> None:
        self._counts[event.name] = self._counts.get(event.name, 0) + 1

    def __getitem__(self, name: str) -> int:
        return self._counts.get(name, 0)
