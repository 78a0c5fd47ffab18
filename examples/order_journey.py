"""One journey over four systems: log in over HTTP, look in PostgreSQL, publish to Kafka, and hear
of it over a WebSocket. The summary shows the times of each step beside each other.

`squall run order_journey.py -e DATABASE=... -e KAFKA_URL=... -e NEWS=...`
"""

from squall import (
    SQL,
    URL,
    Data,
    Form,
    HTTPResponse,
    KafkaResponse,
    PostgresResponse,
    WebsocketResponse,
    Workflow,
    check,
    env,
    step,
    then,
)

TOPIC = env("TOPIC", "squall-journeys")


class Journey(Workflow):
    host = "http://127.0.0.1:8080"
    vus = 10
    duration = "10s"

    @step()
    async def log_in(
        self, url: URL = "/login", form: Form = {"user": "ada", "password": "x"}
    ) -> HTTPResponse:
        return await self.client.http.post(url, form=form)

    @then()
    async def stock(
        self,
        log_in: HTTPResponse,
        url: URL = env("DATABASE", "postgres://postgres@127.0.0.1:5432/postgres"),
        sql: SQL = "SELECT 7 AS pairs WHERE length($1::text) > 0",
    ) -> PostgresResponse:
        return await self.client.postgres.query(url, sql, log_in.json()["token"])

    @check("stock")
    def there_is_stock(self, stock: PostgresResponse) -> bool:
        return stock.ok and stock.rows[0]["pairs"] == 7

    @then()
    async def publish(
        self,
        url: URL = env("KAFKA_URL", "kafka://127.0.0.1:9092"),
        order: Data = {"item": "shoe"},
    ) -> KafkaResponse:
        return await self.client.kafka.send(url, TOPIC, order, key=f"user-{self.vu.id}")

    @then()
    async def news(self, url: URL = env("NEWS", "ws://127.0.0.1:8081/echo")) -> WebsocketResponse:
        async with self.client.websocket.open(url) as session:
            await session.send("what is new?")
            return await session.receive(timeout="5s")
