"""The two SQL databases, and what they write differently."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from squall.clients.http import HTTPShared
from squall.clients.registry import make_client
from squall.clients.sql.statements import sql_of
from tests.lab.databases import on_mysql, on_postgres
from tests.services.http.lab.servers import swept


class Words(NamedTuple):
    name: str
    insert: str
    sleep: str
    """Takes ten seconds."""
    running: str
    """Counts the statements above that the server runs."""
    duplicate: tuple[str, str]
    """The reason and the SQLSTATE of an equal key."""
    no_table: tuple[str, str]
    ask: Callable[[str, str], Any]


POSTGRES = Words(
    "postgres",
    "INSERT INTO orders (id, item) VALUES ($1, $2)",
    "SELECT pg_sleep(10)",
    "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%pg_sleep(10)%'"
    " AND pid <> pg_backend_pid() AND datname = current_database()",
    ("unique violation (23505)", "23505"),
    ("undefined table (42P01)", "42P01"),
    on_postgres,
)
MYSQL = Words(
    "mysql",
    "INSERT INTO orders (id, item) VALUES (?, ?)",
    "SELECT sleep(10)",
    "SELECT count(*) FROM information_schema.processlist WHERE info LIKE '%sleep(10)%'"
    " AND id <> connection_id() AND db = database()",
    ("duplicate entry (1062, 23000)", "23000"),
    ("no such table (1146, 42S02)", "42S02"),
    on_mysql,
)


@dataclass(frozen=True)
class SQLDatabase:
    """An empty database behind a URL."""

    url: str
    words: Words

    def empty(self) -> None:
        self.ask("DROP TABLE IF EXISTS orders")
        self.ask("CREATE TABLE orders (id INTEGER PRIMARY KEY, item VARCHAR(40))")

    def ask(self, statement: str) -> Any:
        """What the database itself says, apart from Squall."""
        return self.words.ask(self.url, statement)

    @property
    def rows(self) -> int:
        return self.ask("SELECT count(*) FROM orders")

    def behind(self, port: int) -> str:
        """The URL of the database behind another port."""
        return moved(self.url, port)


def moved(url: str, port: int) -> str:
    parts = urlsplit(url)
    login = parts.netloc.rpartition("@")[0]
    return urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{port}"))


class User:
    """A client of one user, with its address and statements prepared."""

    def __init__(self, database: SQLDatabase, shared: HTTPShared, http: Any, url: str) -> None:
        self.words = database.words
        self.shared = shared
        self.http = http
        self.client = make_client(database.words.name, http)
        self.url = shared.address(url)

    @property
    def counters(self) -> Any:
        return self.shared.counters_of(self.words.name)

    async def query(self, sql: str, *values: Any, **options: Any) -> Any:
        return await self.client.query(self.url, sql_of(sql), *values, **options)

    async def insert(self, number: int, item: str = "shoe", **options: Any) -> Any:
        return await self.query(self.words.insert, number, item, **options)


@asynccontextmanager
async def user_of(database: SQLDatabase, url: str = "", **settings: Any) -> AsyncGenerator[User]:
    shared = HTTPShared(**settings)
    await shared.resolve(shared.address(url or database.url).origin)
    async with swept(shared) as http:
        user = User(database, shared, http, url or database.url)
        yield user
        http.close()
