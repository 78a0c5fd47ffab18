"""What `self.client.nats` does, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

import nats
import pytest
import trustme
from nats.js.api import StreamConfig

from squall.api.errors import CallError
from squall.clients.ping import ping
from tests.lab.brokers import NATSBroker, running_nats
from tests.services.brokers.lab.users import counters_of, reason_of, user, users
from tests.services.http.lab.servers import on_uvloop


@pytest.fixture(scope="module")
def broker() -> Generator[NATSBroker]:
    with running_nats() as broker:
        yield broker


@on_uvloop
async def test_a_subscriber_receives_what_was_published(broker: NATSBroker) -> None:
    async with users("nats", 2) as (sender, receiver):
        assert (await receiver.subscribe(broker.url, "orders.*")).ok
        sent = await sender.publish(broker.url, "orders.new", {"id": 7}, headers={"a": "b"})
        assert sent.ok and not sent.messages
        await sender.publish(broker.url, "orders.old", "é", stamp=True)
        found = await receiver.receive(broker.url, "orders.*", 2)
        first, second = found.messages
        assert (first.topic, first.json(), dict(first.headers)) == (
            "orders.new",
            {"id": 7},
            {"a": "b"},
        )
        assert second.text == "é"
        # Only the second has a stamp.
        (latency,) = found.latencies
        assert 0 < latency < 60
        counters = counters_of(sender)
        assert (counters.messages_sent, counters.messages_received) == (2, 2)


@on_uvloop
async def test_of_a_queue_one_member_gets_each_message(broker: NATSBroker) -> None:
    async with users("nats", 3) as (sender, *members):
        for member in members:
            await member.subscribe(broker.url, "jobs", queue="workers")
        for number in range(20):
            await sender.publish(broker.url, "jobs", str(number))
        await sender.publish(broker.url, "end", "")
        got = [inbox for each in members for inbox in _inboxes(each)]
        async with asyncio.timeout(60):
            while sum(len(inbox._messages) for inbox in got) < 20:
                await asyncio.sleep(0.01)
        bodies = [message.text for inbox in got for message, _ in inbox._messages]
        assert sorted(bodies, key=int) == [str(number) for number in range(20)]


def _inboxes(client: object) -> list:
    held = client._calls._held.values()  # type: ignore[attr-defined]
    return [inbox for each in held for inbox in each.connection.inboxes.values()]


@on_uvloop
async def test_a_request_has_its_reply_and_none_without_a_responder(broker: NATSBroker) -> None:
    other = await nats.connect(broker.url)

    async def answer(message: nats.aio.msg.Msg) -> None:
        await message.respond(message.data.upper())

    await other.subscribe("shout", cb=answer)
    await other.flush()
    async with user("nats") as client:
        response = await client.request(broker.url, "shout", "hello")
        assert response.body == b"HELLO"
        assert response.message.topic.startswith("_INBOX.")
        nobody = await client.request(broker.url, "nobody")
        assert (nobody.ok, nobody.error) == (False, "no responders")
        with pytest.raises(CallError, match="no message was received"):
            _ = nobody.body
    await other.close()


@on_uvloop
async def test_a_stream_says_what_it_stored(broker: NATSBroker) -> None:
    other = await nats.connect(broker.url)
    manager = other.jsm()
    await manager.add_stream(StreamConfig(name="KEPT", subjects=["kept.*"]))
    async with user("nats") as client:
        made = [
            await client.publish(
                broker.url, "kept.a", "x", confirm="stream", headers={"Nats-Msg-Id": number}
            )
            for number in ("1", "2", "2")
        ]
        told = [(each.stream, each.sequence, each.duplicate) for each in made]
        assert told == [("KEPT", 1, False), ("KEPT", 2, False), ("KEPT", 2, True)]
        missing = await client.publish(broker.url, "lost", "x", confirm="stream")
        assert missing.error == "no stream has this subject"
    assert (await manager.stream_info("KEPT")).state.messages == 2
    await other.close()


@on_uvloop
async def test_messages_are_at_the_server_when_a_call_returns(broker: NATSBroker) -> None:
    """The library alone asks for the confirmation before it sends the message."""
    async with user("nats") as client:
        for _ in range(50):
            before = broker.counts()["in_msgs"]
            await client.publish(broker.url, "confirmed", "x")
            assert broker.counts()["in_msgs"] == before + 1


@on_uvloop
async def test_a_mistake_is_a_line_and_leaves_the_connection(broker: NATSBroker) -> None:
    async with user("nats") as client:
        await client.publish(broker.url, "fine", "x")
        with pytest.raises(CallError, match="invalid subject"):
            await client.publish(broker.url, "not fine", "x")
        with pytest.raises(CallError, match='write "server", "stream" or None'):
            await client.publish(broker.url, "fine", "x", confirm="maybe")
        await client.publish(broker.url, "fine", "x")
        assert counters_of(client).connections == 1
    async with user("nats", connections="request") as client:
        with pytest.raises(CallError, match='connections = "vu", not "request"'):
            await client.subscribe(broker.url, "fine")


@on_uvloop
async def test_tls_and_ping(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "cert"))
    words = [f"--tlscert={tmp_path}/cert", f"--tlskey={tmp_path}/cert"]
    with running_nats("--tls", *words) as broker, running_nats() as plain:
        url = broker.url.replace("nats://", "natss://")
        async with user("nats", ca_file=str(tmp_path / "ca")) as client:
            assert (await client.publish(url, "a", "x")).ok
            # A server that demands TLS gets it.
            assert (await client.publish(broker.url, "a", "x")).ok
            clear = plain.url.replace("nats://", "natss://")
            assert "the server does not offer it" in await reason_of(client.publish(clear, "a", ""))
        async with user("nats") as client:
            assert "certificate verify failed" in await reason_of(client.publish(url, "a", "x"))
        result = await ping(url, ca_file=str(tmp_path / "ca"))
        assert result.ok and "NATS 2." in result.render()
