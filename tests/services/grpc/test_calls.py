"""Calls of all kinds against a real server: every status, deadlines, metadata, TLS, policies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from squall.api.errors import CallError, StatusError, TransportError
from squall.api.protocols.grpc import STATUSES, GRPCResponse
from squall.clients.grpc import GRPCClient
from squall.clients.http import HTTPClient, HTTPShared
from squall.clients.ping import ping
from tests.lab.grpc_server import GRPCServer, loaded_proto, running_grpc_server
from tests.services.http.lab.servers import on_uvloop, prepared, swept

PROTO = loaded_proto()


@asynccontextmanager
async def client_of(server: GRPCServer, **options: Any) -> AsyncGenerator[GRPCClient]:
    shared = HTTPShared(host=server.url, **options)
    shared.protos = (PROTO,)
    async with swept(shared) as http:
        client = GRPCClient(http)
        yield client
        counters = shared.counters_of("grpc")
        await asyncio.sleep(0)
        assert counters.in_flight == 0
        http.close()


@on_uvloop
async def test_a_call_and_what_its_response_knows() -> None:
    with running_grpc_server(PROTO) as server:
        async with client_of(server) as client:
            url = await prepared(client._shared, "/shop.Shop/Buy")
            for number in (1, 2, 3):
                answer = await client.unary(url, {"item": "shoe", "count": number})
                assert (answer.code, answer.status, answer.ok) == (0, "OK", True)
                assert answer.failure == "" and answer.message == ""
                assert (answer.reply.id, answer.reply.total) == ("r-shoe", number)
                assert answer.reply_as(PROTO.Receipt).total == number
                assert answer.metadata["x-shop"] == "open"
                assert answer.trailers["X-Sum"] == str(number)
                timings = answer.timings
                assert 0 < timings.first_byte_s <= timings.total_s
                assert (timings.connect_s > 0) == (number == 1)
            counters = client._counters
            assert (counters.sent, counters.answered, counters.connections) == (3, 3, 1)
            assert answer.url == f"{server.url}/shop.Shop/Buy"
    assert server.calls == {"Buy": 3}
    # The limit of the step is the deadline.
    assert all(50 < seconds <= 60 for seconds in server.seconds_left)


@on_uvloop
async def test_every_status() -> None:
    with running_grpc_server(PROTO) as server:
        async with client_of(server) as client:
            url = await prepared(client._shared, "/shop.Shop/Buy")
            for code in range(1, 17):
                answer = await client.unary(url, {"item": f"status:{code}"})
                name = STATUSES[code]
                assert (answer.code, answer.status, answer.failure) == (code, name, name)
                assert answer.message == f"it was ordered: 100 % {name}\n"
                with pytest.raises(StatusError) as caught:
                    _ = answer.reply
                assert caught.value.reason == name
                expected = await client.unary(url, {"item": f"status:{code}"}, expect=["OK", name])
                assert expected.failure == "" and not expected.ok
            answer = await client.unary(url, {"item": "status:0"})
            assert answer.ok and answer.reply == PROTO.Receipt()
            unknown = await client.unary("/shop.Shop/Sell", b"")
            assert unknown.failure == "UNIMPLEMENTED"


@on_uvloop
async def test_streams_in_all_directions() -> None:
    with running_grpc_server(PROTO) as server:
        async with client_of(server) as client:
            many = await client.stream("/shop.Shop/Watch", PROTO.Order(item="a", count=200))
            assert [each.total for each in many.replies] == list(range(200))
            assert len(many.gaps) == 199 and many.first_message_s > 0
            one = await client.stream("/shop.Shop/Collect", [{"count": 2}, {"count": 3}])
            assert one.reply.total == 5
            both = await client.stream("/shop.Shop/Talk", [{"count": n} for n in range(50)])
            assert [each.total for each in both.replies] == list(range(50))
            failed = await client.stream("/shop.Shop/Watch", {"item": "status:14", "count": 3})
            assert failed.failure == "UNAVAILABLE" and len(failed.replies) == 3
            counters = client._counters
            assert counters.messages_sent == server.messages_received == 54
            assert counters.messages_received == server.messages_sent == 254
            assert counters.sent == server.calls.total() == 4


@on_uvloop
async def test_a_conversation() -> None:
    with running_grpc_server(PROTO) as server:
        async with client_of(server) as client:
            async with client.open("/shop.Shop/Talk") as stream:
                for number in range(5):
                    receipt = await stream.ask({"item": str(number), "count": number})
                    assert (receipt.id, receipt.total) == (str(number), number)
                await stream.send({"count": 7})
                await stream.send({"count": 8})
                assert (await stream.receive()).total == 7
                end = await stream.finish()
                assert end.ok and [each.total for each in end.replies] == [8]
                assert await stream.receive() is None
                assert (stream.sent, stream.received) == (7, 7)
            # The server ends while the client still talks.
            async with client.open("/shop.Shop/Talk") as stream:
                assert await stream.ask({"item": "status:9"}) is None
                with pytest.raises(CallError, match="read its status"):
                    await stream.send({})
                assert (await stream.finish()).failure == "FAILED_PRECONDITION"
            # A stream that is left is cancelled.
            async with client.open("/shop.Shop/Talk") as stream:
                await stream.ask({"count": 1})
            async with client.open("/shop.Shop/Watch") as stream:
                await stream.send({"count": 3})
                assert [each.total async for each in stream] == [0, 1, 2]
            async with client.open("/shop.Shop/Talk") as stream:
                with pytest.raises(TransportError, match=r"timeout after 0\.2 s"):
                    await stream.ask({"item": "never"}, timeout="200ms")
            # Messages of more than all windows together.
            async with client.open("/shop.Shop/Talk") as stream:
                for _ in range(40):
                    await stream.send({"item": "x" * 20_000, "count": 1})
                end = await stream.finish()
                assert end.ok and stream.received == 40
    assert client._counters.in_flight == 0


async def _failure(call: Awaitable[GRPCResponse]) -> str:
    try:
        return (await call).failure
    except TransportError as error:
        return error.reason


@on_uvloop
async def test_deadlines_on_both_sides() -> None:
    with running_grpc_server(PROTO) as server:
        async with client_of(server) as client:
            call = client.unary("/shop.Shop/Buy", {"item": "never"}, timeout="300ms")
            # Whose clock is first: the server's, which ends the call, or ours.
            late = ("timeout after 0.3 s", "DEADLINE_EXCEEDED", "CANCELLED")
            assert await _failure(call) in late
            assert server.seconds_left[0] <= 0.3
            answer = await client.unary("/shop.Shop/Buy", {"count": 1}, timeout="30s")
            assert answer.ok and 10 < server.seconds_left[1] <= 30
            call = client.stream("/shop.Shop/Watch", {"item": "never"}, timeout="300ms")
            assert await _failure(call) in late


@on_uvloop
async def test_metadata_and_compression() -> None:
    with running_grpc_server(PROTO) as server:
        async with client_of(server, default_headers={"X-Default": "d"}) as client:
            metadata = {"x-tenant": "t1", "x-raw-bin": b"\0\xff"}
            answer = await client.unary("/shop.Shop/Buy", {"count": 1}, metadata=metadata)
            assert answer.ok
            seen = server.metadata[0]
            assert (seen["x-tenant"], seen["x-raw-bin"], seen["x-default"]) == (
                "t1",
                b"\0\xff",
                "d",
            )
            for way in ("gzip", "deflate"):
                order = {"item": "y" * 5000, "count": 3}
                answer = await client.unary("/shop.Shop/Buy", order, compression=way)
                assert answer.reply.total == 3
            with pytest.raises(CallError, match="must end with"):
                await client.unary("/shop.Shop/Buy", {}, metadata={"x-raw": b"\0"})
            large = await client.unary("/shop.Shop/Buy", {"item": "large", "count": 3_000_000})
            assert len(large.reply.id) == 3_000_000


@on_uvloop
@pytest.mark.parametrize("policy", ["vu", "iteration", "request", "shared"])
async def test_connections_by_policy(policy: Any) -> None:
    with running_grpc_server(PROTO) as server:
        shared = HTTPShared(host=server.url, connections=policy, streams=5)
        shared.protos = (PROTO,)
        async with swept(shared) as first:
            users = [first, *(HTTPClient(shared, number) for number in range(1, 10))]
            clients = [GRPCClient(http) for http in users]
            url = await prepared(shared, "/shop.Shop/Buy")
            for _ in range(2):
                await asyncio.gather(*[client.unary(url, {"count": 1}) for client in clients])
                for client in clients:
                    client.begin_iteration()
            wanted = {"vu": 10, "iteration": 20, "request": 20, "shared": 2}
            assert shared.counters_of("grpc").connections == wanted[policy]
            for http in users:
                http.close()
    assert server.calls == {"Buy": 20}


@on_uvloop
async def test_tls_and_a_wrong_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    made = authority.issue_cert("localhost")
    chain = b"".join(each.bytes() for each in made.cert_chain_pems)
    with running_grpc_server(PROTO, (made.private_key_pem.bytes(), chain)) as server:
        async with client_of(server, ca_file=str(tmp_path / "ca.pem")) as client:
            answer = await client.unary("/shop.Shop/Buy", {"count": 1})
            assert answer.ok and answer.timings.tls_s > 0
        async with client_of(server) as client:
            with pytest.raises(TransportError, match="certificate verify failed"):
                await client.unary("/shop.Shop/Buy", {"count": 1})


@on_uvloop
async def test_what_a_call_refuses() -> None:
    with running_grpc_server(PROTO) as server:
        async with client_of(server) as client:
            for url, message, options, text in (
                ("/shop.Shop/Buy", {"itm": 1}, {}, 'not a shop.Order: .* no field named "itm"'),
                ("/shop.Shop/Buy", 7, {}, "not int"),
                ("/other.Shop/Buy", {}, {}, "a dict needs the type"),
                ("/shop", {}, {}, "names no method"),
                ("/shop.Shop/Buy", {}, {"expect": ["FINE"]}, "no status of gRPC"),
                ("/shop.Shop/Buy", {}, {"compression": "br"}, '"gzip" or "deflate"'),
            ):
                with pytest.raises(CallError, match=text):
                    await client.unary(url, message, **options)
            with pytest.raises(TypeError, match="takes no body="):
                await client.unary("/shop.Shop/Buy", b"", body=1)
    assert not server.calls


@on_uvloop
@pytest.mark.parametrize("path", ["", "/", "/shop.Shop/Buy"])
async def test_ping_lists_the_methods(path: str) -> None:
    with running_grpc_server(PROTO) as server:
        found = await ping(f"grpc://localhost:{server.port}{path}")
        assert found.ok
        lines = found.render().splitlines()
        assert lines[0].startswith("OK  gRPC  from 127.0.0.1:")
        assert "shop.Shop/Buy(shop.Order) returns (shop.Receipt)" in lines
        assert "shop.Shop/Talk(stream shop.Order) returns (stream shop.Receipt)" in lines
