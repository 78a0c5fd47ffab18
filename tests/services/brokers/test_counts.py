"""Many users send, and the broker has counted as many messages as they were told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import aiormq
import paho.mqtt.client as paho
import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.lab.brokers import Broker, eventually, running_mosquitto, running_nats
from tests.services.brokers.lab.users import SENDING, counters_of, users
from tests.services.http.lab.servers import on_uvloop

USERS, EACH = 200, 5
ALL = USERS * EACH


async def _send(protocol: str, url: str, place: str, *, count: int = USERS, **options: Any) -> Any:
    """The counters after all users have sent `ALL` messages together."""

    async def sends(client: Any) -> None:
        for _ in range(ALL // count):
            response = await SENDING[protocol](client, url, place)
            assert response.ok, response.error
            assert response.timings.total_s > 0

    async with users(protocol, count, **options) as clients:
        await asyncio.gather(*map(sends, clients))
        counters = counters_of(clients[0])
        assert (counters.sent, counters.answered, counters.messages_sent) == (ALL, ALL, ALL)
        assert counters.bytes_sent == ALL * 64
        assert counters.in_flight == counters.failed == 0
    return counters


@on_uvloop
async def test_nats() -> None:
    with running_nats() as broker:
        counters = await _send("nats", broker.url, "counted")
        told = broker.counts()
        assert (told["in_msgs"], told["in_bytes"]) == (ALL, ALL * 64)
        # One more saw that it listens.
        assert told["total_connections"] - 1 == counters.connections == USERS
        eventually(lambda: broker.counts()["connections"], 0)


@on_uvloop
async def test_mqtt() -> None:
    with running_mosquitto() as broker, _counted(broker) as count:
        counters = await _send("mqtt", broker.url, "counted")
        eventually(lambda: len(count), ALL)
        # No client has thrown out another one with the same id.
        assert counters.connections == USERS


@on_uvloop
async def test_a_thousand_users_of_rabbitmq_share_a_pool(amqp_url: str) -> None:
    """A thousand connections would be beyond the limit of a small server."""
    async with _queue(amqp_url) as (channel, queue):
        pooled: Any = {"connections": "shared", "pool_size": 12}
        counters = await _send("amqp", amqp_url, queue, count=1000, **pooled)
        told = await channel.queue_declare(queue, passive=True)
        assert told.message_count == ALL
        assert counters.connections == 12


@on_uvloop
async def test_kafka(kafka_broker: Broker) -> None:
    topic = f"counted-{uuid4().hex}"
    counters = await _send("kafka", kafka_broker.url, topic)
    # One producer for all.
    assert counters.connections == 1
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka_broker.url.removeprefix("kafka://"))
    await consumer.start()
    try:
        await consumer.topics()
        places = [TopicPartition(topic, n) for n in consumer.partitions_for_topic(topic) or ()]
        assert sum((await consumer.end_offsets(places)).values()) == ALL
    finally:
        await consumer.stop()


class _counted:
    """Counts by a client of its own, in a thread, what Mosquitto delivers."""

    def __init__(self, broker: Broker) -> None:
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        self._ready = threading.Event()
        self._port = broker.port

    def __enter__(self) -> list[bytes]:
        received: list[bytes] = []
        self._client.on_message = lambda client, data, message: received.append(message.payload)
        self._client.on_subscribe = lambda *told: self._ready.set()
        self._client.on_connect = lambda *told: self._client.subscribe("counted", 1)
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        assert self._ready.wait(60)
        return received

    def __exit__(self, *error: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@asynccontextmanager
async def _queue(url: str) -> AsyncGenerator[tuple[Any, str]]:
    connection = await aiormq.connect(url)
    channel = await connection.channel()
    queue = f"squall-{uuid4().hex}"
    await channel.queue_declare(queue)
    try:
        yield channel, queue
    finally:
        await channel.queue_delete(queue)
        await connection.close()


@pytest.mark.nightly
@on_uvloop
async def test_rabbitmq_with_a_connection_for_each_user(amqp_url: str) -> None:
    async with _queue(amqp_url) as (channel, queue):
        counters = await _send("amqp", amqp_url, queue)
        assert (await channel.queue_declare(queue, passive=True)).message_count == ALL
        assert counters.connections == USERS
