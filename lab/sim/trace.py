"""What happened, one line per event, and a hash over all of it.

Same seed, same code: same lines, byte for byte. All lines are hashed; the last ones are
kept, those of single packets apart from the notable ones. A line must never hold an
address in memory, a real time, or the order of a set.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Protocol

BATCH = 400
"""Lines that are hashed at once, and that are kept at least."""


class WorldTime(Protocol):
    @property
    def now(self) -> float: ...


class Trace:
    def __init__(self, time: WorldTime, *, echo: Callable[[str], None] | None = None) -> None:
        self._time = time
        self._echo = echo
        self._hash = hashlib.blake2b(digest_size=16)
        self._hashed = 0
        self._older: list[str] = []
        # Not yet hashed; together with the older ones, the tail.
        self._fresh: list[str] = []
        self._notes: deque[str] = deque(maxlen=BATCH)

    @property
    def lines(self) -> int:
        return self._hashed + len(self._fresh)

    def note(self, who: str, text: str) -> None:
        """A notable event of a node, of the faults or of the scenario."""
        line = f"{self._time.now:12.6f}  {who:<10} {text}"
        self._notes.append(line)
        self._keep(line)

    def packet(self, source: str, target: str, text: str, size: int) -> None:
        """A single packet: hashed, shown only when all is asked for."""
        self._keep(f"{self._time.now:12.6f}  {source} > {target} {text} {size} B")

    def stream(self, source: str, target: str, text: str) -> None:
        """The beginning or end of a stream; shown as packets are."""
        self._keep(f"{self._time.now:12.6f}  {source} > {target} {text}")

    def tail(self, lines: int, *, packets: bool = False) -> list[str]:
        return ([*self._older, *self._fresh] if packets else list(self._notes))[-lines:]

    def digest(self) -> str:
        self._flush()
        return self._hash.hexdigest()

    def _keep(self, line: str) -> None:
        self._fresh.append(line)
        if len(self._fresh) >= BATCH:
            self._flush()
        if self._echo is not None:
            self._echo(line)

    def _flush(self) -> None:
        if self._fresh:
            self._hash.update(("\n".join(self._fresh) + "\n").encode())
            self._hashed += len(self._fresh)
            self._older, self._fresh = self._fresh, []
