"""A data directory for the life of a process that was given none."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
from pathlib import Path


class ScratchFolder:
    """A context manager: `folder` is the given one, or a temporary one that it removes."""

    def __init__(self, given: Path | None, prefix: str) -> None:
        self._given = given
        self._prefix = prefix
        self.token = secrets.token_hex(4)
        self.folder = given or Path()

    def __enter__(self) -> ScratchFolder:
        if self._given is None:
            self.folder = Path(tempfile.mkdtemp(prefix=self._prefix))
        return self

    def __exit__(self, *exc: object) -> None:
        if self._given is None:
            shutil.rmtree(self.folder, ignore_errors=True)


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
