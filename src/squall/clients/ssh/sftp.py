"""What one call of SFTP does on a connection. A refusal of the server is a value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, NamedTuple

import asyncssh

from squall.api.errors import TransportError
from squall.clients.ssh.login import SSHSession

# Refusals that end the connection, not the call.
_LOST = (asyncssh.SFTPNoConnection, asyncssh.SFTPConnectionLost)


class TransferOutcome(NamedTuple):
    """How the server answered a call. `error` is empty if it did what it was asked for."""

    code: int = 0
    message: str = ""
    error: str = ""
    content: bytes = b""
    size: int = 0
    names: tuple[str, ...] = ()
    transfer_s: float = 0.0
    mode: int = 0
    modified: int = 0


async def get(session: SSHSession, path: str, most_bytes: int) -> TransferOutcome:
    """Receives a file."""

    async def received(sftp: asyncssh.SFTPClient) -> TransferOutcome:
        file = await sftp.open(path, "rb")
        began = perf_counter()
        try:
            size = (await file.stat()).size or 0
            if size > most_bytes:
                raise TransportError(f"content larger than {most_bytes >> 20} MiB")
            content: Any = await file.read(size, 0) if size else await file.read()
        finally:
            await file.close()
        return TransferOutcome(
            content=content, size=len(content), transfer_s=perf_counter() - began
        )

    return await _answered(session, received)


async def put(session: SSHSession, path: str, content: bytes) -> TransferOutcome:
    """Sends a file with this content."""

    async def sent(sftp: asyncssh.SFTPClient) -> TransferOutcome:
        file = await sftp.open(path, "wb")
        began = perf_counter()
        try:
            if content:
                await file.write(content, 0)
        finally:
            await file.close()
        return TransferOutcome(size=len(content), transfer_s=perf_counter() - began)

    return await _answered(session, sent)


async def list_names(session: SSHSession, path: str) -> TransferOutcome:
    """The names in a directory."""

    async def listed(sftp: asyncssh.SFTPClient) -> TransferOutcome:
        names = [str(name) for name in await sftp.listdir(path)]
        return TransferOutcome(
            names=tuple(sorted(name for name in names if name not in (".", "..")))
        )

    return await _answered(session, listed)


async def stat(session: SSHSession, path: str) -> TransferOutcome:
    """Size, permissions and time of change of a file."""

    async def asked(sftp: asyncssh.SFTPClient) -> TransferOutcome:
        found = await sftp.stat(path)
        size, mode, modified = found.size or 0, found.permissions or 0, found.mtime or 0
        return TransferOutcome(size=size, mode=mode, modified=int(modified))

    return await _answered(session, asked)


async def remove(session: SSHSession, path: str) -> TransferOutcome:
    """Removes a file."""

    async def removed(sftp: asyncssh.SFTPClient) -> TransferOutcome:
        await sftp.remove(path)
        return TransferOutcome()

    return await _answered(session, removed)


async def login_path(session: SSHSession) -> TransferOutcome:
    """Asks for the path of the login, which every server can answer."""

    async def asked(sftp: asyncssh.SFTPClient) -> TransferOutcome:
        return TransferOutcome(message=str(await sftp.realpath(".")))

    return await _answered(session, asked)


async def _answered(
    session: SSHSession, call: Callable[[asyncssh.SFTPClient], Awaitable[TransferOutcome]]
) -> TransferOutcome:
    try:
        assert session.sftp is not None
        return await call(session.sftp)
    except _LOST:
        raise
    except asyncssh.SFTPError as error:
        what = type(error).__name__.removeprefix("SFTP")
        words = "".join(f" {c.lower()}" if c.isupper() else c for c in what).strip()
        return TransferOutcome(error.code, error.reason, f"refused: {words}")
