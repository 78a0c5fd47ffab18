"""A connection to PostgreSQL through asyncpg, which speaks the binary protocol."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from squall.api.errors import CallError
from squall.clients.sql.statement_cancel import start_cancel
from squall.clients.sql.statements import SQLOutcome, Statement, changed, refused

# It has no types of its own.
asyncpg: Any = import_module("asyncpg")

# What a connection raises that the server or the network ended.
LOST = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InternalClientError,
    asyncpg.ConnectionDoesNotExistError,
)
_REFUSALS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.exceptions.OutdatedSchemaCacheError,
)
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z0-9])")
# Of the message that asks a server to end a statement (PostgreSQL, 55.2.8).
_CANCEL = struct.Struct("!iiii")
_CANCEL_CODE = 80877102


class PostgresSession:
    """A connection that is logged in."""

    __slots__ = ("_bind_execute", "_is_running", "_place", "connection", "statements")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._bind_execute = connection._protocol.bind_execute
        self.statements: dict[str, Statement] = {}
        # Where a statement is cancelled: the server that runs it.
        self._place = connection._transport.get_extra_info("peername")[:2]
        # Whether a statement was sent that is not answered.
        self._is_running = False

    def is_open(self) -> bool:
        return not self.connection.is_closed()

    async def prepare(self, text: str) -> Statement | SQLOutcome:
        try:
            prepared = await self.connection.prepare(text)
        except asyncpg.PostgresError as error:
            return refusal(error)
        columns = tuple([each.name for each in prepared.get_attributes()])
        statement = self.statements[text] = Statement(prepared, columns)
        return statement

    async def query(self, text: str, statement: Statement, values: Sequence[Any]) -> SQLOutcome:
        # What `fetch` of the prepared statement does, without its four layers of wrappers: they
        # cost as much as all that Squall does for a call.
        self._is_running = True
        try:
            rows, tag, _ = await self._bind_execute(
                statement.handle._state, values, "", 0, True, None
            )
        except _REFUSALS as error:
            return self._refused(text, error)
        self._is_running = False
        return rows, statement.columns, len(rows) or counted(tag.decode()), 0, "", "", ""

    async def script(self, text: str) -> SQLOutcome:
        self._is_running = True
        try:
            tag = await self.connection.execute(text)
        except _REFUSALS as error:
            return self._refused(text, error)
        self._is_running = False
        return changed(counted(tag))

    async def many(
        self, text: str, statement: Statement, values: Sequence[Sequence[Any]]
    ) -> SQLOutcome:
        self._is_running = True
        try:
            await statement.handle.executemany(values)
        except _REFUSALS as error:
            return self._refused(text, error)
        self._is_running = False
        return changed(len(values))

    def _refused(self, text: str, error: Any) -> SQLOutcome:
        self._is_running = False
        if isinstance(error, LOST):
            if isinstance(error, asyncpg.exceptions.OutdatedSchemaCacheError):
                self.statements.pop(text, None)
                return refused("outdated schema", "0A000", str(error))
            raise error
        if isinstance(error, asyncpg.InterfaceError):
            # A value that is not of the type of its parameter: nothing was sent.
            raise CallError(str(error).splitlines()[0]) from None
        if isinstance(error, asyncpg.InvalidCachedStatementError):
            self.statements.pop(text, None)
        return refusal(error)

    async def close(self) -> None:
        await self.connection.close()

    def abort(self) -> None:
        """Closes the connection at once, and ends its statement on the server."""
        if self._is_running:
            self._is_running = False
            protocol = self.connection._protocol
            start_cancel(self._cancel(protocol.backend_pid, protocol.backend_secret))
        self.connection.terminate()

    async def _cancel(self, number: int, secret: int) -> None:
        # The server answers nothing to this message.
        _, writer = await asyncio.open_connection(*self._place)
        writer.write(_CANCEL.pack(_CANCEL.size, _CANCEL_CODE, number, secret))
        writer.close()


def refusal(error: Any) -> SQLOutcome:
    """The outcome of a statement that the server refused."""
    message = " ".join(filter(None, (str(error.args[0]), error.detail)))
    return refused(reason_of(error), error.sqlstate or "", message)


def reason_of(error: Any) -> str:
    """The SQLSTATE in words, like "unique violation (23505)"."""
    name = type(error).__name__.removesuffix("Error").removeprefix("Postgres")
    words = " ".join(_WORD.split(name)).lower()
    return f"{words} ({error.sqlstate})" if error.sqlstate else words


def counted(tag: str | None) -> int:
    """The number at the end of a command tag such as "INSERT 0 5"."""
    number = (tag or "").rpartition(" ")[2]
    return int(number) if number.isdigit() else 0
