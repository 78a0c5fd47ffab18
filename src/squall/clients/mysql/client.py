"""The client of one virtual user for MySQL and MariaDB: `self.client.mysql`."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from asyncmy import errors
from asyncmy.connection import Connection

from squall.api.errors import TransportError
from squall.api.protocols.sql import MySQLResponse
from squall.clients.calls.arrivals import LibraryOpening
from squall.clients.calls.library import Library
from squall.clients.http.client import HTTPClient
from squall.clients.mysql.session import (
    LOST,
    MySQLSession,
    MySQLSessionLost,
    is_of_server,
    reason_of,
)
from squall.clients.sql import DatabaseKind, SQLClient
from squall.clients.sql.tls_option import tls_of


async def _open(opening: LibraryOpening) -> MySQLSession:
    address = opening.address
    options: dict[str, Any] = {
        "host": opening.host,
        "port": opening.port,
        "user": address.user or "root",
        "password": address.password,
        "database": unquote(address.path.strip("/")) or None,
        "autocommit": True,
        "ssl": tls_of(opening),
        # The caller has the limit.
        "connect_timeout": 31_536_000,
        "program_name": "squall",
    }
    connection = Connection(**options)
    try:
        await connection.connect()
    except errors.MySQLError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        if is_of_server(error):
            raise TransportError(f"{reason_of(error)}: {address.origin.where}") from None
        raise MySQLSessionLost(str(error)) from None
    return MySQLSession(connection, opening, options)


def _server(session: MySQLSession) -> str:
    # MariaDB puts a version before its own, for old clients.
    version = session.connection.server_version.removeprefix("5.5.5-")
    name, _, rest = version.partition("-")
    return f"MariaDB {name}" if "MariaDB" in rest else f"MySQL {version}"


_LIBRARY = Library(
    open=_open,
    abort=MySQLSession.abort,
    close=MySQLSession.close,
    is_open=MySQLSession.is_open,
    lost=LOST,
    reason=lambda error: "connection closed before a response",
)
_KIND = DatabaseKind("mysql", _LIBRARY, MySQLResponse, _server)


class MySQLClient(SQLClient):
    """Runs the statements of one user on MySQL or MariaDB."""

    __slots__ = ()

    def __init__(self, http: HTTPClient) -> None:
        super().__init__(http, _KIND)
