"""The FTP client of one virtual user: `self.client.ftp`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Unpack

from squall.api.arguments import URL, File
from squall.api.protocols.transfers import FTPOptions, FTPResult
from squall.clients.calls.library import Library, LibraryCalls
from squall.clients.calls.probe import PingAnswer
from squall.clients.ftp.session import FTPOutcome, FTPSession, open_session
from squall.clients.shared.sent_files import content_of, remote_path

if TYPE_CHECKING:
    from squall.clients.http.client import HTTPClient


class FTPClient:
    """Transfers the files of one user."""

    __slots__ = ("_calls", "_shared")

    def __init__(self, http: HTTPClient) -> None:
        self._shared = http.shared
        self._calls = LibraryCalls(http, "ftp", _LIBRARY)

    async def get(self, url: URL, path: str, **options: Unpack[FTPOptions]) -> FTPResult:
        """Receives a file."""
        most = self._shared.most_bytes
        path = remote_path(path)
        return await self._call(url, "RETR", path, options, lambda ftp: ftp.get(path, most))

    async def put(
        self, url: URL, path: str, data: File | bytes, **options: Unpack[FTPOptions]
    ) -> FTPResult:
        """Sends a file, or bytes."""
        content, name = content_of(data, self._shared.file)
        path = remote_path(path, name)
        return await self._call(
            url, "STOR", path, options, lambda ftp: ftp.put(path, content), len(content)
        )

    async def list(self, url: URL, path: str = "", **options: Unpack[FTPOptions]) -> FTPResult:
        """Lists a directory."""
        most = self._shared.most_bytes
        path = remote_path(path) if path else ""
        return await self._call(url, "LIST", path, options, lambda ftp: ftp.list_names(path, most))

    async def delete(self, url: URL, path: str, **options: Unpack[FTPOptions]) -> FTPResult:
        """Deletes a file."""
        path = remote_path(path)
        return await self._call(url, "DELE", path, options, lambda ftp: ftp.delete(path))

    async def probe(self, url: URL) -> PingAnswer:
        """Connects and logs in, without a further command."""
        result = await self._call(url, "NOOP", "", {}, lambda ftp: ftp.ask("NOOP"))
        return PingAnswer("FTP", result)

    async def _call(
        self,
        url: URL,
        verb: str,
        path: str,
        options: FTPOptions,
        perform: Callable[[FTPSession], Awaitable[FTPOutcome]],
        sent: int = 0,
    ) -> FTPResult:
        used: list[FTPSession] = []

        def noted(session: FTPSession) -> Awaitable[FTPOutcome]:
            used.append(session)
            return perform(session)

        timeout = options.get("timeout")
        operation = f"{verb} {path}".rstrip()
        answer = await self._calls.call(url, operation, noted, timeout=timeout, sent=sent)
        outcome = answer.value
        result = FTPResult(
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
            data_connect_s=outcome.data_connect_s,
            transfer_s=outcome.transfer_s,
        )
        if answer.connect_s:
            result.login_s = used[0].login_s
        return self._calls.done(result)


_LIBRARY: Library[FTPSession] = Library(
    open_session,
    abort=FTPSession.drop,
    close=FTPSession.say_goodbye,
    is_open=lambda session: session.is_open,
)
