"""Statements of SQL databases, made ready before the clock starts."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from squall.api.arguments import Prepared
from squall.api.errors import CallError
from squall.clients.calls.address import PreparedAddress
from squall.clients.calls.library import CallText
from squall.clients.calls.payload import shown


class PreparedSQL(Prepared):
    """The text of a statement, without the indentation of the file. Connections find their prepared
    statement by it."""

    __slots__ = ("_sources", "text")

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = inspect.cleandoc(text)
        # By address: what responses say was asked.
        self._sources: dict[str, CallText] = {}

    def source_of(self, address: PreparedAddress) -> CallText:
        known = self._sources.get(address.value)
        if known is None:
            known = self._sources[address.value] = CallText(address.shown, shown(self.text))
        return known


def sql_of(value: Any) -> PreparedSQL:
    """Prepares a statement. Raises a `CallError` for any other value."""
    if isinstance(value, PreparedSQL):
        return value
    if not isinstance(value, str):
        raise CallError(f"a statement must be text, not {type(value).__name__}")
    if not value.strip():
        raise CallError("the statement is empty")
    return PreparedSQL(value)


def text_of(sql: Any) -> str:
    """The text of a prepared or plain statement."""
    return sql.text if sql.__class__ is PreparedSQL else sql_of(sql).text


SQLOutcome: TypeAlias = tuple[Sequence[Any], tuple[str, ...], int, int, str, str, str]
"""What a database answered to a statement: rows, columns, the number of rows, the number that it
gave to a row, and, if it refused the statement, why, the SQLSTATE and its message. A plain tuple:
one with names takes ten times as long to make."""


def changed(row_count: int, last_id: int = 0) -> SQLOutcome:
    """The outcome of a statement that returns no rows."""
    return (), (), row_count, last_id, "", "", ""


def refused(error: str, code: str, message: str) -> SQLOutcome:
    """The outcome of a statement that the server refused."""
    return (), (), 0, 0, error, code, message


class Statement(NamedTuple):
    """A statement that a connection prepared; `handle` is the library's."""

    handle: Any
    columns: tuple[str, ...] = ()


class SQLSession(Protocol):
    """A connection to a database. A refusal of the server is an outcome; every other exception ends
    the session."""

    statements: dict[str, Statement]

    async def prepare(self, text: str) -> Statement | SQLOutcome:
        """The statement, which the session keeps, or why the server refuses it."""
        ...

    async def query(self, text: str, statement: Statement, values: Sequence[Any]) -> SQLOutcome: ...

    async def script(self, text: str) -> SQLOutcome:
        """Runs statements as they are."""
        ...

    async def many(
        self, text: str, statement: Statement, values: Sequence[Sequence[Any]]
    ) -> SQLOutcome: ...
