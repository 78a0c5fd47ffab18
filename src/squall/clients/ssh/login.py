"""Opens SSH connections: key exchange, the check of the host key, and the login.

Of the machine's own files it reads only the known hosts: no SSH configuration, no keys, no agent.
With those, a test would run differently on another machine.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import asyncssh

from squall.api.errors import CallError, TransportError
from squall.clients.calls.arrivals import LibraryOpening

_KNOWN_HOSTS = Path(".ssh") / "known_hosts"


class SSHIdentity(NamedTuple):
    """How to log in, besides the user and password of the address, and which hosts to trust."""

    key: str
    """A private key as text; empty if there is none."""
    known_hosts: str
    """The text of a file of known hosts; empty for that of the machine."""


class SSHSession:
    """A connection that is logged in, with a channel for SFTP if it is used for that."""

    def __init__(self, connection: asyncssh.SSHClientConnection) -> None:
        self.connection = connection
        self.login_s = 0.0
        self.sftp: asyncssh.SFTPClient | None = None
        self.server = str(connection.get_extra_info("server_version", ""))

    @property
    def is_open(self) -> bool:
        return not self.connection.is_closed()

    def abort(self) -> None:
        self.connection.abort()

    async def close(self) -> None:
        self.connection.close()
        await self.connection.wait_closed()


async def open_session(opening: LibraryOpening, identity: SSHIdentity, *, sftp: bool) -> SSHSession:
    """Connects and logs in. Raises a `TransportError` that says what was refused."""
    address = opening.address
    if not address.user:
        raise CallError(f"the address needs a user: {address.scheme}://USER@{address.host}")
    began = perf_counter()
    try:
        connection = await asyncssh.connect(
            opening.host,
            opening.port,
            username=address.user,
            password=address.password or None,
            client_keys=[_key(identity.key)] if identity.key else None,
            known_hosts=_known_hosts(opening, identity),
            agent_path=None,
            config=None,
            gss_host=None,
            # The caller has a limit of its own.
            login_timeout=0,
        )
    except (asyncssh.Error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise TransportError(refusal(error, opening)) from error
    session = SSHSession(connection)
    if sftp:
        try:
            session.sftp = await connection.start_sftp_client()
        except asyncssh.ChannelOpenError as error:
            session.abort()
            raise TransportError("the server has no SFTP") from error
        except BaseException:
            session.abort()
            raise
    session.login_s = perf_counter() - began
    return session


def refusal(error: BaseException, opening: LibraryOpening) -> str:
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return (
            f"host key of {opening.host} is not known; name a file with known_hosts=, "
            "or use --insecure"
        )
    if isinstance(error, asyncssh.PermissionDenied):
        return "login refused"
    return lost_reason(error)


def lost_reason(error: BaseException) -> str:
    """The key under which a connection that ended is counted."""
    if isinstance(error, asyncssh.ConnectionLost):
        return "connection closed by the server"
    if isinstance(error, asyncssh.Error):
        return f"SSH: {error.reason.splitlines()[0].lower() if error.reason else 'failed'}"
    return str(error).lower() or type(error).__name__


def _known_hosts(opening: LibraryOpening, identity: SSHIdentity) -> Any:
    if not opening.shared.verify:
        return None
    text = identity.known_hosts
    if not text:
        try:
            text = (Path.home() / _KNOWN_HOSTS).read_text(encoding="utf-8")
        except (OSError, RuntimeError):
            text = ""
    try:
        return asyncssh.import_known_hosts(text)
    except ValueError as error:
        raise CallError(f"the file of known hosts is not valid: {error}") from error


def _key(text: str) -> asyncssh.SSHKey:
    try:
        return asyncssh.import_private_key(text)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
        # Without its text, which is a secret.
        raise CallError(f"the private key is not valid: {error}") from None
