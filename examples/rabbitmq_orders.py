"""RabbitMQ: orders are published with a confirmation, and consumed from the queue.

`squall run rabbitmq_orders.py -e RABBITMQ_URL=amqp://guest:guest@127.0.0.1:5672`
"""

from squall import URL, AMQPResponse, Data, Sample, Workflow, action, env, step, then


class Orders(Workflow):
    server = env("RABBITMQ_URL", "amqp://guest:guest@127.0.0.1:5672")
    queue = env("QUEUE", "squall-orders")
    vus = 20
    duration = "10s"

    end_to_end = Sample("ms")

    @action(at="start")
    async def declare(self, url: URL = server) -> None:
        """The queue ends with its last consumer."""
        await self.client.amqp.declare(url, self.queue, auto_delete=True)

    @step()
    async def order(self, url: URL = server, body: Data = {"item": "shoe"}) -> AMQPResponse:
        """Takes until the broker confirms the message; fails if no queue takes it."""
        return await self.client.amqp.publish(
            url, body, key=self.queue, mandatory=True, headers={"kind": "order"}, stamp=True
        )

    @then()
    async def work(self, url: URL = server) -> AMQPResponse:
        """The next order of the queue, of whichever user."""
        taken = await self.client.amqp.consume(url, self.queue, prefetch=1, timeout="5s")
        for latency_s in taken.latencies:
            self.end_to_end.add(latency_s * 1000)
        return taken
