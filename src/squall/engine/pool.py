"""The parent's side of the core processes: start them, talk to them, outlive them.

A core that ends before it is told to is noticed as the end of its stream; the run goes
on with the others and the result says what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Generator

from squall.engine.protocol import (
    Crashed,
    Exit,
    ToCore,
    ToParent,
    frame,
    receive_in_parent,
)

EXIT_WAIT_S = 2.0
REAP_WAIT_S = 0.5

OnMessage = Callable[["CoreHandle", ToParent], None]
OnDeath = Callable[["CoreHandle"], None]


def _ignore(*_: object) -> None:
    return None


class CoreHandle:
    """One core process."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.died = ""
        """Why it ended before its time; empty while it lives or after an orderly exit."""
        self.crash = ""
        """The traceback of a bug of ours that ended it."""
        self.on_message: OnMessage = _ignore
        self.on_death: OnDeath = _ignore
        self._leaving = False
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._process = subprocess.Popen(
            [sys.executable, "-m", "squall.engine.core", str(index), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
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
        try:
            self._process.wait(timeout=EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()

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
        try:
            return self._process.wait(timeout=REAP_WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
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
