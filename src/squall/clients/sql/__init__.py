"""What the clients of SQL databases have in common: statements, sessions, transactions.

`client` has the verbs; `statements` says what a database must do. `clients/postgres` and
`clients/mysql` stand on it.
"""

from squall.clients.sql.client import DatabaseKind, SQLClient

__all__ = ["DatabaseKind", "SQLClient"]
