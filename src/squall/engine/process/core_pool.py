"""The parent's side of the core processes: starts them, exchanges messages, reaps them.

The parent notices a core that ends too early by the end of its stream. The run continues
with the other cores, and the result says what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Mapping
from typing import NamedTuple

from squall.engine.core_protocol import (
    Crashed,
    Exit,
    ToCore,
    ToParent,
    frame,
    receive_in_parent,
)
from squall.engine.process.lease import LeaseMemory
from squall.engine.process.stack_signal import SIGNAL as STACK_SIGNAL

# For an orderly exit after `Exit`; then the process is killed.
EXIT_WAIT_S = 2.0
# For the end of a process that has closed its stream.
REAP_WAIT_S = 0.5
POLL_S = 0.005

SECRETS = re.compile(
    r"SQUALL_\w*SECRET|SQUALL_TLS__|SQUALL_(COORD_)?STORE|BLOCKING_COORDINATION_SECRET"
)

OnMessage = Callable[["CoreHandle", ToParent], None]
OnDeath = Callable[["CoreHandle"], None]


def _ignore(*_: object) -> None:
    return None


class WorkerHosting(NamedTuple):
    """What a worker adds to a core process: a lease, a process group, lower priority."""

    lease: LeaseMemory
    niceness: int
    environment: dict[str, str]


def author_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What the author's code may see of a worker's environment: everything but the variables that
    hold or name secrets of the cluster. A store's URL may contain its password."""
    return {name: value for name, value in environment.items() if not SECRETS.match(name)}


class CoreHandle:
    """Owns one core process. With `hosting` it leads a process group, which dies with it."""

    def __init__(self, index: int, hosting: WorkerHosting | None = None) -> None:
        self.index = index
        self._hosting = hosting
        # Why it ended before its time; empty while it lives or after an orderly exit.
        self.died = ""
        # The traceback, if a bug in Squall ended it.
        self.crash = ""
        self.on_message: OnMessage = _ignore
        self.on_death: OnDeath = _ignore
        self._leaving = False
        self._reaping = threading.Lock()
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._process = self._start(theirs)
        theirs.close()
        self._writer: asyncio.StreamWriter | None = None
        self._pump: asyncio.Task[None] | None = None

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        """Starts the process that talks over its end of the socket pair."""
        hosting = self._hosting
        command = [
            # -P: modules in the working directory must not hide those of Squall and Python.
            *(sys.executable, "-P", "-m"),
            "squall.engine.process.core",
            str(self.index),
            str(theirs.fileno()),
        ]
        passed = [theirs.fileno()]
        if hosting is not None:
            command += [str(hosting.lease.descriptor), str(hosting.niceness)]
            passed.append(hosting.lease.descriptor)
        return subprocess.Popen(
            command,
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            start_new_session=hosting is not None,
            env=None
            if hosting is None
            else {**author_environment(os.environ), **hosting.environment},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    async def attach(self) -> None:
        """Starts to read; `on_message` and `on_death` may be replaced at any time."""
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        self._pump = asyncio.create_task(self._read(reader))

    def send(self, message: ToCore) -> None:
        if self._writer is not None and not self.died:
            self._writer.write(frame(message))

    async def close(self) -> None:
        """Asks the process to exit, and kills it if it does not."""
        self._leaving = True
        self.send(Exit())
        try:
            async with asyncio.timeout(EXIT_WAIT_S):
                if self._pump is not None:
                    await self._pump
        except TimeoutError:
            self.kill()
        if self._writer is not None:
            self._writer.close()
        else:
            self._socket.close()
        if self._hosting is not None:
            await asyncio.to_thread(self._reap)
            return
        try:
            self._process.wait(timeout=EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def ask_for_stack(self) -> None:
        """Asks for the stack by signal. Call it only for a process with `hosting` that has sent a
        message: before that it has no handler, and the signal would kill it."""
        with self._reaping:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(self._process.pid, STACK_SIGNAL)

    def kill(self) -> None:
        if self._hosting is not None:
            self._kill_group()
        elif self._process.poll() is None:
            self._process.kill()

    def _kill_group(self) -> None:
        """Kills the group unless it was reaped: the kernel may have reused its number since."""
        with self._reaping:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            await self._pass_on(reader)
        except Exception as error:
            # Whatever goes wrong here, the run must learn that it has lost this core.
            self.died = f"internal error reading from core process {self.index}: {error!r}"
            self.crash = traceback.format_exc()
        if not self._leaving:
            code = await asyncio.to_thread(self._reap)
            self.died = self.died or f"core process {self.index} ended ({_cause(code)})"
            self.on_death(self)

    async def _pass_on(self, reader: asyncio.StreamReader) -> None:
        while (message := await receive_in_parent(reader)) is not None:
            if isinstance(message, Crashed):
                last = message.traceback.strip().rsplit("\n", 1)[-1]
                self.died = f"internal error in core process {self.index}: {last}"
                self.crash = message.traceback
                return
            self.on_message(self, message)

    def _reap(self) -> int:
        """Returns the exit code. A process that closed its stream gets `REAP_WAIT_S` to end."""
        if self._hosting is not None:
            return self._reap_group()
        try:
            return self._process.wait(timeout=REAP_WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def _reap_group(self) -> int:
        """Kills what the process left in its group, then reaps it. In this order, because the
        kernel does not reuse the number of a process that was not reaped."""
        until = time.monotonic() + REAP_WAIT_S
        # WNOWAIT reads the exit status without reaping.
        waits = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while self._process.returncode is None and time.monotonic() < until:
            if os.waitid(os.P_PID, self._process.pid, waits) is not None:
                break
            time.sleep(POLL_S)
        self._kill_group()
        with self._reaping:
            return self._process.wait()


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    name = {9: "SIGKILL, perhaps out of memory", 11: "SIGSEGV", 15: "SIGTERM"}.get(-code)
    return name or f"signal {-code}"


@contextlib.contextmanager
def _ctrl_c_held() -> Generator[None]:
    """Blocks Ctrl-C while processes start. They inherit the mask, because one that is still
    importing would print a traceback; this process gets the signal afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class CorePool:
    """The core processes of a run on one machine."""

    def __init__(self, size: int) -> None:
        with _ctrl_c_held():
            self.cores = [CoreHandle(index) for index in range(size)]

    async def attach(self) -> None:
        for core in self.cores:
            await core.attach()

    @property
    def alive(self) -> list[CoreHandle]:
        return [core for core in self.cores if not core.died]

    async def close(self) -> None:
        await asyncio.gather(*(core.close() for core in self.cores))

    def kill(self) -> None:
        for core in self.cores:
            core.kill()
