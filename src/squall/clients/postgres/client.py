"""The client of one virtual user for PostgreSQL: `self.client.postgres`."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from squall.api.errors import TransportError
from squall.api.protocols.sql import PostgresResponse
from squall.clients.calls.arrivals import LibraryOpening, noting
from squall.clients.calls.library import Library
from squall.clients.http.client import HTTPClient
from squall.clients.postgres.session import LOST, PostgresSession, asyncpg, reason_of
from squall.clients.sql import DatabaseKind, SQLClient
from squall.clients.sql.tls_option import tls_of


async def _open(opening: LibraryOpening) -> PostgresSession:
    address = opening.address
    tls = tls_of(opening)
    try:
        connection: Any = await asyncpg.connect(
            host=opening.host,
            port=opening.port,
            user=address.user or "postgres",
            # Never None: the library would look for one in files of this machine.
            password=address.password,
            database=unquote(address.path.strip("/")) or address.user or "postgres",
            ssl=tls or False,
            # The caller has the limit.
            timeout=None,
            server_settings={"application_name": "squall"},
        )
    except asyncpg.PostgresError as error:
        raise TransportError(f"{reason_of(error)}: {address.origin.where}") from None
    if tls is not None:
        # The library has put its protocol on the transport after the handshake.
        connection._transport.set_protocol(noting(connection._protocol, opening.arrivals))
    return PostgresSession(connection)


def _server(session: PostgresSession) -> str:
    return f"PostgreSQL {session.connection.get_settings().server_version}"


_LIBRARY = Library(
    open=_open,
    abort=PostgresSession.abort,
    close=PostgresSession.close,
    is_open=PostgresSession.is_open,
    lost=LOST,
    reason=lambda error: "connection closed before a response",
)
_KIND = DatabaseKind("postgres", _LIBRARY, PostgresResponse, _server)


class PostgresClient(SQLClient):
    """Runs the statements of one user on PostgreSQL."""

    __slots__ = ()

    def __init__(self, http: HTTPClient) -> None:
        super().__init__(http, _KIND)
