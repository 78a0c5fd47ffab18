"""The parent's side of the core processes: start them, talk to them, outlive them.

A core that ends before it is told to is noticed as the end of its stream; the run goes
on with the others and the result says what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from typing import NamedTuple

from squall.engine.lease import LeaseMemory
from squall.engine.protocol import (
    Crashed,
    Exit,
    ToCore,
    ToParent,
    frame,
    receive_in_parent,
)
from squall.engine.stacks import SIGNAL as STACK_SIGNAL

EXIT_WAIT_S = 2.0
REAP_WAIT_S = 0.5
POLL_S = 0.005

OnMessage = Callable[["CoreHandle", ToParent], None]
OnDeath = Callable[["CoreHandle"], None]


def _ignore(*_: object) -> None:
    return None


class Hosting(NamedTuple):
    """How a worker's core process differs: a lease, a group of its own, less priority."""

    lease: LeaseMemory
    niceness: int
    environment: dict[str, str]


class CoreHandle:
    """One core process. With `hosting` it leads a process group, which is killed with it."""

    def __init__(self, index: int, hosting: Hosting | None = None) -> None:
        self.index = index
        self._hosting = hosting
        self.died = ""
        """Why it ended before its time; empty while it lives or after an orderly exit."""
        self.crash = ""
        """The traceback of a bug of ours that ended it."""
        self.on_message: OnMessage = _ignore
        self.on_death: OnDeath = _ignore
        self._leaving = False
        self._reaping = threading.Lock()
        ours, theirs = socket.socketpair()
        self._socket = ours
        command = [sys.executable, "-m", "squall.engine.core", str(index), str(theirs.fileno())]
        passed = [theirs.fileno()]
        if hosting is not None:
            command += [str(hosting.lease.descriptor), str(hosting.niceness)]
            passed.append(hosting.lease.descriptor)
        self._process = subprocess.Popen(
            command,
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            start_new_session=hosting is not None,
            env=None if hosting is None else {**os.environ, **hosting.environment},
        )
        theirs.close()
        self._writer: asyncio.StreamWriter | None = None
        self._pump: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def attach(self) -> None:
        """Begins to read; `on_message` and `on_death` may change while it goes on."""
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        self._pump = asyncio.create_task(self._read(reader))

    def send(self, message: ToCore) -> None:
        if self._writer is not None and not self.died:
            self._writer.write(frame(message))

    async def close(self) -> None:
        """Asks it to exit; a process that does not is killed."""
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
        if self._hosting is not None:
            await asyncio.to_thread(self._reap)
            return
        try:
            self._process.wait(timeout=EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def ask_for_stack(self) -> None:
        """Only of a process with `hosting` that has told something: it knows the signal."""
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
        """Nothing once it was reaped: its number may be another's then."""
        with self._reaping:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            await self._pass_on(reader)
        except Exception as error:
            # Whatever goes wrong here, the run must learn that this core is lost to it.
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
        """The exit code; a process that closed its stream gets a moment to end by itself."""
        if self._hosting is not None:
            return self._reap_group()
        try:
            return self._process.wait(timeout=REAP_WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()

    def _reap_group(self) -> int:
        """What the process left behind in its group is killed before it is reaped: until
        then the kernel gives its number to nobody else."""
        until = time.monotonic() + REAP_WAIT_S
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
    """A process started here never sees Ctrl-C: one that is still importing would print a
    traceback. For this process the signal is only kept until it has started them all."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class CorePool:
    """All core processes of a run."""

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
