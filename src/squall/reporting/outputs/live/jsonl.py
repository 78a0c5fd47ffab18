"""JSON lines: one line for the start, one for each second, one for the end, in a plain file.

The last line holds the results document, so `squall report` reads the file as it reads `--json`.
Each line is written at once, so a reader (`tail -f`, `jq`) sees a second as soon as it is over.
"""

from __future__ import annotations

from typing import IO, Any

import msgspec

from squall.api.reporting import LiveReporter, LiveRun
from squall.reporting.output_files import check_writable
from squall.stats.snapshot import Snapshot


class JSONLines(LiveReporter):
    """Writes `{"type": "start"|"second"|"end", ...}` lines."""

    def __init__(self, path: str, flag: str) -> None:
        self.places = [path]
        self._path = path
        self._file: IO[bytes] | None = None
        check_writable(path, flag)

    async def start(self, run: LiveRun) -> None:
        self._file = open(self._path, "wb")  # noqa: ASYNC230, SIM115 in a thread of its own
        self._write({"type": "start", "run": run})

    async def tick(self, snapshot: Snapshot) -> None:
        self._write({"type": "second", **msgspec.to_builtins(snapshot)})

    async def end(self, document: dict[str, Any] | None) -> None:
        self._write({"type": "end", "document": document})
        if self._file is not None:
            self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        from squall.reporting.document.build import encode_document

        if self._file is not None:
            self._file.write(encode_document(line))
            self._file.flush()
