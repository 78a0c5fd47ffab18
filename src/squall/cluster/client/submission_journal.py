"""Keys of unfinished submissions, on disk before anything is sent.

A client that dies between sending a job and receiving the answer must not start it twice. So it
writes the key first; the same command, repeated, finds the key of its submission and receives
the same job. A client closes its entry when it has seen the job end, or has received the job's id
and leaves; the next command then makes a new job. The entry of a client that still runs is not
taken over: two terminals are two jobs.

All clients of a user share the folder without a lock. So each client writes only files of its own
name, also if several submit with one key. It takes over an entry by removing the file of the dead
client, which of two clients only one can do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from squall.runtime.interfaces import Runtime

FOLDER = "submissions"
KEEP_S = 86_400.0
"""As long as managers remember the key of a job that has ended."""
ENTRIES_MAX = 500


class SubmissionEntry(msgspec.Struct, kw_only=True):
    """One submission whose end its client has not seen."""

    key: str
    asked: str
    """Fingerprint of the submission and its destination."""
    owner: str
    """The process that waits for it."""
    written_at: float
    """Wall clock; used only to drop old entries."""
    job: str = ""


class SubmissionJournal:
    """The entries on the disk of the client's runtime. `is_alive` says whether an owner still
    runs."""

    def __init__(self, runtime: Runtime, owner: str, is_alive: Callable[[str], bool]) -> None:
        self._runtime = runtime
        self._owner = owner
        self._is_alive = is_alive

    async def open(self, asked: str, key: str = "") -> SubmissionEntry:
        """The entry to submit with: that of a dead client with the same submission, or a new one.
        It is durable when this returns."""
        for path, found in await self._entries():
            same = found.asked == asked and found.key == (key or found.key)
            if not same or self._is_alive(found.owner):
                continue
            # Written before the other is removed: the key is on disk all the time.
            taken = await self._write(msgspec.structs.replace(found, owner=self._owner))
            if path == self._path(taken) or await self._remove(path):
                return taken
            await self.close(taken)  # Another client removed it first, and has the key.
        made = SubmissionEntry(
            key=key or self._runtime.entropy(16).hex(),
            asked=asked,
            owner=self._owner,
            written_at=self._runtime.clock.wall(),
        )
        return await self._write(made)

    async def accepted(self, entry: SubmissionEntry, job: str) -> SubmissionEntry:
        return await self._write(msgspec.structs.replace(entry, job=job))

    async def close(self, entry: SubmissionEntry) -> None:
        """The client has seen the end: the same command again makes a new job."""
        await self._remove(self._path(entry))

    async def _write(self, entry: SubmissionEntry) -> SubmissionEntry:
        disk = self._runtime.disk
        await disk.make_directory(FOLDER)
        await disk.write_atomic(self._path(entry), msgspec.json.encode(entry))
        return entry

    async def _remove(self, path: str) -> bool:
        """False: another client has removed it."""
        try:
            await self._runtime.disk.remove(path)
        except FileNotFoundError:
            return False
        return True

    async def _entries(self) -> list[tuple[str, SubmissionEntry]]:
        """The newest first, with their paths; entries that are too old or unreadable are
        removed."""
        disk, now = self._runtime.disk, self._runtime.clock.wall()
        found: list[tuple[str, SubmissionEntry]] = []
        for name in list(await disk.list(FOLDER))[:ENTRIES_MAX]:
            path = f"{FOLDER}/{name}"
            try:
                entry = msgspec.json.decode(await disk.read(path), type=SubmissionEntry)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                await self._remove(path)
                continue
            except FileNotFoundError:
                continue
            if now - entry.written_at > KEEP_S:
                await self._remove(path)
            else:
                found.append((path, entry))
        return sorted(found, key=lambda each: -each[1].written_at)

    def _path(self, entry: SubmissionEntry) -> str:
        """Users choose keys freely, so the file is named after a hash."""
        named = f"{self._runtime.boot}/{entry.key}"
        return f"{FOLDER}/{hashlib.sha256(named.encode()).hexdigest()[:32]}.json"
