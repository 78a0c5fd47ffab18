"""Cassandra and ScyllaDB by cassandra-driver: one table per table of the row model.

The run is the partition key, so all rows of a run are in one partition per table. A row replaces
the earlier row with its number. Rows beyond the last one of this delivery are deleted, and the row
of the run is written last.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from squall.api.reporting import RunReporter
from squall.reporting.outputs.blocking_calls import in_thread
from squall.reporting.outputs.libraries import library
from squall.reporting.outputs.output_error import OutputError
from squall.reporting.outputs.relational.reporter import with_json_text
from squall.reporting.outputs.relational.schema import (
    PREFIX,
    VERSION,
    Dialect,
    double_quoted,
    insert,
)
from squall.reporting.outputs.rows.from_document import RunRows
from squall.reporting.outputs.rows.model import TABLES, Table
from squall.reporting.outputs.targets import Secret

DIALECT = Dialect(
    types={
        "text": "text",
        "integer": "bigint",
        "real": "double",
        "flag": "boolean",
        "time": "timestamp",
        "json": "text",
    },
    key_text="text",
    quote=double_quoted,
    mark=lambda _: "?",
)
_PARALLEL = 50
"""Inserts that wait for an answer at a time."""


@dataclass(frozen=True)
class CassandraConfig:
    hosts: tuple[str, ...] = ("127.0.0.1",)
    """Some nodes; the others are found through them."""
    port: int = 9042
    keyspace: str = "squall"
    """It must exist: how often it is replicated is yours to decide."""
    username: str = ""
    password: Annotated[str, Secret("CASSANDRA_PASSWORD")] = field(default="", repr=False)
    tls: bool = False
    timeout_s: float = 60.0


class CassandraReporter(RunReporter):
    def __init__(self, config: CassandraConfig) -> None:
        if any(host.count(":") == 1 for host in config.hosts):
            raise ValueError("write hosts without a port, and port=9042 for all of them")
        self.config = config
        self.timeout_s = config.timeout_s
        self._cluster: Any = None
        self._session: Any = None

    async def connect(self) -> None:
        self._cluster = self._make_cluster()
        self._session = await in_thread(self._cluster.connect, self.config.keyspace)
        await in_thread(self._migrate)

    def _make_cluster(self) -> Any:
        auth = library("cassandra.auth")
        cluster: Any = library("cassandra.cluster")
        policies = library("cassandra.policies")
        config = self.config
        login = (
            auth.PlainTextAuthProvider(config.username, config.password)
            if config.username
            else None
        )
        profile = cluster.ExecutionProfile(
            load_balancing_policy=policies.RoundRobinPolicy(), request_timeout=config.timeout_s
        )
        return cluster.Cluster(
            list(config.hosts),
            port=config.port,
            auth_provider=login,
            ssl_context=ssl.create_default_context() if config.tls else None,
            connect_timeout=config.timeout_s,
            execution_profiles={cluster.EXEC_PROFILE_DEFAULT: profile},
            # It looks at the tables itself, once.
            schema_metadata_enabled=False,
            token_metadata_enabled=False,
        )

    def _migrate(self) -> None:
        """Creates and extends the tables. Every statement may be repeated, so several writers may
        migrate at the same time."""
        execute = self._session.execute
        execute(
            f"CREATE TABLE IF NOT EXISTS {PREFIX}schema (name text PRIMARY KEY, version bigint)"
        )
        found = [row[0] for row in execute(f"SELECT version FROM {PREFIX}schema")]
        if any(version > VERSION for version in found):
            raise OutputError(
                f"the tables of Squall there have version {max(found)}, and this Squall writes "
                f"version {VERSION}: upgrade Squall, or use another keyspace"
            )
        if VERSION in found:
            return
        existing: dict[str, set[str]] = {}
        for table, column in execute(
            "SELECT table_name, column_name FROM system_schema.columns "
            f"WHERE keyspace_name = '{self.config.keyspace}'"
        ):
            existing.setdefault(table, set()).add(column)
        for table in TABLES:
            for statement in table_statements(table, existing.get(PREFIX + table.name)):
                execute(statement)
        execute(f"INSERT INTO {PREFIX}schema (name, version) VALUES ('squall', {VERSION})")

    async def submit(self, document: dict[str, Any]) -> None:
        await in_thread(self._write, RunRows(document))

    def _write(self, rows: RunRows) -> None:
        concurrent = library("cassandra.concurrent")
        for table, own in rows.all():
            if own:
                statement = self._session.prepare(insert(DIALECT, table))
                concurrent.execute_concurrent_with_args(
                    self._session,
                    statement,
                    with_json_text(table, own),
                    concurrency=_PARALLEL,
                    raise_on_first_error=True,
                )
            if "position" in table.names:
                surplus = self._session.prepare(
                    f'DELETE FROM {DIALECT.name(table)} WHERE "run_id" = ? AND "position" >= ?'
                )
                self._session.execute(surplus, (rows.run_id, len(own)))

    async def close(self) -> None:
        if self._cluster is not None:
            await in_thread(self._cluster.shutdown)


def table_statements(table: Table, existing: set[str] | None) -> Iterator[str]:
    """Creates the table, or adds the columns that it lacks."""
    types = {column.name: DIALECT.types[column.kind] for column in table.columns}
    if existing is None:
        columns = ", ".join(f'"{name}" {kind}' for name, kind in types.items())
        first, *others = (f'"{name}"' for name in table.key)
        key = ", ".join((f"({first})", *others))
        yield f"CREATE TABLE IF NOT EXISTS {DIALECT.name(table)} ({columns}, PRIMARY KEY ({key}))"
        return
    for name, kind in types.items():
        if name not in existing:
            yield f'ALTER TABLE {DIALECT.name(table)} ADD "{name}" {kind}'
