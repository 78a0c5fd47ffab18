"""MySQL or MariaDB: a query, a transaction, many rows at once; all users share ten connections."""

from squall import SQL, URL, MySQLResponse, Workflow, check, depends, env, step, then

DATABASE = env("DATABASE", "mysql://root@127.0.0.1:3306/test")


class Tables(Workflow):
    @step()
    async def create(
        self,
        url: URL = DATABASE,
        script: SQL = """
            DROP TABLE IF EXISTS shop_lines, shop_orders;
            CREATE TABLE shop_orders (id BIGINT AUTO_INCREMENT PRIMARY KEY, customer INT NOT NULL);
            CREATE TABLE shop_lines (shop_order BIGINT NOT NULL, item VARCHAR(40) NOT NULL);
        """,
    ) -> None:
        (await self.client.mysql.execute(url, script)).raise_for_status()


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
        sql: SQL = "SELECT count(*) FROM shop_orders WHERE customer = ?",
    ) -> MySQLResponse:
        return await self.client.mysql.query(url, sql, self.vu.id)

    @check("look")
    def counts_my_orders(self, look: MySQLResponse) -> bool:
        return look.ok and look.value == self.vu.iteration - 1

    @then()
    async def order(
        self,
        url: URL = DATABASE,
        insert: SQL = "INSERT INTO shop_orders (customer) VALUES (?)",
        lines: SQL = "INSERT INTO shop_lines (shop_order, item) VALUES (?, ?)",
    ) -> MySQLResponse:
        """The step is measured by its last statement; all of them are counted."""
        async with self.client.mysql.transaction(url) as shop:
            order = await shop.query(insert, self.vu.id)
            items = [(order.last_id, "shoe"), (order.last_id, "hat"), (order.last_id, "sock")]
            return await shop.many(lines, items)
