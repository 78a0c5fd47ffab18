"""One row by its key from PostgreSQL and MySQL, one document from MongoDB; `--only` chooses one."""

from squall import (
    SQL,
    URL,
    Document,
    MongoDBResponse,
    MySQLResponse,
    PostgresResponse,
    Workflow,
    env,
    step,
)

DATABASE = env("DATABASE", "postgres://postgres@127.0.0.1:5432/postgres")
KEY = {"_id": 1}


class Postgres(Workflow):
    @step()
    async def look(
        self,
        url: URL = DATABASE,
        sql: SQL = "SELECT abalance FROM pgbench_accounts WHERE aid = $1",
    ) -> PostgresResponse:
        return await self.client.postgres.query(url, sql, self.vu.iteration % 100_000 + 1)


class Mysql(Workflow):
    @step()
    async def look(
        self, url: URL = DATABASE, sql: SQL = "SELECT balance FROM accounts WHERE id = ?"
    ) -> MySQLResponse:
        return await self.client.mysql.query(url, sql, self.vu.iteration % 1000 + 1)


class Mongodb(Workflow):
    @step()
    async def look(self, url: URL = DATABASE, key: Document = KEY) -> MongoDBResponse:
        return await self.client.mongodb.find(url, "accounts", key, limit=1)
