"""The process list while a command runs: what every user of the machine could read there."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType

LOOKS_EVERY_S = 0.02


class ProcessList:
    """Reads the command lines of all processes again and again, until it is left."""

    def __init__(self) -> None:
        self.seen: dict[int, set[str]] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> ProcessList:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def others(self, typed: int) -> list[str]:
        """The command lines of all processes but the one that a person typed."""
        return [line for pid, lines in self.seen.items() if pid != typed for line in lines]

    def _look(self) -> None:
        while not self._is_over.wait(LOOKS_EVERY_S):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                # It ended meanwhile.
                with suppress(OSError):
                    line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    self.seen.setdefault(int(path.parent.name), set()).add(line)
