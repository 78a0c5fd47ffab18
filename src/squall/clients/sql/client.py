"""The client of one virtual user for an SQL database: `self.client.postgres` and
`self.client.mysql`.

A database says in `DatabaseKind` how to connect and what its responses are. A connection prepares
each statement once; that is not part of a latency.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Unpack

from squall.api.arguments import SQL, URL
from squall.api.protocols.sql import SQLOptions, SQLTransaction
from squall.clients.calls.library import Library, LibraryAnswer, LibraryCalls, LibraryConnection
from squall.clients.calls.payload import shown
from squall.clients.calls.probe import PingAnswer
from squall.clients.http.client import HTTPClient
from squall.clients.sql.statements import PreparedSQL, SQLOutcome, SQLSession, Statement, text_of

Held = LibraryConnection[Any]
# How the text of a statement is used.
QUERY, SCRIPT, MANY = "query", "execute", "many"


@dataclass(frozen=True)
class DatabaseKind:
    """What one database has of its own: how to connect, and its responses."""

    protocol: str
    library: Library[Any]
    response: Callable[..., Any]
    server: Callable[[Any], str]
    """The name and version behind a session, like "PostgreSQL 15.1"."""
    begin: str = "BEGIN"


class SQLClient:
    """Runs the statements of one user."""

    __slots__ = ("_calls", "_kind")

    def __init__(self, http: HTTPClient, kind: DatabaseKind) -> None:
        self._kind = kind
        self._calls: LibraryCalls[Any] = LibraryCalls(http, kind.protocol, kind.library)

    async def query(self, url: URL, sql: SQL, *values: Any, **options: Unpack[SQLOptions]) -> Any:
        # Most calls are these, so they are written out in full: a statement that an idle connection
        # has prepared.
        if not options and type(sql) is PreparedSQL:
            calls, text = self._calls, sql.text
            held = calls.idle(url)
            if held is not None and (known := held.connection.statements.get(text)) is not None:
                calls.begin(held, len(text))
                arrivals = held.arrivals
                received, started = arrivals.received, held.started
                try:
                    (
                        rows,
                        columns,
                        count,
                        last_id,
                        error,
                        code,
                        message,
                    ) = await held.connection.query(text, known, values)
                except BaseException as failure:
                    raise calls.broken(held, shown(text), failure) from failure.__cause__
                ended = arrivals.last if arrivals.last > started else perf_counter()
                response = self._kind.response(
                    sql.source_of(held.address),
                    started,
                    arrivals.first or ended,
                    ended,
                    0.0,
                    error,
                    len(text),
                    arrivals.received - received,
                    True,
                    1,
                    rows,
                    columns,
                    count,
                    last_id,
                    code,
                    message,
                )
                calls.finish(held, response)
                return response
        return await self._one(url, QUERY, text_of(sql), values, options)

    async def execute(self, url: URL, sql: SQL, *values: Any, **options: Unpack[SQLOptions]) -> Any:
        return await self._one(url, QUERY if values else SCRIPT, text_of(sql), values, options)

    async def many(
        self, url: URL, sql: SQL, values: Iterable[Sequence[Any]], **options: Unpack[SQLOptions]
    ) -> Any:
        return await self._one(url, MANY, text_of(sql), list(values), options)

    def transaction(
        self, url: URL, **options: Unpack[SQLOptions]
    ) -> AbstractAsyncContextManager[SQLTransaction[Any]]:
        return self._transaction(url, options)

    async def probe(self, url: URL) -> PingAnswer:
        """Asks the server for one row."""
        operation = "SELECT 1"
        held = await self._calls.take(url, operation)
        try:
            response = await self.run(held, QUERY, operation, (), {})
            return PingAnswer(self._kind.server(held.connection), response)
        finally:
            self._calls.drop(held)

    async def run(
        self, held: Held, how: str, text: str, values: Sequence[Any], options: SQLOptions
    ) -> Any:
        """Runs a statement on a connection that the caller holds."""
        session: SQLSession = held.connection
        calls, timeout = self._calls, options.get("timeout")
        statement = None if how == SCRIPT else session.statements.get(text)
        if how == SCRIPT or statement is not None:
            perform = _performed(how, text, statement, values)
            answer = await calls.on(held, shown(text), perform, timeout=timeout, sent=len(text))
            return self._response(text, answer)
        first = _FirstUse(held, how, text, values)
        answer = await calls.on(held, shown(text), first.perform, timeout=timeout, sent=len(text))
        answer.started += first.prepare_s
        return self._response(text, answer, first.prepare_s)

    async def _one(
        self, url: URL, how: str, text: str, values: Sequence[Any], options: SQLOptions
    ) -> Any:
        """Runs one statement on a connection of the user."""
        calls = self._calls
        held = await calls.take(url, shown(text), timeout=options.get("timeout"))
        try:
            response = await self.run(held, how, text, values, options)
        except BaseException:
            calls.drop(held)
            raise
        calls.give_back(held)
        return response

    @asynccontextmanager
    async def _transaction(self, url: URL, options: SQLOptions) -> AsyncGenerator[Any]:
        calls, begin = self._calls, self._kind.begin
        held = await calls.take(url, begin, timeout=options.get("timeout"))
        try:
            opened = OpenTransaction(self, held, options)
            await opened.control(begin)
            yield opened
            await opened.control("ROLLBACK" if opened.has_failed else "COMMIT")
        except BaseException:
            # The server undoes everything; one that hangs would not answer a ROLLBACK.
            calls.drop(held)
            raise
        calls.give_back(held)

    def _response(
        self, text: str, answer: LibraryAnswer[SQLOutcome], prepare_s: float = 0.0
    ) -> Any:
        rows, columns, count, last_id, error, code, message = answer.value
        return self._calls.done(
            self._kind.response(
                *answer.stamps,
                error,
                len(text),
                answer.received,
                rows=rows,
                columns=columns,
                row_count=count,
                last_id=last_id,
                code=code,
                message=message,
                prepare_s=prepare_s,
            )
        )


class OpenTransaction:
    """Statements on the connection of one transaction."""

    __slots__ = ("_client", "_held", "_options", "has_failed")

    def __init__(self, client: SQLClient, held: Held, options: SQLOptions) -> None:
        self._client = client
        self._held = held
        self._options = options
        # A statement failed: the end of the block rolls back.
        self.has_failed = False

    async def query(self, sql: SQL, *values: Any, **options: Unpack[SQLOptions]) -> Any:
        return await self._run(QUERY, text_of(sql), values, options)

    async def execute(self, sql: SQL, *values: Any, **options: Unpack[SQLOptions]) -> Any:
        return await self._run(QUERY if values else SCRIPT, text_of(sql), values, options)

    async def many(
        self, sql: SQL, values: Iterable[Sequence[Any]], **options: Unpack[SQLOptions]
    ) -> Any:
        return await self._run(MANY, text_of(sql), list(values), options)

    async def control(self, text: str) -> None:
        """Begins or ends the transaction."""
        (await self._run(SCRIPT, text, (), {})).raise_for_status()

    async def _run(self, how: str, text: str, values: Sequence[Any], options: SQLOptions) -> Any:
        response = await self._client.run(self._held, how, text, values, options or self._options)
        self.has_failed = self.has_failed or bool(response.error)
        return response


class _FirstUse:
    """The first use of a statement on a connection, which prepares it. Its latency leaves out the
    time of the preparation."""

    __slots__ = ("_held", "_how", "_text", "_values", "prepare_s")

    def __init__(self, held: Held, how: str, text: str, values: Sequence[Any]) -> None:
        self._held = held
        self._how = how
        self._text = text
        self._values = values
        self.prepare_s = 0.0

    async def perform(self, session: SQLSession) -> SQLOutcome:
        began = perf_counter()
        statement = await session.prepare(self._text)
        if not isinstance(statement, Statement):
            return statement
        self.prepare_s = perf_counter() - began
        # What arrives from here on is the answer to the statement itself.
        self._held.arrivals.first = 0.0
        return await _performed(self._how, self._text, statement, self._values)(session)


def _performed(
    how: str, text: str, statement: Statement | None, values: Sequence[Any]
) -> Callable[[SQLSession], Awaitable[SQLOutcome]]:
    if statement is None:
        return lambda session: session.script(text)
    known = statement
    if how == MANY:
        return lambda session: session.many(text, known, values)
    return lambda session: session.query(text, known, values)
