"""What one copy of SCP does: the command `scp` on the server, at the other end of a channel.

The protocol has no document. One file is a line `C0644 SIZE NAME`, the content and a zero byte; the
other side answers each with a zero byte, or with 1 or 2 and a line that says why not.
"""

from __future__ import annotations

import shlex
from time import perf_counter
from typing import Any

import asyncssh

from squall.api.errors import TransportError
from squall.clients.ssh.login import SSHSession
from squall.clients.ssh.sftp import TransferOutcome

_OK = b"\0"
_PIECE_BYTES = 1 << 16
# Written so that nothing in it ends the line.
_NAME = "file"


class _CopyRefused(Exception):
    """The server refused the copy; `code` is 1 (this file) or 2 (fatal)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


async def get(session: SSHSession, path: str, most_bytes: int) -> TransferOutcome:
    """Receives a file."""
    async with _command(session, f"scp -f {shlex.quote(path)}") as process:
        try:
            return await _received(process, most_bytes)
        except _CopyRefused as error:
            return _refusal(error, path)


async def put(session: SSHSession, path: str, content: bytes) -> TransferOutcome:
    """Sends a file with this content."""
    async with _command(session, f"scp -t {shlex.quote(path)}") as process:
        try:
            return await _sent(process, content)
        except _CopyRefused as error:
            return _refusal(error, path)


async def probe(session: SSHSession) -> TransferOutcome:
    """Runs a command that does nothing; a server that refuses it answers, too."""
    try:
        async with _command(session, "true") as process:
            await process.wait()
    except asyncssh.ChannelOpenError as error:
        return TransferOutcome(message=error.reason)
    return TransferOutcome()


def _command(session: SSHSession, command: str) -> Any:
    return session.connection.create_process(command, encoding=None)


async def _received(process: Any, most_bytes: int) -> TransferOutcome:
    process.stdin.write(_OK)
    line = await _line(process)
    while line[:1] == b"T":
        # Times, which nobody asked for.
        process.stdin.write(_OK)
        line = await _line(process)
    try:
        kind, (_, size_text, _) = line[:1], line[1:].split(b" ", 2)
        size = int(size_text)
    except ValueError:
        raise EOFError("not an SCP answer") from None
    if kind != b"C" or size < 0:
        raise EOFError("not an SCP answer")
    if size > most_bytes:
        raise TransportError(f"content larger than {most_bytes >> 20} MiB")
    began = perf_counter()
    process.stdin.write(_OK)
    content: bytes = await process.stdout.readexactly(size)
    await _agreed(process)
    process.stdin.write(_OK)
    return TransferOutcome(content=content, size=size, transfer_s=perf_counter() - began)


async def _sent(process: Any, content: bytes) -> TransferOutcome:
    await _agreed(process)
    process.stdin.write(f"C0644 {len(content)} {_NAME}\n".encode())
    await _agreed(process)
    began = perf_counter()
    process.stdin.write(content)
    process.stdin.write(_OK)
    await process.stdin.drain()
    await _agreed(process)
    return TransferOutcome(size=len(content), transfer_s=perf_counter() - began)


async def _agreed(process: Any) -> None:
    """Waits for the zero byte with which the other side goes on."""
    mark = await process.stdout.readexactly(1)
    if mark != _OK:
        await _refuse(process, mark)


async def _line(process: Any) -> bytes:
    mark = await process.stdout.readexactly(1)
    if mark in (b"\1", b"\2"):
        await _refuse(process, mark)
    rest: bytes = await process.stdout.readuntil(b"\n")
    return mark + rest.rstrip(b"\n")


async def _refuse(process: Any, mark: bytes) -> None:
    if mark not in (b"\1", b"\2"):
        raise EOFError("not an SCP answer")
    line: bytes = await process.stdout.readuntil(b"\n")
    raise _CopyRefused(mark[0], line.decode("utf-8", "replace").strip())


def _refusal(error: _CopyRefused, path: str) -> TransferOutcome:
    """The reason without the path, which stands before or behind it: results count by reason."""
    message = str(error)
    parts = [part.strip() for part in message.split(":")]
    reasons = [part for part in parts if part not in ("", "scp") and not part.endswith(path)]
    why = reasons[0].lower() if reasons else "no reason given"
    return TransferOutcome(error.code, message, f"refused: {why}")
