"""Identifies the machine of a worker, and ends what earlier boots of the worker left on it.

Core processes carry the data directory and the boot that started them in their environment,
and so does everything that the author's code starts. The worker finds and kills what another
boot on the same directory left behind. A worker's name would not do: two clusters on one
machine may both have a worker `w1`. It never kills a process of another node or of its own
boot, and never reports a process as dead that it could not check.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import socket
import sys
import time
from pathlib import Path

from squall.api.errors import ConfigError

# In the environment of core processes: `directory/boot`, the directory as a hash.
MARK = "SQUALL_WORKER"
REAP_S = 5.0
POLL_S = 0.01
_PROC = Path("/proc")


class LinuxMachine:
    """Reads /proc. On other systems it knows nothing, and never claims that processes ended."""

    def __init__(self, folder: Path) -> None:
        """`folder` is the data directory."""
        self._folder = folder
        self.machine = _machine()
        self.kernel_boot = _text(_PROC / "sys/kernel/random/boot_id")
        self.pid = os.getpid()
        self.host = socket.gethostname()

    def start_of(self, pid: int) -> str:
        # The name of a process may hold spaces and brackets; the rest follows the last one.
        fields = _text(_PROC / str(pid) / "stat").rpartition(")")[2].split()
        return fields[19] if len(fields) > 19 else ""

    async def end_former(self, node: str, boot: str, pid: int, start: str) -> bool:
        """Kills the processes that earlier boots left; true if none of them still runs.

        `boot` is this boot; `pid` and `start` belong to the earlier main process.
        """
        if not self.machine or not self.kernel_boot:
            return False
        until = time.monotonic() + REAP_S
        # Repeated: a process may start another one between the listing and its kill.
        while left := self._former(boot, pid, start):
            for each in left:
                _kill(each)
            if time.monotonic() > until:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def _former(self, boot: str, pid: int, start: str) -> list[int]:
        found = _marked(self._folder, boot)
        if pid and pid != self.pid and start and self.start_of(pid) == start and not _dead(pid):
            found.append(pid)
        return found


def mark(folder: Path, boot: str) -> dict[str, str]:
    """The environment variable by which core processes of this boot are recognised."""
    return {MARK: f"{_directory(folder)}/{boot}"}


def _directory(folder: Path) -> str:
    return hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:24]


def node_identity(folder: Path, name: str, fresh: str) -> str:
    """Returns the node id that a data directory keeps; stores `name` or `fresh` at first use."""
    path = folder / "node-id"
    wanted = name or fresh
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            try:
                os.write(descriptor, wanted.encode() + b"\n")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        kept = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"--data {folder}: {error.strerror or error}") from None
    if name and kept != name:
        raise ConfigError(
            f"--data {folder} belongs to worker {kept!r}, not {name!r}: "
            "give each worker its own directory"
        )
    if not kept:
        raise ConfigError(f"--data {folder}: the file node-id is empty; remove it")
    return kept


def _machine() -> str:
    """Machine id and PID namespace: process numbers of another container mean nothing here."""
    if not sys.platform.startswith("linux"):
        return ""
    identity = _text(Path("/etc/machine-id"))
    try:
        return f"{identity}/{os.readlink('/proc/self/ns/pid')}" if identity else ""
    except OSError:
        return ""


def _marked(folder: Path, boot: str) -> list[int]:
    """Processes of other boots on this directory."""
    prefix = f"{MARK}={_directory(folder)}/".encode()
    ours = prefix + boot.encode()
    found: list[int] = []
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            # Gone, a kernel thread, or another user's: not a core process of this worker.
            continue
        if any(entry.startswith(prefix) and entry != ours for entry in environment):
            found.append(int(folder.name))
    return found


def _dead(pid: int) -> bool:
    """True for a process that has ended, even if its parent has not reaped it yet."""
    return _text(_PROC / str(pid) / "stat").rpartition(")")[2].split()[:1] in ([], ["Z"], ["X"])


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
