"""Brokers that die, hang, refuse or are none: a reason, recovery, no hang, nothing left over."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AbstractContextManager
from typing import Any
from uuid import uuid4

import pytest

from squall.clients.ping import ping
from tests.lab.brokers import Broker, running_mosquitto, running_nats, running_rabbitmq
from tests.lab.ports import free_ports
from tests.services.brokers.lab.users import (
    SENDING,
    counters_of,
    ends,
    reason_of,
    user,
    users,
)
from tests.services.http.lab.servers import Peer, on_uvloop, serve

PROTOCOLS = tuple(SENDING)
# Of calls that nothing else ends.
SHORT_S = 0.4
USERS, EACH = 20, 20
CLOSED = "connection closed by the server"


async def _killed_and_started_again(protocol: str, broker: Broker, place: str) -> dict[str, int]:
    """The reasons of the calls that failed in between."""
    async with users(protocol, USERS, timeout_s=SHORT_S * 10) as clients:
        await asyncio.gather(*(ends(each, broker.url, protocol, place, 1) for each in clients))
        broker.kill()
        running = [
            asyncio.ensure_future(ends(each, broker.url, protocol, place, EACH)) for each in clients
        ]
        counters = counters_of(clients[0])
        async with asyncio.timeout(60):
            while counters.failed < USERS:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(broker.start)
        reasons: dict[str, int] = {}
        async with asyncio.timeout(120):
            for found in await asyncio.gather(*running):
                for reason, count in found.items():
                    reasons[reason] = reasons.get(reason, 0) + count
        assert counters.failed == sum(reasons.values())
        assert counters.answered == USERS * (EACH + 1)
        assert counters.in_flight == 0
    return reasons


@pytest.mark.parametrize(
    ("protocol", "running"), [("nats", running_nats), ("mqtt", running_mosquitto)]
)
@on_uvloop
async def test_users_go_on_with_a_broker_that_was_killed(protocol: str, running: Any) -> None:
    with running() as broker:
        reasons = await _killed_and_started_again(protocol, broker, "place")
        assert f"connection refused: 127.0.0.1:{broker.port}" in reasons


@pytest.mark.nightly
@on_uvloop
async def test_users_go_on_with_a_rabbitmq_that_was_killed() -> None:
    with running_rabbitmq() as broker:
        reasons = await _killed_and_started_again("amqp", broker, "place")
        assert f"connection refused: 127.0.0.1:{broker.port}" in reasons


@pytest.mark.nightly
@on_uvloop
async def test_users_go_on_with_a_kafka_that_was_killed(kafka_broker: Broker) -> None:
    """The producer tries again until the limit of the call."""
    place = f"killed-{uuid4().hex}"
    reasons = await _killed_and_started_again("kafka", kafka_broker, place)
    assert set(reasons) <= {"no broker can be reached", f"timeout after {SHORT_S * 10:g} s"}


@on_uvloop
async def test_a_waiting_call_fails_when_its_broker_dies() -> None:
    """At once, and not when its time is up."""
    running: list[tuple[str, AbstractContextManager[Broker]]]
    running = [("nats", running_nats()), ("mqtt", running_mosquitto())]
    for protocol, context in running:
        with context as broker:
            async with user(protocol) as client:
                await client.subscribe(broker.url, "never")
                waiting = asyncio.ensure_future(reason_of(client.receive(broker.url, "never")))
                await asyncio.sleep(0)
                broker.kill()
                assert await waiting in (CLOSED, "connection reset")


@on_uvloop
async def test_a_waiting_call_of_rabbitmq_fails_when_its_connection_ends(amqp_url: str) -> None:
    port = int(amqp_url.rpartition(":")[2])

    async def relay(peer: Peer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        there = asyncio.ensure_future(_copied(peer.reader, writer))
        back = asyncio.ensure_future(_copied(reader, peer.writer))
        await cut.wait()
        peer.writer.transport.abort()
        writer.transport.abort()
        await asyncio.gather(there, back, return_exceptions=True)

    cut = asyncio.Event()
    async with serve(relay) as server, user("amqp") as client:
        url = amqp_url.replace(str(port), server.url.rpartition(":")[2])
        queue = (await client.declare(url, exclusive=True)).queue
        assert (await client.publish(url, "one", key=queue)).ok
        assert (await client.consume(url, queue)).body == b"one"
        waiting = asyncio.ensure_future(reason_of(client.consume(url, queue)))
        await asyncio.sleep(0.05)
        cut.set()
        assert await waiting in (CLOSED, "connection reset")


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)


@pytest.mark.parametrize(
    ("protocol", "running"), [("nats", running_nats), ("mqtt", running_mosquitto)]
)
@on_uvloop
async def test_a_broker_that_hangs_is_a_timeout(protocol: str, running: Any) -> None:
    with running() as broker:
        async with user(protocol) as client:
            assert (await SENDING[protocol](client, broker.url, "place")).ok
            broker.signal(signal.SIGSTOP)
            made = client.publish(broker.url, "place", "x", timeout=SHORT_S)
            assert await reason_of(made) == f"timeout after {SHORT_S:g} s"
            broker.signal(signal.SIGCONT)
            assert (await SENDING[protocol](client, broker.url, "place")).ok


@pytest.mark.parametrize("protocol", PROTOCOLS)
@on_uvloop
async def test_nobody_listens(protocol: str) -> None:
    (port,) = free_ports(1)
    async with user(protocol) as client:
        made = SENDING[protocol](client, f"{protocol}://127.0.0.1:{port}", "place")
        refused = f"connection refused: 127.0.0.1:{port}"
        # The library of Kafka does not say why.
        assert await reason_of(made) in (refused, "no broker can be reached")
        counters = counters_of(client)
        assert (counters.sent, counters.failed, counters.unsent) == (0, 1, 1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@on_uvloop
async def test_a_server_that_says_nothing_is_a_timeout(protocol: str) -> None:
    async def silent(peer: Peer) -> None:
        await peer.reader.read()

    async with serve(silent) as server, user(protocol, timeout_s=SHORT_S) as client:
        url = server.url.replace("http", protocol)
        reason = await reason_of(SENDING[protocol](client, url, "place"))
        assert reason in (f"timeout after {SHORT_S:g} s", "no broker can be reached")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9])
@on_uvloop
async def test_a_server_of_something_else_is_a_reason(protocol: str, answer: bytes) -> None:
    async def other(peer: Peer) -> None:
        peer.writer.write(answer)
        await peer.writer.drain()

    async with serve(other) as server, user(protocol, timeout_s=SHORT_S) as client:
        url = server.url.replace("http", protocol)
        reason = await reason_of(SENDING[protocol](client, url, "place"))
        assert reason and str(server.url) not in reason


@on_uvloop
async def test_a_wrong_password_is_a_reason_and_is_not_shown(amqp_url: str) -> None:
    secret = "Ex4mple!"
    with running_nats("--user", "ada", "--pass", "right") as nats:
        urls = {
            "nats": nats.url.replace("//", f"//ada:{secret}@"),
            "amqp": amqp_url.replace("guest:guest", f"guest:{secret}"),
        }
        for protocol, url in urls.items():
            async with user(protocol) as client:
                reason = await reason_of(SENDING[protocol](client, url, "place"))
                assert "uthoriz" in reason or "ACCESS_REFUSED" in reason
                assert secret not in reason
            result = await ping(url)
            assert not result.ok
            assert secret not in result.render()
        async with user("nats") as client:
            right = nats.url.replace("//", "//ada:right@")
            response = await client.publish(right, "place", "x")
            assert response.ok
            assert "right" not in f"{response.url} {response.request} {response!r}"
