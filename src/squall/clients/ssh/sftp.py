"""What one call of SFTP does on a connection. A refusal of the server is a value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, NamedTuple

import asyncssh

from squall.api.errors import TransportError
from squall.clients.ssh.login import Session

# Refusals that end the connection, not the call.
_LOST = (asyncssh.SFTPNoConnection, asyncssh.SFTPConnectionLost)


class Outcome(NamedTuple):
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


async def get(session: Session, path: str, most_bytes: int) -> Outcome:
    """Receives a file."""

    async def received(sftp: asyncssh.SFTPClient) -> Outcome:
        file = await sftp.open(path, "rb")
        began = perf_counter()
        try:
            size = (await file.stat()).size or 0
            if size > most_bytes:
                raise TransportError(f"content larger than {most_bytes >> 20} MiB")
            content: Any = await file.read(size, 0) if size else await file.read()
        finally:
            await file.close()
        return Outcome(content=content, size=len(content), transfer_s=perf_counter() - began)

    return await _answered(session, received)


async def put(session: Session, path: str, content: bytes) -> Outcome:
    """Sends a file with this content."""

    async def sent(sftp: asyncssh.SFTPClient) -> Outcome:
        file = await sftp.open(path, "wb")
        began = perf_counter()
        try:
            if content:
                await file.write(content, 0)
        finally:
            await file.close()
        return Outcome(size=len(content), transfer_s=perf_counter() - began)

    return await _answered(session, sent)


async def list_names(session: Session, path: str) -> Outcome:
    """The names in a directory."""

    async def listed(sftp: asyncssh.SFTPClient) -> Outcome:
        names = [str(name) for name in await sftp.listdir(path)]
        return Outcome(names=tuple(sorted(name for name in names if name not in (".", ".."))))

    return await _answered(session, listed)


async def stat(session: Session, path: str) -> Outcome:
    """Size, permissions and time of change of a file."""

    async def asked(sftp: asyncssh.SFTPClient) -> Outcome:
        found = await sftp.stat(path)
        size, mode, modified = found.size or 0, found.permissions or 0, found.mtime or 0
        return Outcome(size=size, mode=mode, modified=int(modified))

    return await _answered(session, asked)


async def remove(session: Session, path: str) -> Outcome:
    """Removes a file."""

    async def removed(sftp: asyncssh.SFTPClient) -> Outcome:
        await sftp.remove(path)
        return Outcome()

    return await _answered(session, removed)


async def login_path(session: Session) -> Outcome:
    """Asks for the path of the login, which every server can answer."""

    async def asked(sftp: asyncssh.SFTPClient) -> Outcome:
        return Outcome(message=str(await sftp.realpath(".")))

    return await _answered(session, asked)


async def _answered(
    session: Session, call: Callable[[asyncssh.SFTPClient], Awaitable[Outcome]]
) -> Outcome:
    try:
        assert session.sftp is not None
        return await call(session.sftp)
    except _LOST:
        raise
    except asyncssh.SFTPError as error:
        what = type(error).__name__.removeprefix("SFTP")
        words = "".join(f" {c.lower()}" if c.isupper() else c for c in what).strip()
        return Outcome(error.code, error.reason, f"refused: {words}")
