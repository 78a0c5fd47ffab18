"""A control connection that is logged in, and what one call does on it.

A refusal of the server is a value, an `FTPOutcome`. A data connection goes to the address of the
control connection, whatever the server says: behind a router it names an internal address.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, NamedTuple

import aioftp
from aioftp.common import SSLSessionBoundContext
from aioftp.errors import StatusCodeError

from squall.api.errors import TransportError
from squall.clients.calls.arrivals import LibraryOpening
from squall.clients.http.shared import NO_ALPN

_ANONYMOUS = ("anonymous", "squall@")
# "Not implemented" in its variants (RFC 959, 4.2.1): another command may do.
_NOT_KNOWN = ("500", "501", "502", "504")
_PIECE_BYTES = 1 << 16


class FTPOutcome(NamedTuple):
    """How the server answered a call. `error` is empty if it did what it was asked for."""

    code: int
    message: str
    error: str = ""
    content: bytes = b""
    size: int = 0
    names: tuple[str, ...] = ()
    data_connect_s: float = 0.0
    transfer_s: float = 0.0


class DataConnection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    took_s: float


class FTPSession(aioftp.Client):
    """A client of aioftp that opens its connections itself."""

    def __init__(self, opening: LibraryOpening) -> None:
        super().__init__(ssl=opening.tls)
        self.login_s = 0.0
        self._opening = opening
        # Open while a call uses it.
        self._data: asyncio.StreamWriter | None = None
        self._is_binary = False
        self._has_epsv = self._has_mlsd = True

    @property
    def is_open(self) -> bool:
        # Whatever arrives between two calls is a goodbye, such as 421.
        reader = self.stream.reader
        return not (reader.at_eof() or self.stream.writer.is_closing() or _has_unread(reader))

    def drop(self) -> None:
        """Closes both connections at once."""
        control = None if self._stream is None else self._stream.writer
        for writer in (self._data, control):
            if writer is not None:
                writer.transport.abort()

    async def say_goodbye(self) -> None:
        await self.command("QUIT", "2xx")

    async def get(self, path: str, most_bytes: int) -> FTPOutcome:
        """RETR: the content of a file."""
        return await self._answered("RETR", lambda: self._received(f"RETR {path}", most_bytes))

    async def put(self, path: str, content: bytes) -> FTPOutcome:
        """STOR: a file with this content."""
        return await self._answered("STOR", lambda: self._sent(f"STOR {path}", content))

    async def list_names(self, path: str, most_bytes: int) -> FTPOutcome:
        """MLSD, or LIST where the server does not know it: the names in a directory."""
        if self._has_mlsd:
            found = await self._answered(
                "MLSD", lambda: self._received(f"MLSD {path}".rstrip(), most_bytes)
            )
            if str(found.code) not in _NOT_KNOWN:
                return self._named(found, self.parse_mlsx_line)
            self._has_mlsd = False
        found = await self._answered(
            "LIST", lambda: self._received(f"LIST {path}".rstrip(), most_bytes)
        )
        return self._named(found, self.parse_list_line)

    async def delete(self, path: str) -> FTPOutcome:
        """DELE: removes a file."""

        async def deleted() -> FTPOutcome:
            code, info = await self.command(f"DELE {path}", "2xx")
            return FTPOutcome(int(code), _text(info))

        return await self._answered("DELE", deleted)

    async def ask(self, command: str) -> FTPOutcome:
        """A command without a data connection."""

        async def asked() -> FTPOutcome:
            code, info = await self.command(command, "2xx")
            return FTPOutcome(int(code), _text(info))

        return await self._answered(command, asked)

    async def _answered(self, verb: str, call: Callable[[], Awaitable[FTPOutcome]]) -> FTPOutcome:
        try:
            return await call()
        except StatusCodeError as error:
            code, message = str(error.received_codes[-1]), _text(error.info)
            if code == "421" or not code.isdecimal():
                # The server ends the session (RFC 959, 5.4).
                raise EOFError(f"the server closes the session: {code}") from error
            return FTPOutcome(int(code), message, f"{verb} refused: {code}")
        except ssl.SSLCertVerificationError:
            # It is a `ValueError`, too.
            raise
        except ValueError as error:
            # A line that does not end, or an answer to EPSV without a port.
            raise EOFError("not an FTP answer") from error
        finally:
            data, self._data = self._data, None
            if data is not None and not data.is_closing():
                # Refused, or broken off.
                data.transport.abort()

    async def _received(self, command: str, most_bytes: int) -> FTPOutcome:
        data = await self._data_connection()
        await self.command(command, "1xx")
        began = perf_counter()
        pieces: list[bytes] = []
        left = most_bytes
        while piece := await data.reader.read(_PIECE_BYTES):
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                raise TransportError(f"content larger than {most_bytes >> 20} MiB")
        data.writer.close()
        code, info = await self.command(None, "2xx", "1xx")
        content = b"".join(pieces)
        return FTPOutcome(
            int(code),
            _text(info),
            content=content,
            size=len(content),
            data_connect_s=data.took_s,
            transfer_s=perf_counter() - began,
        )

    async def _sent(self, command: str, content: bytes) -> FTPOutcome:
        data = await self._data_connection()
        await self.command(command, "1xx")
        began = perf_counter()
        data.writer.write(content)
        await data.writer.drain()
        # Its end is the end of the file.
        data.writer.close()
        code, info = await self.command(None, "2xx", "1xx")
        return FTPOutcome(
            int(code),
            _text(info),
            size=len(content),
            data_connect_s=data.took_s,
            transfer_s=perf_counter() - began,
        )

    async def _data_connection(self) -> DataConnection:
        began = perf_counter()
        if not self._is_binary:
            await self.command("TYPE I", "200")
            self._is_binary = True
        reader, writer = await self._open_connection("", await self._passive_port())
        self._data = writer
        return DataConnection(reader, writer, perf_counter() - began)

    async def _passive_port(self) -> int:
        if self._has_epsv:
            try:
                _, info = await self.command("EPSV", "229")
                return self.parse_epsv_response(info[-1])[1]
            except StatusCodeError as error:
                if str(error.received_codes[-1]) not in _NOT_KNOWN:
                    raise
                self._has_epsv = False
        _, info = await self.command("PASV", "227")
        return self.parse_pasv_response(info[-1])[1]

    async def _open_connection(
        self, host: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The control connection, then data connections: aioftp would look the name up for each."""
        opening = self._opening
        tls, place = self.ssl, opening.host
        if self._stream is not None:
            place = opening.ip
            inside = self._stream.writer.transport.get_extra_info("ssl_object")
            # Servers such as vsftpd want the TLS session of the control connection again.
            tls = inside and SSLSessionBoundContext(
                ssl.PROTOCOL_TLS_CLIENT, context=inside.context, session=inside.session
            )
        with opening.connecting():
            if tls:
                return await asyncio.open_connection(
                    place, port, ssl=tls, server_hostname=opening.host
                )
            return await asyncio.open_connection(place, port)

    def _named(self, found: FTPOutcome, read: Callable[[bytes], tuple[Any, Any]]) -> FTPOutcome:
        names: list[str] = []
        for line in found.content.splitlines():
            if not line.strip() or line.startswith(b"total "):
                continue
            try:
                path, facts = read(line)
            except (ValueError, KeyError, IndexError):
                continue
            if facts.get("type") not in ("cdir", "pdir") and str(path) not in (".", ".."):
                names.append(str(path))
        return found._replace(names=tuple(names))


async def open_session(opening: LibraryOpening) -> FTPSession:
    """Connects and logs in, as "anonymous" if the address has no user."""
    address = opening.address
    session = FTPSession(opening)
    try:
        began = perf_counter()
        await session.connect(opening.host, opening.port)
        if address.scheme == "ftpes":
            await session.upgrade_to_tls(opening.shared.tls_context(NO_ALPN))
        elif address.tls:
            await session.command("PBSZ 0", "200")
            await session.command("PROT P", "200")
        user, password = (address.user, address.password) if address.user else _ANONYMOUS
        await session.login(user, password)
    except StatusCodeError as error:
        session.drop()
        raise TransportError(_refusal(error)) from error
    except ssl.SSLCertVerificationError:
        # It is a `ValueError`, too.
        session.drop()
        raise
    except ValueError as error:
        session.drop()
        raise EOFError("not an FTP answer") from error
    except BaseException:
        session.drop()
        raise
    session.login_s = perf_counter() - began
    return session


def _refusal(error: StatusCodeError) -> str:
    code = str(error.received_codes[-1])
    return f"login refused: {code}" if code.isdecimal() else "not an FTP answer"


def _text(info: Any) -> str:
    lines = [info] if isinstance(info, str) else list(info)
    return "\n".join(line.lstrip("- ").strip() for line in lines)


def _has_unread(reader: asyncio.StreamReader) -> bool:
    """Whether unrequested bytes wait in the buffer."""
    return bool(getattr(reader, "_buffer", b""))
