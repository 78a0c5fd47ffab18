"""Keeps unpacked bundles on disk by hash, and removes the least recently used ones.

A folder appears under its name only when it is complete, and is never removed while in use.
The caller has checked the paths; here they are only joined.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

FOLDERS_MAX = 32
BYTES_MAX = 1024 * 1024 * 1024


class BundleCache:
    """The bundles below `root`, which no other process uses (the data directory is locked)."""

    def __init__(
        self, root: Path, *, folders_max: int = FOLDERS_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        self._root = root
        self._folders_max = folders_max
        self._bytes_max = bytes_max
        self._used: Counter[str] = Counter()

    def has(self, name: str) -> bool:
        return (self._root / name).is_dir()

    def use(self, name: str) -> Path:
        """Returns the folder, which stays until `release`."""
        self._used[name] += 1
        with contextlib.suppress(OSError):
            os.utime(self._root / name)
        return self._root / name

    def release(self, name: str) -> None:
        self._used[name] -= 1

    async def add(self, name: str, files: Mapping[str, bytes]) -> None:
        """Writes a bundle. Raises OSError if the disk is full, and leaves nothing behind."""
        await asyncio.to_thread(self._add, name, files)

    def _add(self, name: str, files: Mapping[str, bytes]) -> None:
        if self.has(name):
            return
        unfinished = self._root / f"{name}.part"
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            for path, content in files.items():
                place = unfinished.joinpath(*path.split("/"))
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
            unfinished.rename(self._root / name)
        except OSError:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        self._trim(name)

    def _trim(self, newest: str) -> None:
        kept = [path for path in self._root.iterdir() if path.is_dir()]
        kept.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        size = 0
        for number, path in enumerate(kept):
            size += sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            too_much = number >= self._folders_max or size > self._bytes_max
            if too_much and path.name != newest and self._used[path.name] <= 0:
                shutil.rmtree(path, ignore_errors=True)
