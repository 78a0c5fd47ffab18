"""The author's API of PostgreSQL and MySQL: results, transactions, and the verbs of
`self.client.postgres` and `self.client.mysql`.

Nothing here does I/O or imports a library of a database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Protocol, TypedDict, TypeVar, Unpack

from squall.api.arguments import SQL, URL
from squall.api.errors import StatusError
from squall.api.protocols.response import ProtocolResponse

R = TypeVar("R", bound="SQLResponse", covariant=True)


class SQLResponse(ProtocolResponse):
    """What a database answered to one statement."""

    rows: Sequence[Any] = ()
    """The rows. Those of PostgreSQL are read by place or by name (`row["price"]`), those of MySQL
    are tuples."""
    columns: tuple[str, ...] = ()
    """The names of the columns."""
    row_count: int = 0
    """Rows that were returned, or changed; of `many` the number of its sets of values."""
    last_id: int = 0
    """The number that MySQL gave to an inserted row (AUTO_INCREMENT)."""
    code: str = ""
    """The SQLSTATE of a failed statement, such as "23505"; empty if it did not fail."""
    message: str = ""
    """What the server says about the failure."""
    prepare_s: float = 0.0
    """Seconds for preparing the statement, once per connection; not in `total_s`."""

    @property
    def value(self) -> Any:
        """The first column of the first row; None without rows."""
        return self.rows[0][0] if self.rows else None

    @property
    def dicts(self) -> list[dict[str, Any]]:
        """The rows as dicts."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    @property
    def text(self) -> str:
        """The answer as `--once` and the sample of a failure show it."""
        if self.error:
            return f"{self.error}: {self.message}"
        shown = "\n".join(str(tuple(row)) for row in self.rows)
        counted = f"{self.row_count} row" + ("" if self.row_count == 1 else "s")
        return f"{', '.join(self.columns)}\n{shown}\n{counted}" if self.columns else counted

    def raise_for_status(self) -> None:
        """Raises a `StatusError`, which stops the iteration, if the statement failed."""
        if self.error:
            raise StatusError(self.error, self)


class PostgresResponse(SQLResponse):
    """What PostgreSQL answered to one statement."""

    protocol: ClassVar[str] = "postgres"


class MySQLResponse(SQLResponse):
    """What MySQL or MariaDB answered to one statement."""

    protocol: ClassVar[str] = "mysql"


class SQLOptions(TypedDict, total=False):
    """The keywords of `query`, `execute` and `many`."""

    timeout: str | float | None
    """Limit for the statement, instead of that of the step. A statement that takes longer is
    cancelled on the server, and its connection is closed."""


class SQLTransaction(Protocol[R]):
    """An open transaction: its statements run on one connection."""

    async def query(self, sql: SQL, *values: Any, **options: Unpack[SQLOptions]) -> R:
        """Runs a prepared statement and returns its rows."""
        ...

    async def execute(self, sql: SQL, *values: Any, **options: Unpack[SQLOptions]) -> R:
        """As `query`; but without values the text is sent as it is, and returns no rows."""
        ...

    async def many(
        self, sql: SQL, values: Iterable[Sequence[Any]], **options: Unpack[SQLOptions]
    ) -> R:
        """Runs a prepared statement once for each set of values."""
        ...


class SQLVerbs(Protocol[R]):
    """`self.client.postgres` and `self.client.mysql`: statements on connections of this user.

    The URL is `postgres://user:password@host:5432/database` or `mysql://...`. Values stand for
    `$1`, `$2` in PostgreSQL and for `?` in MySQL. A statement that the server refuses returns its
    response, which counts as a failure; without an answer a verb raises `TransportError`.
    """

    async def query(self, url: URL, sql: SQL, *values: Any, **options: Unpack[SQLOptions]) -> R:
        """Runs a statement and returns its rows. Each connection prepares it once."""
        ...

    async def execute(self, url: URL, sql: SQL, *values: Any, **options: Unpack[SQLOptions]) -> R:
        """As `query`; but without values the text is sent as it is, without being prepared, may be
        several statements, and returns no rows."""
        ...

    async def many(
        self, url: URL, sql: SQL, values: Iterable[Sequence[Any]], **options: Unpack[SQLOptions]
    ) -> R:
        """Runs a prepared statement once for each set of values, all or none of them: PostgreSQL in
        a pipeline, MariaDB in one bulk operation, MySQL one after the other."""
        ...

    def transaction(
        self, url: URL, **options: Unpack[SQLOptions]
    ) -> AbstractAsyncContextManager[SQLTransaction[R]]:
        """Begins a transaction: `async with self.client.postgres.transaction(url) as shop`. The end
        of the block commits it; an exception that leaves the block, or a statement that failed,
        rolls it back."""
        ...
