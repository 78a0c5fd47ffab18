"""The WebSocket client against the package `websockets`, and against scripted servers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from squall.api.errors import CallError, TransportError
from squall.clients.http import HTTPClient, HTTPShared
from squall.clients.ping import ping
from squall.clients.websocket import WebsocketClient
from tests.lab.websocket_server import running_websocket_server
from tests.services.http.lab.servers import Peer, on_uvloop, prepared, serve, swept


@on_uvloop
async def test_a_session_from_beginning_to_end() -> None:
    with running_websocket_server() as server:
        shared = HTTPShared(host=server.url.replace("ws", "http"))
        async with swept(shared) as http:
            client = WebsocketClient(http)
            url = await prepared(shared, "/echo?room=1")
            options: Any = {"headers": {"X-A": "1"}, "protocols": ["chat.v1", "chat.v9"]}
            async with client.open(url, cookies={"a": "b"}, **options) as session:
                assert session.subprotocol == "chat.v1"
                answer = await session.ask("hello")
                assert (answer.text, answer.is_text) == ("hello", True)
                assert answer.url == server.url + "/echo?room=1"
                assert answer.started < answer.ended
                assert answer.timings.upgrade_s > 0
                assert answer.timings.total_s == answer.ended - answer.started
                assert (await session.ask(b"\0\xff")).body == b"\0\xff"
                assert (await session.ask({"n": [1, "ü"]})).json() == {"n": [1, "ü"]}
                big = "x" * 3_000_000
                assert (await session.ask(big)).text == big
                assert (await session.ping()).body == b"squall"
                await session.send("one")
                await session.send("two")
                assert [(await session.receive()).text for _ in range(2)] == ["one", "two"]
                assert (session.sent, session.received) == (6, 6)
                assert http.last is not None
    assert server.goodbyes == [1000]
    assert server.headers[0]["X-A"] == "1"
    assert server.headers[0]["Cookie"] == "a=b"
    counters = shared.counters_of("websocket")
    assert (counters.sent, counters.answered, counters.connections) == (4, 4, 1)


@on_uvloop
async def test_ping_of_the_command() -> None:
    with running_websocket_server() as server:
        found = await ping(server.url + "/echo")
        assert found.ok
        first, second = found.render().splitlines()
        assert first.startswith("101 Switching Protocols  WebSocket  from 127.0.0.1:")
        assert " upgrade " in second and " pong " in second
        refused = await ping(server.url + "/refuse")
        assert refused.render() == f"{server.url}/refuse: upgrade refused: 403 Forbidden"


@on_uvloop
async def test_wss(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with running_websocket_server(context) as server:
        shared = HTTPShared(ca_file=str(tmp_path / "ca.pem"))
        async with swept(shared) as http:
            client = WebsocketClient(http)
            answer = await client.ask(server.url + "/echo", "hi")
            assert answer.text == "hi" and answer.timings.tls_s > 0
            http.close()


@pytest.mark.parametrize(("connections", "opened"), [("vu", 1), ("iteration", 3), ("request", 6)])
@on_uvloop
async def test_ask_keeps_its_session(connections: Any, opened: int) -> None:
    with running_websocket_server() as server:
        shared = HTTPShared(connections=connections)
        async with swept(shared) as http:
            client = WebsocketClient(http)
            for number in range(3):
                if http.dirty:
                    http.begin_iteration()
                for text in (f"a{number}", "b"):
                    assert (await client.ask(server.url + "/echo", text)).text == text
            http.close()
        assert shared.counters_of("websocket").connections == opened
        assert server.messages["/echo"] == shared.counters_of("websocket").sent == 6


@on_uvloop
async def test_calls_at_the_same_time_have_sessions_of_their_own() -> None:
    with running_websocket_server() as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            client = WebsocketClient(http)
            url = server.url + "/echo"
            for _ in range(2):
                texts = [f"m{number}" for number in range(5)]
                answers = await asyncio.gather(*(client.ask(url, text) for text in texts))
                assert [answer.text for answer in answers] == texts
            async with client.open(url) as session:
                first = asyncio.ensure_future(session.receive())
                await asyncio.sleep(0)
                with pytest.raises(CallError, match="await one call at a time"):
                    await session.ask("x")
                first.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await first
            http.close()
        assert shared.counters_of("websocket").connections == 6


@on_uvloop
async def test_pushed_messages_are_kept_and_skipped() -> None:
    with running_websocket_server() as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            client = WebsocketClient(http)
            async with client.open(server.url + "/push", mask="fresh") as session:
                mine = await session.ask("mine", until=lambda message: message.text == "mine")
                assert mine.text == "mine"
            async with client.open(server.url + "/twice") as session:
                assert (await session.ask("x")).text == "first"
                assert (await session.receive()).text == "second"
            assert (
                shared.counters_of("websocket").sent
                == shared.counters_of("websocket").answered
                == 2
            )


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/silent", "timeout after 0.2 s"),
        ("/leave", "closed by the server: 4001"),
        ("/die", "connection closed without a goodbye"),
        ("/refuse", "upgrade refused: 403 Forbidden"),
    ],
)
@on_uvloop
async def test_a_failure_has_its_reason(path: str, reason: str) -> None:
    with running_websocket_server() as server:
        shared = HTTPShared(timeout_s=0.2 if path == "/silent" else 60.0)
        async with swept(shared) as http:
            client = WebsocketClient(http)
            for _ in range(3):
                with pytest.raises(TransportError) as caught:
                    await client.ask(server.url + path, "x")
                assert caught.value.reason in (reason, "connection reset")
                assert caught.value.request == f"WEBSOCKET {server.url}{path}"
                assert http.last is caught.value
            http.close()
        assert shared.counters_of("websocket").failed == 3


def accepting(then: bytes) -> Callable[[Peer], Awaitable[None]]:
    """A server that accepts the upgrade and sends some bytes."""

    async def handler(peer: Peer) -> None:
        request = await peer.request()
        key = request.split(b"Sec-WebSocket-Key: ")[1].split(b"\r\n")[0]
        digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        await peer.send(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: %b\r\n\r\n%b" % (base64.b64encode(digest), then)
        )
        await peer.reader.read()

    return handler


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "is not one of a WebSocket server"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not an HTTP response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "upgrade refused: 200 OK"),
        (b"", "connection closed before a response"),
    ],
)
@on_uvloop
async def test_a_server_that_is_none(answer: bytes, reason: str) -> None:
    async def handler(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)

    async with serve(handler) as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            with pytest.raises(TransportError, match=reason):
                await WebsocketClient(http).ask(server.url, "x")
        assert (shared.counters_of("websocket").failed, shared.counters_of("websocket").unsent) == (
            1,
            1,
        )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x81\x81\0\0\0\0a", "WebSocket protocol: a masked frame"),
        (b"\xff\xff\xff", "WebSocket protocol: a masked frame"),
        (b"\x88\x01x", "WebSocket protocol: a wrong close code"),
        (b"\x88\x00", "closed by the server: 1005 no code"),
    ],
)
@on_uvloop
async def test_a_server_that_talks_nonsense(data: bytes, reason: str) -> None:
    async with serve(accepting(data)) as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            async with WebsocketClient(http).open(server.url) as session:
                with pytest.raises(TransportError) as caught:
                    await session.receive(timeout="5s")
            assert caught.value.reason == reason


@on_uvloop
async def test_messages_that_come_with_the_upgrade_and_pings_of_the_server() -> None:
    ping_and_text = b"\x89\x02hi\x81\x05early"
    async with serve(accepting(ping_and_text)) as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            async with WebsocketClient(http).open(server.url) as session:
                assert (await session.receive()).text == "early"


@on_uvloop
async def test_the_answer_comes_in_one_packet_with_messages_before_it() -> None:
    upgrade = accepting(b"")

    async def handler(peer: Peer) -> None:
        read, peer.reader.read = peer.reader.read, _nothing  # type: ignore[method-assign]
        await upgrade(peer)
        await read(100)
        await peer.send(b"\x81\x01a\x81\x01b\x81\x01c\x81\x01d")
        await read()

    async with serve(handler) as server:
        shared = HTTPShared(timeout_s=5.0)
        async with swept(shared) as http:
            async with WebsocketClient(http).open(server.url) as session:
                answer = await session.ask("x", until=lambda message: message.text == "c")
                assert answer.text == "c"
                assert (await session.receive()).text == "d"


async def _nothing(size: int = -1) -> bytes:
    return b""


@on_uvloop
async def test_nobody_listens_and_wrong_options() -> None:
    shared = HTTPShared()
    async with swept(shared) as http:
        client = WebsocketClient(http)
        with pytest.raises(TransportError, match=r"connection refused: 127\.0\.0\.1:1"):
            await client.ask("ws://127.0.0.1:1/", "x")
        wrong: Any = {"body": 1}
        with pytest.raises(TypeError, match="a session takes no body=; it takes auth, cookies"):
            await client.ask("ws://127.0.0.1:1/", "x", **wrong)
        wrong = {"mask": "none"}
        with pytest.raises(CallError, match='write "kept" or "fresh"'):
            await client.ask("ws://127.0.0.1:1/", "x", **wrong)


@on_uvloop
async def test_many_users_and_the_server_count_the_same() -> None:
    with running_websocket_server() as server:
        shared = HTTPShared()
        async with swept(shared):
            url = await prepared(shared, server.url + "/echo")

            async def user(index: int) -> None:
                http = HTTPClient(shared, index)
                client = WebsocketClient(http)
                for number in range(10):
                    assert (await client.ask(url, f"{index}:{number}")).text == f"{index}:{number}"
                http.close()

            await asyncio.gather(*(user(index) for index in range(30)))
        assert server.messages["/echo"] == shared.counters_of("websocket").answered == 300
        assert server.connections == shared.counters_of("websocket").connections == 30
