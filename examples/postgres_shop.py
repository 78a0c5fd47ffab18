"""PostgreSQL: a query, a transaction, many rows at once; all users share ten connections."""

from squall import SQL, URL, PostgresResponse, Workflow, check, depends, env, step, then

DATABASE = env("DATABASE", "postgres://postgres@127.0.0.1:5432/postgres")


class Tables(Workflow):
    @step()
    async def create(
        self,
        url: URL = DATABASE,
        script: SQL = """
            DROP TABLE IF EXISTS shop_lines;
            DROP TABLE IF EXISTS shop_orders;
            CREATE TABLE shop_orders (id BIGSERIAL PRIMARY KEY, customer INTEGER NOT NULL);
            CREATE TABLE shop_lines (shop_order BIGINT NOT NULL, item TEXT NOT NULL);
        """,
    ) -> None:
        (await self.client.postgres.execute(url, script)).raise_for_status()


@depends("Tables")
class Shop(Workflow):
    vus = 20
    duration = "10s"
    connections = "shared"
    pool_size = 10

    @step()
    async def look(
        self,
        url: URL = DATABASE,
        sql: SQL = "SELECT count(*) AS orders FROM shop_orders WHERE customer = $1",
    ) -> PostgresResponse:
        return await self.client.postgres.query(url, sql, self.vu.id)

    @check("look")
    def counts_my_orders(self, look: PostgresResponse) -> bool:
        return look.ok and look.rows[0]["orders"] == self.vu.iteration - 1

    @then()
    async def order(
        self,
        url: URL = DATABASE,
        insert: SQL = "INSERT INTO shop_orders (customer) VALUES ($1) RETURNING id",
        lines: SQL = "INSERT INTO shop_lines (shop_order, item) VALUES ($1, $2)",
    ) -> PostgresResponse:
        """The step is measured by its last statement; all of them are counted."""
        async with self.client.postgres.transaction(url) as shop:
            order = await shop.query(insert, self.vu.id)
            items = [(order.value, "shoe"), (order.value, "hat"), (order.value, "sock")]
            return await shop.many(lines, items)
