"""One node of `squall dev` as a process: started, watched, ended with its children."""

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
                [sys.executable, "-m", "squall", *self.words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                # Ctrl-C goes to the whole terminal group; who ends when is decided here.
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform.startswith("linux") else None,
            )

    @property
    def ended(self) -> int | None:
        """The exit code; None while it runs."""
        return None if self.process is None else self.process.poll()

    def check(self) -> None:
        """A node that ended before it was ready says why in its log."""
        if self.ended is None:
            return
        with contextlib.suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            said = lines[-1] if lines else "it said nothing"
            raise SquallError(f"{self.name} ended with {self.ended}: {said} (log: {self.log})")
        raise SquallError(f"{self.name} ended with {self.ended}")

    def terminate(self) -> None:
        if self.process is not None and self.ended is None:
            self.process.terminate()

    def wait(self, timeout_s: float) -> None:
        """Until it ends, but not longer than this."""
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_s)

    def kill(self) -> None:
        """The whole group: its core processes too."""
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "role": self.role,
            "address": self.address,
            "pid": self.process.pid if self.process is not None else 0,
            "log": str(self.log),
        }


_libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
