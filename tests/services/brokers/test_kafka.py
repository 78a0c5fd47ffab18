"""What `self.client.kafka` does, against the Kafka gateway of SeaweedFS, which keeps no headers,
and against the mock cluster of librdkafka, which does."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trustme

from squall.api.errors import CallError, TransportError
from squall.clients.brokers.kafka import KafkaProducer
from squall.clients.calls.arrivals import LibraryOpening
from squall.clients.http import HTTPShared
from squall.clients.ping import ping
from tests.lab.brokers import Broker, eventually
from tests.lab.kafka_server import running_kafka_server, running_tls_proxy
from tests.services.brokers.lab.users import counters_of, user, users
from tests.services.http.lab.servers import on_uvloop


def _topic() -> str:
    return f"topic-{uuid4().hex}"


@on_uvloop
async def test_a_consumer_gets_what_was_sent_after_it_began(kafka_broker: Broker) -> None:
    url, topic = kafka_broker.url, _topic()
    async with users("kafka", 2) as (sender, receiver):
        await sender.send(url, topic, "before")
        late = await receiver.poll(url, topic, wait="50ms")
        assert late.ok and not late.messages
        sent = await sender.send(url, topic, {"n": 1}, key="k", partition=2)
        assert (sent.ok, sent.partition, sent.offset >= 0) == (True, 2, True)
        found = await receiver.poll(url, topic, wait="60s")
        message = found.message
        assert (message.json(), message.key, message.partition) == ({"n": 1}, b"k", 2)
        assert message.offset == sent.offset
        whole = await sender.poll(url, topic, start="beginning", wait="60s")
        assert "before" in [each.text for each in whole.messages]
        counters = counters_of(sender)
        assert counters.messages_sent == 2


@on_uvloop
async def test_users_share_a_producer_for_each_setting(kafka_broker: Broker) -> None:
    url, topic = kafka_broker.url, _topic()
    async with users("kafka", 10) as clients:
        for query in ("", "?acks=1", "?acks=1&linger=1ms", "?acks=0"):
            made = [client.send(url + query, topic, "x") for client in clients]
            assert all(response.ok for response in await asyncio.gather(*made))
        assert counters_of(clients[0]).connections == 4


@pytest.mark.nightly
@on_uvloop
async def test_a_group_shares_its_messages_and_remembers_them(kafka_broker: Broker) -> None:
    """Joining a group takes the gateway some seconds."""
    url, topic = kafka_broker.url, _topic()
    async with users("kafka", 3) as (sender, *members):
        for number in range(20):
            await sender.send(url, topic, str(number))
        got: list[str] = []

        async def polls(member: Any) -> None:
            while len(got) < 20:
                found = await member.poll(url, topic, group="g", start="beginning", wait="100ms")
                got.extend(each.text for each in found.messages)
            # The next poll commits.
            await member.poll(url, topic, group="g", wait="10ms")

        async with asyncio.timeout(120):
            await asyncio.gather(*map(polls, members))
        assert sorted(got, key=int) == [str(number) for number in range(20)]
    async with user("kafka") as other:
        found = await other.poll(url, topic, group="g", start="beginning", wait="1s")
        assert not found.messages


@on_uvloop
async def test_a_mistake_is_a_line(kafka_broker: Broker) -> None:
    url, topic = kafka_broker.url, _topic()
    async with user("kafka") as client:
        await client.send(url, topic, "x")
        wrong: dict[str, Any] = {
            "Unrecognized partition": client.send(url, topic, "x", partition=99),
            "an address of kafka has no axs=": client.send(f"{url}?axs=1", topic, "x"),
            "acks=2 in the address: write all, 1 or 0": client.send(f"{url}?acks=2", topic, "x"),
            'start=\'now\': write "beginning" or "end"': client.poll(url, topic, start="now"),
        }
        for text, made in wrong.items():
            with pytest.raises(CallError) as caught:
                await made
            assert text in str(caught.value)
        assert (await client.send(url, topic, None, key="tombstone")).ok


@on_uvloop
async def test_ping_shows_the_brokers(kafka_broker: Broker) -> None:
    result = await ping(kafka_broker.url)
    assert result.ok
    assert kafka_broker.url.removeprefix("kafka://") in result.render()


@on_uvloop
async def test_headers_arrive_with_the_message() -> None:
    with running_kafka_server() as server:
        async with users("kafka", 2) as (sender, receiver):
            await receiver.poll(server.url, server.topic, wait="10ms")
            headers = {"kind": "shoe", "raw": b"\xc3\xbc"}
            sent = await sender.send(
                server.url, server.topic, "hello", key="k", headers=headers, stamp=True
            )
            assert sent.ok, sent.error
            found = await receiver.poll(server.url, server.topic, wait="60s")
            message = found.message
            assert (message.text, message.key, message.offset) == ("hello", b"k", sent.offset)
            assert set(message.headers) == {"kind", "raw", "squall-sent"}
            assert (message.headers["kind"], message.headers["raw"]) == ("shoe", "ü")
            assert 0 < found.latencies[0] < 60
            await asyncio.to_thread(eventually, lambda: len(server.messages), 1)
            (seen,) = server.messages
            assert seen["headers"].startswith("kind=shoe,raw=ü,squall-sent=")
            assert (seen["key"], seen["value"]) == ("k", "hello")


@on_uvloop
async def test_producers_and_consumers_encrypt(tmp_path: Path) -> None:
    authority = trustme.CA()
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with running_kafka_server() as server:
        url = server.url.replace("kafka://", "kafkas://")
        async with running_tls_proxy(server.port, tls) as proxy:
            # The broker names its own address, which clear text could reach.
            resolve = {("127.0.0.1", server.port): proxy.host}
            async with users("kafka", 2, ca_file=str(ca), resolve=resolve) as (sender, receiver):
                await receiver.poll(url, server.topic, wait="10ms")
                assert (await sender.send(url, server.topic, "secret")).ok
                found = await receiver.poll(url, server.topic, wait="60s")
                assert found.message.text == "secret"
            assert proxy.connections >= 2
            async with user("kafka", resolve=resolve) as client:
                with pytest.raises(TransportError):
                    await client.send(url, server.topic, "x", timeout="2s")


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("kafka://ada:s%40ndal@{}", ("SASL_PLAINTEXT", "PLAIN", "ada", "s@ndal", False)),
        (
            "kafkas://ada:x@{}?mechanism=SCRAM-SHA-512",
            ("SASL_SSL", "SCRAM-SHA-512", "ada", "x", True),
        ),
        ("kafkas://{}", ("SSL", "PLAIN", None, None, True)),
    ],
)
@on_uvloop
async def test_a_login_reaches_the_library(address: str, wanted: tuple[Any, ...]) -> None:
    """No server with passwords can be installed here."""
    shared = HTTPShared()
    found = shared.address(address.format("127.0.0.1:9092"))
    await shared.resolve(found.origin)
    made = KafkaProducer(LibraryOpening(shared, found, 0, shared.counters_of("kafka")))
    client = made.producer.client
    seen = (
        client._security_protocol,
        client._sasl_mechanism,
        client._sasl_plain_username,
        client._sasl_plain_password,
        client._ssl_context is not None,
    )
    assert seen == wanted
    await made.producer.stop()
