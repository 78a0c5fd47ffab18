"""Starts, signals and reaps child processes, which die with their parent.

Every child leads a process group of its own: Ctrl-C in the terminal does not reach it, and
one kill takes everything it started. When the leader ends, the rest of its group is killed
before the leader is reaped, because until then the kernel does not reuse its process id. On
Linux a child is killed when its parent dies (R6). A reaped process id is never signalled.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

PR_SET_PDEATHSIG = 1
# Poll interval for the end of a child where the kernel has no process descriptors.
POLL_S = 0.05


class RealProcesses:
    """The children of one node. Spawn only on the main thread: Linux kills a child when the
    thread that made it ends."""

    def __init__(self) -> None:
        self._running: dict[_Process, None] = {}

    @property
    def open_count(self) -> int:
        return len(self._running)

    async def spawn(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        inherit: Sequence[int] = (),
        niceness: int = 0,
    ) -> _Process:
        return _Process(_start(command, environment, inherit, niceness), self._running)

    async def close(self) -> None:
        """Kills and reaps the remaining children with everything they started."""
        running = list(self._running)
        for process in running:
            process.kill()
        for process in running:
            await process.wait()


class _Process:
    def __init__(self, popen: subprocess.Popen[bytes], registry: dict[_Process, None]) -> None:
        self._popen = popen
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._descriptor = -1
        registry[self] = None
        if sys.platform.startswith("linux"):
            self._descriptor = os.pidfd_open(popen.pid)
            self._loop.add_reader(self._descriptor, self._end)
        else:
            self._loop.call_later(POLL_S, self._poll)

    @property
    def pid(self) -> int:
        return self._popen.pid

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        """Signals the process alone, if it still runs."""
        if not self._ended.done():
            os.kill(self._popen.pid, number)

    def kill(self) -> None:
        """Sends SIGKILL to the process and its group."""
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)

    def _poll(self) -> None:
        # WNOWAIT leaves the child unreaped, so that its id is not reused.
        state = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if state is not None:
            self._end()
        else:
            self._loop.call_later(POLL_S, self._poll)

    def _end(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
        self.kill()
        code = self._popen.wait()
        self._registry.pop(self, None)
        self._ended.set_result(code)


def _start(
    command: Sequence[str],
    environment: Mapping[str, str] | None,
    inherit: Sequence[int],
    niceness: int,
) -> subprocess.Popen[bytes]:
    """Blocks until the child has called exec, about a millisecond. A command that cannot be
    started raises OSError here."""
    return subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        env=None if environment is None else dict(environment),
        pass_fds=tuple(inherit),
        start_new_session=True,
        preexec_fn=_before_exec(niceness),
    )


def _before_exec(niceness: int) -> Callable[[], None]:
    """What the child runs between fork and exec. All names are looked up here, in the parent:
    after a fork with other threads only plain system calls are safe."""
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None
    nice, getppid, leave = os.nice, os.getppid, os._exit

    def run() -> None:
        if niceness:
            nice(niceness)
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if getppid() != parent:
            leave(1)

    return run
