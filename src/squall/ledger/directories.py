"""Directories that are still there after a loss of power."""

from __future__ import annotations

from squall.runtime.interfaces import Disk


async def make_directories(disk: Disk, path: str) -> None:
    """Makes the directory and those above it; each is durable by its parent's sync."""
    parts = path.split("/")
    await disk.make_directory(path)
    for depth in range(len(parts)):
        await disk.sync_directory("/".join(parts[:depth]))
