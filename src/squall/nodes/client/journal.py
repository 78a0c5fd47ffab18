"""Keys of submissions that are under way, on disk before anything is sent.

A client that dies between sending a job and hearing of it must not start it twice. So it
writes the key first; the same command, given again, finds the key of what was asked and
is answered with the same job. An entry is closed when its client has seen the end, or
was told the job's id and left; then the next command makes a new job. An entry of a
client that is still alive is not taken over: two terminals are two jobs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import msgspec

from squall.runtime.interfaces import Runtime

FOLDER = "submissions"
KEEP_S = 86_400.0
"""As long as managers remember the key of a job that is over."""
ENTRIES_MAX = 500


class Entry(msgspec.Struct, kw_only=True):
    key: str
    asked: str
    """Fingerprint of the submission and where it went."""
    owner: str
    """The process that waits for it."""
    written_at: float
    """Wall clock; decides only what is forgotten."""
    job: str = ""


class Journal:
    """In the disk of the client's runtime. `is_alive` says whether an owner still runs."""

    def __init__(self, runtime: Runtime, owner: str, is_alive: Callable[[str], bool]) -> None:
        self._runtime = runtime
        self._owner = owner
        self._is_alive = is_alive

    async def open(self, asked: str, key: str = "") -> Entry:
        """The entry to submit with: an unfinished one of a dead client, or a new one.
        Durable when this returns."""
        for found in await self._entries():
            same = found.asked == asked and found.key == (key or found.key)
            if same and not self._is_alive(found.owner):
                return await self._write(msgspec.structs.replace(found, owner=self._owner))
        made = Entry(
            key=key or self._runtime.entropy(16).hex(),
            asked=asked,
            owner=self._owner,
            written_at=self._runtime.clock.wall(),
        )
        return await self._write(made)

    async def accepted(self, entry: Entry, job: str) -> Entry:
        return await self._write(msgspec.structs.replace(entry, job=job))

    async def close(self, entry: Entry) -> None:
        """The end was seen: a repeat of the command is a new job."""
        try:
            await self._runtime.disk.remove(_path(entry))
        except FileNotFoundError:
            return

    async def _write(self, entry: Entry) -> Entry:
        disk = self._runtime.disk
        await disk.make_directory(FOLDER)
        await disk.write_atomic(_path(entry), msgspec.json.encode(entry))
        return entry

    async def _entries(self) -> list[Entry]:
        """The newest first; what is too old or unreadable is removed."""
        disk, now = self._runtime.disk, self._runtime.clock.wall()
        found: list[Entry] = []
        for name in list(await disk.list(FOLDER))[:ENTRIES_MAX]:
            path = f"{FOLDER}/{name}"
            try:
                entry = msgspec.json.decode(await disk.read(path), type=Entry)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                await disk.remove(path)
                continue
            except FileNotFoundError:
                continue
            if now - entry.written_at > KEEP_S:
                await disk.remove(path)
            else:
                found.append(entry)
        return sorted(found, key=lambda entry: -entry.written_at)


def _path(entry: Entry) -> str:
    """Keys are the user's text: their hash is a safe name."""
    return f"{FOLDER}/{hashlib.sha256(entry.key.encode()).hexdigest()[:32]}.json"
