"""`self.client.postgres`: PostgreSQL, on asyncpg.

`client` opens connections, `session` uses them.
"""

from squall.clients.postgres.client import PostgresClient

__all__ = ["PostgresClient"]
