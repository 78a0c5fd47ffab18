"""Creates directories that survive a loss of power."""

from __future__ import annotations

from squall.runtime.interfaces import Disk


async def make_directories(disk: Disk, path: str) -> None:
    """Creates the directory and its parents. The sync of a parent makes each one durable."""
    parts = path.split("/")
    await disk.make_directory(path)
    for depth in range(len(parts)):
        await disk.sync_directory("/".join(parts[:depth]))
