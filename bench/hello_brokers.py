"""A message of 64 bytes to each broker, acknowledged; `--only` chooses one."""

from squall import (
    URL,
    AMQPResponse,
    Data,
    KafkaResponse,
    MQTTResponse,
    NATSResponse,
    Workflow,
    env,
    step,
)

TARGET = env("TARGET", "nats://127.0.0.1:4222")
BODY = "x" * 64


class Nats(Workflow):
    @step()
    async def publish(self, url: URL = TARGET, body: Data = BODY) -> NATSResponse:
        return await self.client.nats.publish(url, "squall-bench", body)


class Mqtt(Workflow):
    @step()
    async def publish(self, url: URL = TARGET, body: Data = BODY) -> MQTTResponse:
        return await self.client.mqtt.publish(url, "squall-bench", body)


class Amqp(Workflow):
    @step()
    async def publish(self, url: URL = TARGET, body: Data = BODY) -> AMQPResponse:
        return await self.client.amqp.publish(url, body, key="squall-bench")


class Kafka(Workflow):
    @step()
    async def send(self, url: URL = f"{TARGET}?acks=1", body: Data = BODY) -> KafkaResponse:
        return await self.client.kafka.send(url, "squall-bench", body)
