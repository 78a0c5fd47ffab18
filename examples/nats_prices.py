"""NATS: what is published arrives at a subscriber, and how long that takes.

`squall run nats_prices.py -e NATS_URL=nats://127.0.0.1:4222`
"""

from squall import URL, Data, NATSResponse, Sample, Workflow, action, env, step, then


class Prices(Workflow):
    server = env("NATS_URL", "nats://127.0.0.1:4222")
    vus = 20
    duration = "10s"

    end_to_end = Sample("ms")

    @action(at="start")
    async def subscribe(self, url: URL = server) -> None:
        """Messages that nobody receives yet wait on the user's connection."""
        await self.client.nats.subscribe(url, f"prices.{self.vu.id}.*")

    @step()
    async def publish(self, url: URL = server, price: Data = {"shoe": 12.5}) -> NATSResponse:
        """Takes until the server has the message."""
        subject = f"prices.{self.vu.id}.shoe"
        return await self.client.nats.publish(url, subject, price, stamp=True)

    @then()
    async def receive(self, url: URL = server) -> NATSResponse:
        received = await self.client.nats.receive(url, f"prices.{self.vu.id}.*", timeout="5s")
        for latency_s in received.latencies:
            self.end_to_end.add(latency_s * 1000)
        return received
