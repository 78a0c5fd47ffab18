"""What a simulated machine has on its disk: what is durable, and what only seems so.

A file has a content that its readers see and one that survives a loss of power; in
between are the writes that were not synced. Names have the same two faces. This module
only remembers and, at a crash, draws what is left. It knows no time and raises no errors
of a faulty disk; those are `disk`'s.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

SECTOR_BYTES = 512


@dataclass(slots=True)
class Write:
    """Bytes at an offset, or a cut to that length; not yet durable."""

    offset: int
    data: bytes | None
    dropped: bool = False
    """A failed sync dropped it: it will never become durable."""


class Inode:
    """One file, under whatever name."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.pending: list[Write] = []

    def append(self, data: bytes) -> None:
        self.write(len(self.content), data)

    def write(self, offset: int, data: bytes) -> None:
        self.pending.append(Write(offset, data))
        _apply(self.content, offset, data)

    def truncate(self, size: int) -> None:
        self.pending.append(Write(size, None))
        _apply(self.content, size, None)

    def make_durable(self, writes: int) -> None:
        """The first `writes` pending ones reached the platter."""
        for write in self.pending[:writes]:
            data = write.data
            if write.dropped and data is not None:
                data = bytes(len(data))
            _apply(self.durable, write.offset, data)
        del self.pending[:writes]

    def fail_sync(self, draw: random.Random, writes: int) -> None:
        """A sync failed: each of its writes is durable or lost, and the process cannot know
        which."""
        for write in self.pending[:writes]:
            write.dropped = write.dropped or draw.random() < 0.5

    def lose_power(self, draw: random.Random) -> str:
        """Draws which unsynced writes survive; returns a description."""
        if not self.pending:
            self.content = bytearray(self.durable)
            return ""
        fate = draw.choice(("lost", "kept", "torn", "torn", "holes"))
        if fate == "kept":
            self.make_durable(len(self.pending))
        elif fate in ("torn", "holes"):
            self.make_durable(draw.randrange(len(self.pending) + 1))
            if self.pending:
                self._tear(draw, self.pending[0], holes=fate == "holes")
        self.pending.clear()
        self.content = bytearray(self.durable)
        return fate

    def _tear(self, draw: random.Random, write: Write, *, holes: bool) -> None:
        if not write.data:
            return
        torn = bytearray(write.data[: draw.randrange(len(write.data) + 1)])
        if holes and torn:
            start = draw.randrange(len(torn))
            torn[start : start + SECTOR_BYTES] = bytes(len(torn[start : start + SECTOR_BYTES]))
        _apply(self.durable, write.offset, bytes(torn))


@dataclass(slots=True)
class NameChange:
    """A name that was given or taken and is not yet durable."""

    directory: str
    """The directory whose sync makes it durable."""
    add: str | None
    drop: str | None
    inode: Inode | None
    """None: a directory."""


@dataclass(slots=True)
class Names:
    files: dict[str, Inode] = field(default_factory=dict[str, Inode])
    directories: dict[str, None] = field(default_factory=lambda: {"": None})

    def apply(self, change: NameChange) -> None:
        if change.inode is None:
            if change.add is not None and change.drop is not None:
                self._move(change.drop, change.add)
            elif change.add is not None:
                self.directories[change.add] = None
            return
        if change.drop is not None and self.files.get(change.drop) is change.inode:
            del self.files[change.drop]
        if change.add is not None:
            self.files[change.add] = change.inode

    def _move(self, source: str, target: str) -> None:
        self.directories = {moved(p, source, target): None for p in self.directories}
        self.files = {moved(p, source, target): inode for p, inode in self.files.items()}

    def copy(self) -> Names:
        return Names(dict(self.files), dict(self.directories))

    def prune(self) -> None:
        """The files in a directory that is not durable are unreachable after a crash."""
        for path in [p for p in self.directories if p and parent(p) not in self.directories]:
            del self.directories[path]
        for path in [p for p in self.files if parent(p) not in self.directories]:
            del self.files[path]


class FileTree:
    """All files of one machine."""

    def __init__(self) -> None:
        self.names = Names()
        self._durable = Names()
        self._pending: list[NameChange] = []

    @property
    def used_bytes(self) -> int:
        return sum(len(inode.content) for inode in self.names.files.values())

    def create(self, path: str) -> Inode:
        inode = Inode()
        self._change(NameChange(parent(path), path, None, inode))
        return inode

    def rename(self, source: str, target: str) -> None:
        if source in self.names.directories:
            for change in self._pending:
                change.directory = moved(change.directory, source, target)
                change.add = change.add and moved(change.add, source, target)
                change.drop = change.drop and moved(change.drop, source, target)
            self._change(NameChange(parent(target), target, source, None))
            return
        inode = self.names.files[source]
        self._change(NameChange(parent(target), target, source, inode))

    def remove(self, path: str) -> None:
        inode = self.names.files[path]
        self._change(NameChange(parent(path), None, path, inode))

    def make_directory(self, path: str) -> None:
        self._change(NameChange(parent(path), path, None, None))

    def sync_names(self, directory: str) -> None:
        self._settle(lambda change: change.directory == directory)

    def lose_power(self, draw: random.Random) -> list[str]:
        """Keeps the durable part and a drawn part of the rest; returns a description."""
        changes: list[str] = []
        if self._pending:
            kept = draw.randrange(len(self._pending) + 1)
            changes.append(f"names kept {kept} of {len(self._pending)}")
            settled = {id(change) for change in self._pending[:kept]}
            self._settle(lambda change: id(change) in settled)
            self._pending.clear()
        while True:
            before = len(self._durable.directories)
            self._durable.prune()
            if len(self._durable.directories) == before:
                break
        self.names = self._durable.copy()
        for path, inode in sorted(self.names.files.items()):
            fate = inode.lose_power(draw)
            if fate:
                changes.append(f"{path} {fate}")
        return changes

    def rot(self, draw: random.Random, suffix: str = "") -> str | None:
        """Flips one bit of durable data at rest; returns the file."""
        paths = [p for p, i in sorted(self.names.files.items()) if i.durable and p.endswith(suffix)]
        if not paths:
            return None
        path = draw.choice(paths)
        inode = self.names.files[path]
        place = draw.randrange(len(inode.durable))
        bit = 1 << draw.randrange(8)
        inode.durable[place] ^= bit
        if place < len(inode.content):
            inode.content[place] ^= bit
        return path

    def _change(self, change: NameChange) -> None:
        self.names.apply(change)
        self._pending.append(change)

    def _settle(self, chosen: Callable[[NameChange], bool]) -> None:
        settled = [change for change in self._pending if chosen(change)]
        rest = [change for change in self._pending if not chosen(change)]
        for change in settled:
            self._durable.apply(change)
            # A durable rename took the old name with it, however that came to be.
            rest = [c for c in rest if not (c.inode is change.inode and c.add == change.drop)]
        self._pending = rest


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def moved(path: str, source: str, target: str) -> str:
    """The path after the directory `source` was renamed to `target`."""
    if path == source or path.startswith(f"{source}/"):
        return target + path[len(source) :]
    return path


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        if offset <= len(content):
            del content[offset:]
        else:
            content.extend(bytes(offset - len(content)))
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data
