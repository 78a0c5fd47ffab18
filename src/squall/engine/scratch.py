"""A directory for the life of a process, where none that lasts was given."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
from pathlib import Path


class Scratch:
    """`folder` is the given one, or a new one that is removed at the end."""

    def __init__(self, given: Path | None, prefix: str) -> None:
        self._given = given
        self._prefix = prefix
        self.token = secrets.token_hex(4)
        self.folder = given or Path()

    def __enter__(self) -> Scratch:
        if self._given is None:
            self.folder = Path(tempfile.mkdtemp(prefix=self._prefix))
        return self

    def __exit__(self, *exc: object) -> None:
        if self._given is None:
            shutil.rmtree(self.folder, ignore_errors=True)


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
