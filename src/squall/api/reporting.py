"""The interfaces of reporters: `RunReporter` delivers the results document of a finished run,
`LiveReporter` gets the numbers of each second while a run goes on.

Any class with the three coroutines of one of them is such a reporter, and a class may be both;
subclasses inherit what need not do anything. Squall creates a reporter before the run or with the
author's file. A `RunReporter` is used after the run, in one event loop of the process that prints
the summary; a `LiveReporter` during it, in a thread with an event loop of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class RunReporter(Protocol):
    """`connect`, `submit` and `close` are called once each, in this order."""

    async def connect(self) -> None:
        """Opens connections. If it raises, only this report is lost; the others are delivered."""

    async def submit(self, document: dict[str, Any]) -> None:
        """Sends the results document, as `--json` writes it."""
        ...

    async def close(self) -> None:
        """Releases what `connect` opened; also called if `connect` or `submit` raised."""


@dataclass(frozen=True)
class LiveRun:
    """What is known of a run when it starts."""

    id: str
    """As in the results document; on a cluster, the job."""
    file: str
    workflows: tuple[str, ...]
    tags: dict[str, str] = field(default_factory=dict[str, str])
    started_at: float = 0.0
    """Seconds since 1970."""


@runtime_checkable
class LiveReporter(Protocol):
    """`start` is called before the first second, `tick` once a second, `end` once at the end.

    A call may take as long as it likes: the load never waits for it. Seconds that cannot be
    delivered meanwhile are dropped and counted. What a call raises is reported in one line at the
    end of the run, and changes nothing else.
    """

    async def start(self, run: LiveRun) -> None:
        """Opens connections. If it raises, it is called again before a later second."""

    async def tick(self, snapshot: Any) -> None:
        """Sends the numbers of one second, merged over all machines: a `Snapshot`, as
        `Job.stream` yields it."""
        ...

    async def end(self, document: dict[str, Any] | None) -> None:
        """Sends the results document, whose totals are final, and closes connections. None: the
        run left no results. If it raises, it is called again for some seconds."""


METHODS = ("connect", "submit", "close")
LIVE_METHODS = ("start", "tick", "end")


def is_reporter(value: object) -> bool:
    """Whether an object has the three methods. A class is not a reporter, its instance is."""
    return _has(value, METHODS)


def is_live_reporter(value: object) -> bool:
    """Whether an object has the three methods of a live reporter."""
    return _has(value, LIVE_METHODS)


def _has(value: object, names: tuple[str, ...]) -> bool:
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in names
    )


def output_kind(reporter: object) -> str:
    """The kind of a built-in reporter; empty for one that an author wrote."""
    kind = getattr(reporter, "output_kind", "")
    return kind if isinstance(kind, str) else ""
