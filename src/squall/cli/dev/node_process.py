"""One node process of `squall dev`: starts it, watches it, and ends it with its children."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from squall.api.errors import SquallError

_PR_SET_PDEATHSIG = 1


@dataclass
class NodeProcess:
    """A manager or worker as a child process of `squall dev`."""

    name: str
    role: str
    words: list[str]
    log: Path
    environment: dict[str, str]
    address: str = ""
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                # -P: modules in the working directory must not hide those of Squall and Python.
                [sys.executable, "-P", "-m", "squall", *self.words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                # Ctrl-C goes to the whole terminal group, but `squall dev` decides the order.
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform.startswith("linux") else None,
            )

    @property
    def ended(self) -> int | None:
        """The exit code; None while it runs."""
        return None if self.process is None else self.process.poll()

    def check(self) -> None:
        """Raises with the last line of the log if the node has ended."""
        if self.ended is None:
            return
        with contextlib.suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last_line = lines[-1] if lines else "its log is empty"
            raise SquallError(
                f"{self.name} ended with exit code {self.ended}: {last_line} (log: {self.log})"
            )
        raise SquallError(f"{self.name} ended with exit code {self.ended}")

    def terminate(self) -> None:
        if self.process is not None and self.ended is None:
            self.process.terminate()

    def wait(self, timeout_s: float) -> None:
        """Waits until the node ends, at most `timeout_s`."""
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_s)

    def kill(self) -> None:
        """Kills the launcher and the node's main process, with which its core processes end."""
        if self.process is None or self.ended is not None:
            return
        # A stopped launcher reaps no child and starts none, so the ids stay those of its children.
        self.process.send_signal(signal.SIGSTOP)
        for pid in _children(self.process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "role": self.role,
            "address": self.address,
            "pid": self.process.pid if self.process is not None else 0,
            "log": str(self.log),
        }


def _children(pid: int) -> list[int]:
    """The children of a process with one thread. None on systems without launchers."""
    try:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return []
    return [int(word) for word in words]


_libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
