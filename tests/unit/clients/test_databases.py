"""What the clients of databases prepare before the run, and how they name failures."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
from asyncmy import errors

from squall.api.arguments import argument_kinds
from squall.api.errors import CallError, ConfigError
from squall.api.protocols.sql import PostgresResponse
from squall.clients import registry
from squall.clients.calls.library import CallText
from squall.clients.http import HTTPShared
from squall.clients.mongodb import session as mongodb
from squall.clients.mongodb.documents import document_of, plain
from squall.clients.mysql import session as mysql
from squall.clients.postgres import session as postgres
from squall.clients.sql.statements import sql_of, text_of

SQL, DOCUMENT = (
    next(kind for kind in argument_kinds() if kind.__name__ == name) for name in ("SQL", "Document")
)


def test_a_statement_loses_the_indentation_of_the_file() -> None:
    statement = sql_of("\n        SELECT 1,\n          2\n    ")
    assert text_of(statement) == "SELECT 1,\n  2"
    assert sql_of(statement) is statement and text_of(" SELECT 1") == "SELECT 1"


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (SQL, 7, "a statement must be text, not int"),
        (SQL, " \n", "the statement is empty"),
        (DOCUMENT, "{}", "a document must be a dict or a list of dicts, not str"),
        (DOCUMENT, [1], "a document must be a dict, not int"),
        (DOCUMENT, {"a": object()}, "the document cannot be sent as BSON: "),
    ],
)
def test_a_wrong_argument_is_refused_before_the_run(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        asyncio.run(HTTPShared().prepare(kind, value))
    assert str(caught.value).startswith(message)


def test_a_document_is_encoded_once_and_shows_what_the_author_wrote() -> None:
    prepared = document_of({"item": "shoe"})
    assert plain(prepared).raw.endswith(b"item\0\x05\0\0\0shoe\0\0")
    assert plain(prepared) is plain(prepared) and prepared.value == {"item": "shoe"}
    assert [dict(each) for each in plain(document_of([{"a": 1}, {"b": 2}]))] == [{"a": 1}, {"b": 2}]
    assert plain({"a": 1}) == {"a": 1}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("UniqueViolationError", "unique violation (23505)"),
        ("TooManyConnectionsError", "too many connections (53300)"),
        ("PostgresSyntaxError", "syntax (42601)"),
        ("DeadlockDetectedError", "deadlock detected (40P01)"),
    ],
)
def test_a_refusal_of_postgresql_is_named_in_words(name: str, reason: str) -> None:
    error = getattr(asyncpg, name)("what the server says")
    assert postgres.reason_of(error) == reason
    assert postgres.refusal(error)[4:] == (reason, error.sqlstate, "what the server says")


@pytest.mark.parametrize(
    ("number", "state", "reason"),
    [
        (1062, "23000", "duplicate entry (1062, 23000)"),
        (1213, "40001", "lock deadlock (1213, 40001)"),
        (1040, None, "too many connections (1040)"),
        (4999, "HY000", "error (4999, HY000)"),
    ],
)
def test_a_refusal_of_mysql_is_named_in_words(number: int, state: str, reason: str) -> None:
    error = errors.OperationalError(number, "what the server says")
    error.sqlstate = state
    assert mysql.is_of_server(error) and mysql.reason_of(error) == reason
    assert mysql.refusal(error)[4:] == (reason, state or "HY000", "what the server says")


def test_errors_of_the_library_itself_are_no_refusals() -> None:
    assert not mysql.is_of_server(errors.OperationalError(2013, "Lost connection"))
    assert not mysql.is_of_server(errors.InterfaceError(0, "Not connected"))
    assert not mysql.is_of_server(errors.ProgrammingError("Expected 2 parameters, got 1"))


def test_a_refusal_of_mongodb_is_named_in_words() -> None:
    assert mongodb.reason_of(112, "WriteConflict") == "write conflict (112)"
    assert mongodb.reason_of(11000, "") == "duplicate key (11000)"
    assert mongodb.reason_of(7, "") == "command failed (7)"


@pytest.mark.parametrize(
    ("tag", "count"), [("INSERT 0 5", 5), ("SELECT 12", 12), ("CREATE TABLE", 0), (None, 0)]
)
def test_the_count_of_rows_is_in_the_command_tag(tag: str | None, count: int) -> None:
    assert postgres.counted(tag) == count


def test_a_response_shows_its_rows_or_its_failure() -> None:
    source = CallText("postgres://ann@db/shop", "SELECT 1")
    good = PostgresResponse(source, 0.0, 0.1, 0.2, rows=[(1,)], columns=("one",), row_count=1)
    assert (good.text, good.value, good.dicts) == ("one\n(1,)\n1 row", 1, [{"one": 1}])
    assert good.request == "POSTGRES SELECT 1 postgres://ann@db/shop"
    bad = PostgresResponse(source, 0.0, 0.1, 0.2, error="deadlock (40P01)", message="no luck")
    assert (bad.text, bad.value, bad.ok) == ("deadlock (40P01): no luck", None, False)


@pytest.mark.parametrize("protocol", ["postgres", "mysql", "mongodb"])
def test_a_missing_library_is_one_line_with_the_command(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name="thelibrary")

    monkeypatch.setattr(registry, "import_module", missing)
    with pytest.raises(ConfigError, match=rf"thelibrary, .*pip install 'squall\[{protocol}\]'"):
        registry.client_class(protocol)


def test_a_text_that_is_no_statement_is_refused_in_the_run() -> None:
    with pytest.raises(CallError, match="not NoneType"):
        text_of(None)
