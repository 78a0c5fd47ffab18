"""The TCP and UDP clients against an echo server, and against scripted servers."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from squall.api.errors import CallError, ConfigError, TransportError
from squall.api.protocols.tcp import LengthPrefix
from squall.clients.http import HTTPShared
from squall.clients.ping import ping
from squall.clients.tcp import TCPClient
from squall.clients.udp import UDPClient
from tests.lab.echo_server import running_echo_server
from tests.lab.ports import free_ports
from tests.services.http.lab.servers import Peer, on_uvloop, prepared, serve, swept


def _tcp(server: Any) -> Any:
    return server.url.replace("http://", "tcp://")


@on_uvloop
async def test_answers_end_at_a_delimiter_a_number_of_bytes_or_their_length() -> None:
    with running_echo_server() as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            tcp = TCPClient(http)
            url: Any = await prepared(shared, server.tcp)
            line = await tcp.exchange(url, "hello\n", until=b"\n")
            assert (line.body, line.text, line.ok, line.exchanges) == (
                b"hello\n",
                "hello\n",
                True,
                1,
            )
            assert 0 < line.started < line.first_byte <= line.ended
            assert (line.bytes_sent, line.bytes_received) == (6, 6)
            assert (await tcp.exchange(url, b"\0" * 10, until=10)).body == bytes(10)
            frame = LengthPrefix(2, "little", includes_itself=True)
            assert (await tcp.exchange(url, frame.pack(b"abc"), until=frame)).body == b"abc"
            assert (await tcp.exchange(url, {"n": 1})).json() == {"n": 1}
            big = "x" * 3_000_000 + "\n"
            assert (await tcp.exchange(url, big, until=b"\n")).text == big
            # Two lines in one packet: the second waits for the next call.
            await tcp.send(url, "one\ntwo\nthr")
            assert (await tcp.receive(url, until=b"\n")).text == "one\n"
            assert (await tcp.receive(url, until=b"\n")).text == "two\n"
            await tcp.send(url, "ee\r\n")
            found = await tcp.expect(url, "three", until=b"\r\n")
            assert (found.ok, found.exchanges) == (True, 0)
            await tcp.send(url, "-ERR\n")
            wrong = await tcp.expect(url, "+OK", until=b"\n")
            assert (wrong.failure, wrong.text) == ("expected b'+OK'", "-ERR\n")
        counters = shared.counters_of("tcp")
        assert (counters.sent, counters.answered, counters.connections) == (5, 5, 1)
        assert (counters.messages_sent, counters.messages_received) == (8, 9)
        assert counters.bytes_sent == counters.bytes_received == server.bytes_received
        assert server.connections == 1


@on_uvloop
async def test_tls_of_tcp(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with running_echo_server(context) as server:
        url: Any = server.tcp.replace("tcp", "tls")
        shared = HTTPShared(ca_file=str(tmp_path / "ca.pem"))
        async with swept(shared) as http:
            assert (await TCPClient(http).exchange(url, "hello\n", until=b"\n")).ok
        found = await ping(url, insecure=True)
        assert found.render().startswith("connected (TLSv1.3)  from 127.0.0.1:")


@on_uvloop
async def test_servers_that_close_hang_or_send_too_much() -> None:
    async def script(peer: Peer) -> None:
        line = await peer.reader.readline()
        if line == b"hang\n":
            await peer.reader.read()
        elif line == b"half\n":
            await peer.send(b"no end")
        elif line == b"long\n":
            await peer.send(b"\xff\xff\xff\xff")
            await peer.reader.read()
        elif line == b"reset\n":
            peer.reset()

    async with serve(script) as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            tcp = TCPClient(http)
            url: Any = await prepared(shared, _tcp(server))
            reasons: dict[str, str] = {}
            for word in ("close", "hang", "half", "long", "reset"):
                until = LengthPrefix(4) if word == "long" else b"\n"
                with pytest.raises(TransportError) as caught:
                    await tcp.exchange(url, f"{word}\n", until=until, timeout="200ms")
                reasons[word] = caught.value.reason
                assert caught.value.request == f"TCP exchange {word} {url}"
        assert reasons == {
            "close": "connection closed by the server",
            "hang": "timeout after 0.2 s",
            "half": "connection closed by the server",
            "long": "answer larger than 64 MiB",
            "reset": "connection reset",
        }
        counters = shared.counters_of("tcp")
        assert (counters.sent, counters.failed, counters.connections) == (5, 5, 5)


@on_uvloop
async def test_sending_waits_for_a_server_that_does_not_read() -> None:
    over = asyncio.Event()

    async def script(peer: Peer) -> None:
        await over.wait()

    async with serve(script) as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            tcp = TCPClient(http)
            url: Any = await prepared(shared, _tcp(server))
            # More than the buffers of both sides hold.
            with pytest.raises(TransportError, match=r"^timeout after 0.1 s$"):
                await tcp.send(url, b"x" * 30_000_000, timeout="100ms")
        over.set()


@on_uvloop
async def test_a_cancelled_exchange_is_counted_and_its_connection_closed() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.read()

    async with serve(script) as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            waiting = asyncio.ensure_future(TCPClient(http).exchange(_tcp(server), "x"))
            while not shared.counters_of("tcp").in_flight:
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert shared.counters_of("tcp").cancelled == 1


@on_uvloop
async def test_what_tcp_refuses() -> None:
    shared = HTTPShared()
    async with swept(shared) as http:
        for until in (b"", 0, -1, True, "\n"):
            with pytest.raises(CallError, match="is no end of an answer"):
                await TCPClient(http).exchange("tcp://127.0.0.1:9", "x", until=until)  # pyright: ignore[reportArgumentType]
        with pytest.raises(ConfigError, match=r"^the address has no port: write tcp://host:port$"):
            await prepared(shared, "tcp://127.0.0.1")
        with pytest.raises(TransportError, match=r"^connection refused: 127.0.0.1:9$"):
            await TCPClient(http).exchange("tcp://127.0.0.1:9", "x")


@on_uvloop
async def test_datagrams_and_those_that_are_lost() -> None:
    with running_echo_server() as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            udp = UDPClient(http)
            url: Any = await prepared(shared, server.udp)
            found = await udp.exchange(url, "hello", timeout="30s")
            assert (found.text, found.lost, found.bytes_received) == ("hello", False, 5)
            assert 0 < found.started < found.ended
            lost = await udp.exchange(url, "silent", timeout="30ms")
            assert (lost.lost, lost.ok) == (True, False)
            assert lost.failure == "lost: no datagram within 0.03 s"
            assert lost.timings.total_s >= 0.03
            # The second answer to `late` is not taken for that to the next datagram.
            await udp.exchange(url, "late", timeout="30s")
            while shared.counters_of("udp").messages_received < 3:
                await asyncio.sleep(0.001)
            assert (await udp.exchange(url, "next", timeout="30s")).text == "next"
            await udp.send(url, "one")
            assert (await udp.receive(url, timeout="30s")).text == "one"
            assert (await udp.receive(url, timeout="10ms")).lost
            assert (await udp.exchange(url, "quiet", reply=False)).exchanges == 0
        counters = shared.counters_of("udp")
        assert (counters.sent, counters.answered, counters.failed) == (4, 3, 1)
        assert counters.messages_sent == 6
        while server.datagrams < 6:
            await asyncio.sleep(0.001)


@on_uvloop
async def test_a_port_where_nothing_listens_is_reported() -> None:
    (port,) = free_ports(1)
    shared = HTTPShared()
    async with swept(shared) as http:
        udp = UDPClient(http)
        url: Any = await prepared(shared, f"udp://127.0.0.1:{port}")
        for _ in range(2):
            with pytest.raises(TransportError, match=f"^connection refused: 127.0.0.1:{port}$"):
                await udp.exchange(url, "x", timeout="30s")
        # The socket of a user is kept, and works once something listens.
        await udp.send(url, "x")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as late:
            late.bind(("127.0.0.1", port))
            await udp.send(url, "there")
            assert late.recv(100) == b"there"
    counters = shared.counters_of("udp")
    assert (counters.sent, counters.failed, counters.unsent) == (2, 2, 0)


@on_uvloop
async def test_ping_of_sockets() -> None:
    with running_echo_server() as server:
        assert (await ping(server.tcp)).render().startswith("connected  from 127.0.0.1:")
        # The server of the test does not answer an empty datagram, as most do not.
        assert (await ping(server.udp)).render().startswith("sent  from 127.0.0.1:")
    assert (await ping(server.udp)).error.startswith("connection refused")


@on_uvloop
async def test_an_answer_that_comes_after_its_time_is_not_taken_for_the_next_one() -> None:
    shared = HTTPShared()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        async with swept(shared) as http:
            udp = UDPClient(http)
            url: Any = await prepared(shared, f"udp://127.0.0.1:{server.getsockname()[1]}")
            assert (await udp.exchange(url, "first", timeout="10ms")).lost
            _, first = server.recvfrom(100)
            second = asyncio.ensure_future(udp.exchange(url, "second", timeout="30s"))
            while not shared.counters_of("udp").in_flight:
                await asyncio.sleep(0)
            _, where = server.recvfrom(100)
            server.sendto(b"answer to the first", first)
            server.sendto(b"answer to the second", where)
            assert (await second).text == "answer to the second"
