"""A connection to MySQL or MariaDB through asyncmy: prepared statements in the binary protocol."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from asyncmy import errors
from asyncmy.connection import Connection
from asyncmy.constants import ER

from squall.api.errors import CallError
from squall.clients.calls.arrivals import LibraryOpening
from squall.clients.sql.statement_cancel import start_cancel
from squall.clients.sql.statements import SQLOutcome, Statement, changed, refused

# What the library raises about values and statements before it sends anything.
_OF_AUTHOR = (errors.ProgrammingError, errors.DataError, errors.NotSupportedError)
_NAMES = {
    **{number: name for name, number in vars(ER).items() if isinstance(number, int)},
    # Clearer than the names of the library, or newer than its table.
    **{1040: "TOO_MANY_CONNECTIONS", 1045: "ACCESS_DENIED", 1046: "NO_DATABASE"},
    **{1049: "UNKNOWN_DATABASE", 1062: "DUPLICATE_ENTRY", 1064: "SYNTAX", 1698: "ACCESS_DENIED"},
    **{1690: "OUT_OF_RANGE", 1927: "CONNECTION_KILLED", 1969: "STATEMENT_TIMEOUT"},
}


class MySQLSessionLost(ConnectionError):
    """The server or the network ended the connection."""


LOST = (OSError, MySQLSessionLost)


class MySQLSession:
    """`options` opened the connection, and open the one over which a statement is cancelled."""

    __slots__ = (
        "_columns",
        "_described",
        "_is_running",
        "_opening",
        "_options",
        "connection",
        "statements",
    )

    def __init__(self, connection: Any, opening: LibraryOpening, options: dict[str, Any]) -> None:
        self.connection = connection
        self._opening = opening
        self._options = options
        self.statements: dict[str, Statement] = {}
        # What the last result said of its columns, and their names.
        self._described: Any = None
        self._columns: tuple[str, ...] = ()
        # Whether a statement was sent that is not answered.
        self._is_running = False

    def is_open(self) -> bool:
        return not self.connection._stream_broken

    async def prepare(self, text: str) -> Statement | SQLOutcome:
        try:
            prepared = await self.connection.prepare(text)
        except errors.MySQLError as error:
            return self._refused(error)
        statement = self.statements[text] = Statement(prepared)
        return statement

    async def query(self, text: str, statement: Statement, values: Sequence[Any]) -> SQLOutcome:
        self._is_running = True
        try:
            result = await statement.handle.execute(values)
        except errors.MySQLError as error:
            return self._refused(error)
        self._is_running = False
        described = result.description
        if not described:
            return changed(int(result.affected_rows or 0), result.insert_id or 0)
        if described is not self._described:
            # The same object for each use of a statement.
            self._described = described
            self._columns = tuple([each[0] for each in described])
        rows = result.rows or ()
        return rows, self._columns, len(rows), 0, "", "", ""

    async def script(self, text: str) -> SQLOutcome:
        connection = self.connection
        self._is_running = True
        try:
            await connection.query(text)
            count = 0
            while connection._result.has_next:
                count += _affected(connection._result)
                await connection.next_result()
        except errors.MySQLError as error:
            return self._refused(error)
        self._is_running = False
        result = connection._result
        return changed(count + _affected(result), result.insert_id or 0)

    async def many(
        self, text: str, statement: Statement, values: Sequence[Sequence[Any]]
    ) -> SQLOutcome:
        self._is_running = True
        try:
            last_id = await self._all(statement.handle, [tuple(each) for each in values])
        except errors.MySQLError as error:
            return self._refused(error)
        self._is_running = False
        return changed(len(values), last_id)

    async def _all(self, prepared: Any, values: list[tuple[Any, ...]]) -> int:
        if values and self.connection._bulk_supported:
            # Values whose types differ from row to row are refused before anything is sent.
            with suppress(ValueError):
                return (await prepared.execute_bulk(values)).insert_id or 0
        return await self._one_by_one(prepared, values)

    async def _one_by_one(self, prepared: Any, values: list[tuple[Any, ...]]) -> int:
        """In a transaction of its own, unless one is open."""
        connection = self.connection
        is_own = connection.get_autocommit() and not connection.get_transaction_status()
        if is_own:
            await connection.begin()
        try:
            last_id = 0
            for each in values:
                last_id = (await prepared.execute(each)).insert_id or last_id
        except errors.MySQLError:
            if is_own:
                await connection.rollback()
            raise
        if is_own:
            await connection.commit()
        return last_id

    def _refused(self, error: Any) -> SQLOutcome:
        self._is_running = False
        if is_of_server(error):
            return refusal(error)
        if isinstance(error, _OF_AUTHOR):
            raise CallError(str(error.args[-1] if error.args else error)) from None
        raise MySQLSessionLost(str(error)) from None

    async def close(self) -> None:
        await self.connection.ensure_closed()

    def abort(self) -> None:
        """Closes the connection at once, and ends its statement on the server."""
        connection = self.connection
        if self._is_running:
            self._is_running = False
            start_cancel(self._cancel(connection.thread_id()))
        if connection._transport is not None:
            connection._transport.abort()
        connection.close()

    async def _cancel(self, number: int) -> None:
        other = Connection(**self._options)
        try:
            with self._opening.connecting():
                await other.connect()
            await cast("Any", other).query(f"KILL QUERY {number}")
        finally:
            other.close()


def refusal(error: Any) -> SQLOutcome:
    """The outcome of a statement that the server refused."""
    message = str(error.args[1]) if len(error.args) > 1 else str(error)
    state = error.sqlstate or "HY000"
    return refused(reason_of(error), state, message)


def reason_of(error: Any) -> str:
    """The number in words, with the SQLSTATE: "duplicate entry (1062, 23000)"."""
    number = number_of(error)
    words = _NAMES.get(number, "error").removesuffix("_ERROR").replace("_", " ").lower()
    state = error.sqlstate
    return f"{words} ({number}, {state})" if state else f"{words} ({number})"


def number_of(error: Any) -> int:
    number = error.args[0] if error.args else 0
    return number if isinstance(number, int) else 0


def is_of_server(error: Any) -> bool:
    """Whether the server sent the error: numbers from 2000 to 2999 are the client's own."""
    return error.sqlstate is not None or number_of(error) // 1000 not in (0, 2)


def _affected(result: Any) -> int:
    return 0 if result.rows is not None and result.description else int(result.affected_rows or 0)
