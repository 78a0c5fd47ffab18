"""What `self.client.amqp` does, against a real RabbitMQ."""

from __future__ import annotations

import asyncio
import ssl
from uuid import uuid4

import pytest
import trustme

from squall.api.errors import CallError
from squall.clients.ping import ping
from tests.lab.brokers import eventually
from tests.services.brokers.lab.users import counters_of, user, users
from tests.services.http.lab.servers import on_uvloop


def _name() -> str:
    return f"squall-{uuid4().hex}"


@on_uvloop
async def test_messages_go_through_a_queue(amqp_url: str) -> None:
    queue = _name()
    async with users("rabbitmq", 2) as (sender, receiver):
        made = await sender.declare(amqp_url, queue, auto_delete=True)
        assert (made.queue, made.waiting) == (queue, 0)
        for number in range(4):
            sent = await sender.publish(
                amqp_url, {"n": number}, key=queue, headers={"a": "b"}, stamp=True
            )
            assert sent.ok
        first = await receiver.get(amqp_url, queue)
        assert (first.json(), first.waiting) == ({"n": 0}, 3)
        assert first.message.headers["a"] == "b"
        assert 0 < first.latencies[0] < 60
        rest = await receiver.consume(amqp_url, queue, 3)
        assert [each.json()["n"] for each in rest.messages] == [1, 2, 3]
        assert not any(each.redelivered for each in rest.messages)
        empty = await receiver.get(amqp_url, queue)
        assert empty.ok and not empty.messages
        counters = counters_of(sender)
        assert (counters.messages_sent, counters.messages_received) == (4, 4)


@on_uvloop
async def test_consumed_messages_are_acknowledged_and_others_come_again(amqp_url: str) -> None:
    queue = _name()
    async with user("amqp") as keeper:
        await keeper.declare(amqp_url, queue)
        for number in range(5):
            await keeper.publish(amqp_url, str(number), key=queue)
        async with user("amqp") as receiver:
            assert (await receiver.consume(amqp_url, queue)).body == b"0"
            assert (await receiver.get(amqp_url, queue, ack=False)).messages == ()
        async with user("amqp") as receiver:
            found = await receiver.consume(amqp_url, queue, 4)
            assert [each.text for each in found.messages] == ["1", "2", "3", "4"]
            assert all(each.redelivered for each in found.messages)
        assert (await keeper.delete(amqp_url, queue)).waiting == 0


@on_uvloop
async def test_what_the_broker_refuses_is_an_error_and_the_next_call_goes_on(amqp_url: str) -> None:
    queue = _name()
    async with user("amqp") as client:
        lost = await client.publish(amqp_url, "x", key=queue, mandatory=True)
        assert (lost.ok, lost.returned, lost.error) == (False, True, "returned: NO_ROUTE")
        unseen = await client.publish(amqp_url, "x", key=queue)
        assert unseen.ok and not unseen.returned
        for made in (
            client.publish(amqp_url, "x", exchange="no-such"),
            client.get(amqp_url, "no-such"),
            client.consume(amqp_url, "no-such"),
            client.purge(amqp_url, "no-such"),
        ):
            refused = await made
            assert refused.error.startswith("NOT_FOUND - no ")
            assert not refused.returned
        assert (await client.publish(amqp_url, "x", key=queue, confirm=False)).ok
        assert (await client.declare(amqp_url, queue, exclusive=True)).ok
        with pytest.raises(CallError, match="needs confirm=True"):
            await client.publish(amqp_url, "x", key=queue, confirm=False, mandatory=True)
        with pytest.raises(CallError, match="count=5 messages would never come"):
            await client.consume(amqp_url, queue, 5, prefetch=4)
        assert counters_of(client).connections == 1


@on_uvloop
async def test_an_exchange_fans_out_to_bound_queues(amqp_url: str) -> None:
    async with user("amqp") as client:
        queues = [
            (await client.declare(amqp_url, exclusive=True, exchange="amq.topic", key=key)).queue
            for key in ("squall.*", "squall.#")
        ]
        await client.publish(amqp_url, "x", exchange="amq.topic", key="squall.a")
        await client.publish(amqp_url, "x", exchange="amq.topic", key="squall.a.b")
        waiting = [(await client.purge(amqp_url, queue)).waiting for queue in queues]
        assert waiting == [1, 2]


@on_uvloop
async def test_a_queue_that_is_deleted_ends_the_call_that_waits(amqp_url: str) -> None:
    queue = _name()
    async with users("amqp", 2) as (keeper, receiver):
        await keeper.declare(amqp_url, queue)
        await keeper.publish(amqp_url, "x", key=queue)
        await receiver.consume(amqp_url, queue)
        waiting = asyncio.ensure_future(receiver.consume(amqp_url, queue))
        await asyncio.sleep(0.05)
        await keeper.delete(amqp_url, queue)
        async with asyncio.timeout(60):
            response = await waiting
        assert "queue was deleted" in response.error


@on_uvloop
async def test_tls_and_ping(amqp_url: str, tmp_path: object) -> None:
    """Through a relay that ends TLS."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    ca_file = f"{tmp_path}/ca"
    authority.cert_pem.write_to_path(ca_file)
    port = int(amqp_url.rpartition(":")[2])
    open_relays: list[int] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_relays.append(1)
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copied(reader, back), _copied(there, writer))
        open_relays.pop()

    server = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=context)
    url = f"amqps://guest:guest@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with user("amqp", ca_file=ca_file) as client:
            assert (await client.publish(url, "x", key="nowhere")).ok
        result = await ping(url, ca_file=ca_file)
        assert result.ok and "RabbitMQ 3" in result.render()
        await asyncio.to_thread(eventually, lambda: len(open_relays), 0)
    finally:
        server.close()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
    except ConnectionError:
        pass
    writer.close()
