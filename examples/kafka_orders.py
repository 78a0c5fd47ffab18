"""Kafka: orders are sent through one producer, and a second workflow reads them.

`squall run kafka_orders.py -e KAFKA_URL=kafka://127.0.0.1:9092`
"""

from squall import URL, Counter, Data, KafkaResponse, Workflow, check, env, step

KAFKA = env("KAFKA_URL", "kafka://127.0.0.1:9092")
TOPIC = env("TOPIC", "squall-orders")


class Orders(Workflow):
    vus = 20
    duration = "10s"

    @step()
    async def order(
        self, url: URL = f"{KAFKA}?acks=all&linger=5ms", body: Data = {"item": "shoe"}
    ) -> KafkaResponse:
        """Takes until all replicas that are in sync have the message."""
        return await self.client.kafka.send(url, TOPIC, body, key=f"user-{self.vu.id}", stamp=True)

    @check("order")
    def was_stored(self, order: KafkaResponse) -> bool:
        return order.offset >= 0


class Reader(Workflow):
    """One consumer that has all partitions; more of them would share a `group`."""

    vus = 1
    duration = "10s"

    read = Counter()

    @step()
    async def poll(self, url: URL = KAFKA) -> KafkaResponse:
        found = await self.client.kafka.poll(url, TOPIC, start="beginning", wait="1s")
        self.read.add(len(found.messages))
        return found
