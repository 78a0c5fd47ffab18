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

HASH_BATCH = 256
KEPT_LINES = 400


class WorldTime(Protocol):
    @property
    def now(self) -> float: ...


class Trace:
    def __init__(self, time: WorldTime, *, echo: Callable[[str], None] | None = None) -> None:
        self._time = time
        self._echo = echo
        self._hash = hashlib.blake2b(digest_size=16)
        self._unhashed: list[str] = []
        self._notes: deque[str] = deque(maxlen=KEPT_LINES)
        self._all: deque[str] = deque(maxlen=KEPT_LINES)
        self.lines = 0

    def note(self, who: str, text: str) -> None:
        """A notable event of a node, of the faults or of the scenario."""
        line = f"{self._time.now:12.6f}  {who:<10} {text}"
        self._notes.append(line)
        self._keep(line)

    def packet(self, source: str, target: str, text: str) -> None:
        """A single packet: hashed, shown only when all is asked for."""
        self._keep(f"{self._time.now:12.6f}  {source} > {target} {text}")

    def tail(self, lines: int, *, packets: bool = False) -> list[str]:
        return list(self._all if packets else self._notes)[-lines:]

    def digest(self) -> str:
        self._flush()
        return self._hash.hexdigest()

    def _keep(self, line: str) -> None:
        self.lines += 1
        self._all.append(line)
        unhashed = self._unhashed
        unhashed.append(line)
        if len(unhashed) >= HASH_BATCH:
            self._flush()
        if self._echo is not None:
            self._echo(line)

    def _flush(self) -> None:
        if self._unhashed:
            self._unhashed.append("")
            self._hash.update("\n".join(self._unhashed).encode())
            self._unhashed.clear()
