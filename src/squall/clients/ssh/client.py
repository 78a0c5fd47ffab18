"""The clients of one virtual user for files over SSH: `self.client.sftp` and `self.client.scp`.

Each has connections of its own. A key or a file of known hosts belongs to a connection: a call with
another key uses another connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import copy
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import asyncssh

from squall.api.arguments import URL, File
from squall.api.protocols.transfers import SCPResult, SFTPResult, SSHOptions
from squall.clients.calls.library import Library, LibraryCalls
from squall.clients.calls.probe import PingAnswer
from squall.clients.shared.sent_files import content_of, remote_path
from squall.clients.ssh import scp, sftp
from squall.clients.ssh.login import SSHIdentity, SSHSession, lost_reason, open_session
from squall.clients.ssh.sftp import TransferOutcome

if TYPE_CHECKING:
    from squall.clients.calls.address import PreparedAddress
    from squall.clients.http.client import HTTPClient

R = TypeVar("R", SFTPResult, SCPResult)
_NOBODY = SSHIdentity("", "")
_PEM = "-----BEGIN"


class SSHCalls:
    """The calls of one user over SSH, whatever they transfer."""

    __slots__ = ("_addresses", "_calls", "shared")

    def __init__(self, http: HTTPClient, protocol: str) -> None:
        self.shared = http.shared
        # Addresses with an identity, of all users of a share: a connection is found by its address.
        self._addresses: dict[Any, PreparedAddress]
        self._addresses = self.shared.protocols.setdefault("ssh addresses", {})
        identities: dict[Any, SSHIdentity] = self.shared.protocols.setdefault("ssh identities", {})
        self._calls = LibraryCalls(
            http,
            protocol,
            Library(
                lambda opening: open_session(
                    opening,
                    identities.get(opening.address.value, _NOBODY),
                    sftp=protocol == "sftp",
                ),
                abort=SSHSession.abort,
                close=SSHSession.close,
                is_open=lambda session: session.is_open,
                lost=(asyncssh.Error,),
                reason=lost_reason,
            ),
        )

    async def call(
        self,
        kind: type[R],
        url: URL,
        operation: str,
        path: str,
        options: SSHOptions,
        perform: Callable[[SSHSession], Awaitable[TransferOutcome]],
        sent: int = 0,
    ) -> R:
        used: list[SSHSession] = []

        def noted(session: SSHSession) -> Awaitable[TransferOutcome]:
            used.append(session)
            return perform(session)

        answer = await self._calls.call(
            self._address(url, options) if options else url,
            f"{operation} {path}",
            noted,
            timeout=options.get("timeout"),
            sent=sent,
        )
        outcome = answer.value
        result = kind(
            *answer.stamps,
            error=outcome.error,
            bytes_sent=sent,
            bytes_received=answer.received,
            path=path,
            code=outcome.code,
            message=outcome.message,
            content=outcome.content,
            size=outcome.size,
            names=outcome.names,
            transfer_s=outcome.transfer_s,
        )
        if isinstance(result, SFTPResult):
            result.mode, result.modified = outcome.mode, outcome.modified
        if answer.connect_s:
            result.login_s = used[0].login_s
        return self._calls.done(result)

    def _address(self, url: Any, options: SSHOptions) -> Any:
        """The address of a connection with the key and the known hosts of a call."""
        key, known_hosts = options.get("key"), options.get("known_hosts")
        if key is None and known_hosts is None:
            return url
        # Prepared arguments are the same objects in every call.
        kept = (url, key, known_hosts)
        found = self._addresses.get(kept)
        if found is None:
            plain = self._calls.address_of(url)
            identity = SSHIdentity(self._text(key), self._text(known_hosts))
            found = copy(plain)
            found.value = (plain.value, identity)
            self.shared.protocols["ssh identities"][found.value] = identity
            self._addresses[kept] = found
        return found

    def _text(self, value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, str) and value.lstrip().startswith(_PEM):
            return value
        content, _ = content_of(value, self.shared.file)
        return content.decode("utf-8", "replace")


class SFTPClient:
    """Transfers the files of one user over SFTP."""

    __slots__ = ("_ssh",)

    def __init__(self, http: HTTPClient) -> None:
        self._ssh = SSHCalls(http, "sftp")

    async def get(self, url: URL, path: str, **options: Unpack[SSHOptions]) -> SFTPResult:
        """Receives a file."""
        most, path = self._ssh.shared.most_bytes, remote_path(path)
        return await self._ssh.call(
            SFTPResult, url, "GET", path, options, lambda session: sftp.get(session, path, most)
        )

    async def put(
        self, url: URL, path: str, data: File | bytes, **options: Unpack[SSHOptions]
    ) -> SFTPResult:
        """Sends a file, or bytes."""
        content, name = content_of(data, self._ssh.shared.file)
        place = remote_path(path, name)
        return await self._ssh.call(
            SFTPResult,
            url,
            "PUT",
            place,
            options,
            lambda session: sftp.put(session, place, content),
            len(content),
        )

    async def list(self, url: URL, path: str = ".", **options: Unpack[SSHOptions]) -> SFTPResult:
        """Lists a directory."""
        path = remote_path(path)
        return await self._ssh.call(
            SFTPResult, url, "LIST", path, options, lambda session: sftp.list_names(session, path)
        )

    async def stat(self, url: URL, path: str, **options: Unpack[SSHOptions]) -> SFTPResult:
        """Asks for size, permissions and time of change of a file."""
        path = remote_path(path)
        return await self._ssh.call(
            SFTPResult, url, "STAT", path, options, lambda session: sftp.stat(session, path)
        )

    async def remove(self, url: URL, path: str, **options: Unpack[SSHOptions]) -> SFTPResult:
        """Removes a file."""
        path = remote_path(path)
        return await self._ssh.call(
            SFTPResult, url, "REMOVE", path, options, lambda session: sftp.remove(session, path)
        )

    async def probe(self, url: URL) -> PingAnswer:
        """Logs in and asks for the path of the login."""
        servers: list[str] = []

        def ask(session: SSHSession) -> Awaitable[TransferOutcome]:
            servers.append(session.server)
            return sftp.login_path(session)

        result = await self._ssh.call(SFTPResult, url, "REALPATH", ".", {}, ask)
        return PingAnswer(f"SFTP {servers[0]}", result, [f"directory: {result.message}"])


class SCPClient:
    """Copies the files of one user over SCP."""

    __slots__ = ("_ssh",)

    def __init__(self, http: HTTPClient) -> None:
        self._ssh = SSHCalls(http, "scp")

    async def get(self, url: URL, path: str, **options: Unpack[SSHOptions]) -> SCPResult:
        """Receives a file."""
        most, path = self._ssh.shared.most_bytes, remote_path(path)
        return await self._ssh.call(
            SCPResult, url, "GET", path, options, lambda session: scp.get(session, path, most)
        )

    async def put(
        self, url: URL, path: str, data: File | bytes, **options: Unpack[SSHOptions]
    ) -> SCPResult:
        """Sends a file, or bytes."""
        content, name = content_of(data, self._ssh.shared.file)
        place = remote_path(path, name)
        return await self._ssh.call(
            SCPResult,
            url,
            "PUT",
            place,
            options,
            lambda session: scp.put(session, place, content),
            len(content),
        )

    async def probe(self, url: URL) -> PingAnswer:
        """Logs in and runs a command that does nothing."""
        servers: list[str] = []

        def ask(session: SSHSession) -> Awaitable[TransferOutcome]:
            servers.append(session.server)
            return scp.probe(session)

        result = await self._ssh.call(SCPResult, url, "RUN", "true", {}, ask)
        return PingAnswer(f"SSH {servers[0]}", result)
