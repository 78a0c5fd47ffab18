"""Observers that watch a run and say when it broke a promise.

A node or a scenario tells what it did through a probe; each telling is an `Event`, a line
of the trace, and a call of every check. A check sees all nodes at once, which no node
can; it must never change anything that a node could notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from squall.sim.errors import CheckFailed


@dataclass(frozen=True, slots=True)
class Event:
    time: float
    """World time, which no node knows."""
    node: str
    name: str
    fields: Mapping[str, Any]

    def __str__(self) -> str:
        shown = " ".join(f"{key}={value}" for key, value in self.fields.items())
        return f"{self.name} {shown}".rstrip()


class Probe(Protocol):
    """How a node tells the checks what it does: `probe("leads", term=3)`."""

    def __call__(self, name: str, /, **fields: Any) -> None: ...


class Check(Protocol):
    def observe(self, event: Event) -> None:
        """Raises `CheckFailed` when the event must not have been."""
        ...


def check(condition: object, text: str) -> None:
    if not condition:
        raise CheckFailed(text)


class AtMostOne:
    """For events of one name: all that share `key` must share `value`."""

    def __init__(self, event: str, *, key: str, value: str) -> None:
        self._event = event
        self._key = key
        self._value = value
        self._seen: dict[Any, Any] = {}

    def observe(self, event: Event) -> None:
        if event.name != self._event:
            return
        key = event.fields[self._key]
        value = event.fields.get(self._value, event.node)
        first = self._seen.setdefault(key, value)
        check(
            first == value,
            f"{self._event}: {self._key} {key} has {self._value} {first} and {value}",
        )


class NeverFalls:
    """For events of one name: `field` of one node never gets smaller."""

    def __init__(self, event: str, *, field: str) -> None:
        self._event = event
        self._field = field
        self._highest: dict[str, Any] = {}

    def observe(self, event: Event) -> None:
        if event.name != self._event:
            return
        value = event.fields[self._field]
        highest = self._highest.get(event.node, value)
        check(
            value >= highest,
            f"{event.node} {self._event}: {self._field} fell from {highest} to {value}",
        )
        self._highest[event.node] = value


class Counts:
    """How often each event was told; scenarios ask it whether anything happened at all."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def observe(self, event: Event) -> None:
        self._counts[event.name] = self._counts.get(event.name, 0) + 1

    def __getitem__(self, name: str) -> int:
        return self._counts.get(name, 0)
