"""A disk with little room, for one node of a laboratory."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path


class SmallDisk:
    """A data directory with little room, seen only by the processes that are started in it.
    A process of its own keeps it alive over restarts of the node."""

    SIZE_MB = 64

    def __init__(self, data: Path) -> None:
        data.mkdir(parents=True, exist_ok=True)
        self._data = data
        self._own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        mount = f"mount -t tmpfs -o size={self.SIZE_MB}m tmpfs '{data}'"
        self._keeper = subprocess.Popen(
            ["unshare", *self._own, "--mount", "sh", "-c", f"{mount} && echo ok && exec sleep 600"],
            stdout=subprocess.PIPE,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == b"ok\n", "no small disk can be made here"

    @property
    def words(self) -> list[str]:
        """Before the command that shall run on it."""
        own = ["--user", "--preserve-credentials"] if self._own else []
        return ["nsenter", "--target", str(self._keeper.pid), *own, "--mount"]

    @property
    def _seen(self) -> Path:
        return Path(f"/proc/{self._keeper.pid}/root{self._data}")

    def fill(self) -> None:
        descriptor = os.open(self._seen / "filler", os.O_WRONLY | os.O_CREAT)
        with contextlib.suppress(OSError):
            while True:
                os.write(descriptor, bytes(65536))
        os.close(descriptor)

    def empty(self) -> None:
        (self._seen / "filler").unlink(missing_ok=True)

    def close(self) -> None:
        self._keeper.kill()
        self._keeper.communicate()
