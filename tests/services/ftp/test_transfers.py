"""Files over FTP, with a real server: what it counted, refused, and what a restart does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import trustme

from squall.api.errors import CallError, TransportError
from squall.clients.http import HTTPShared
from squall.clients.ping import ping
from squall.clients.registry import make_client
from tests.lab.ftp_server import PASSWORD, running_ftp_server
from tests.services.http.lab.servers import on_uvloop, swept


@on_uvloop
async def test_files_arrive_as_sent_over_one_control_connection(tmp_path: Path) -> None:
    big = bytes(range(256)) * 4096
    with running_ftp_server(tmp_path) as server:
        shared = HTTPShared(base_dir=Path(__file__).parent)
        async with swept(shared) as http:
            ftp = make_client("ftp", http)
            sent = await ftp.put(server.url, "/big.bin", big)
            got = await ftp.get(server.url, "/big.bin")
            own = await ftp.put(server.url, "/", Path(__file__).name)
            listed = await ftp.list(server.url, "/")
            gone = await ftp.delete(server.url, "/big.bin")
        assert all(each.ok for each in (sent, got, own, listed, gone))
        assert (got.content, got.size, got.code) == (big, len(big), 226)
        assert (tmp_path / Path(__file__).name).read_bytes() == Path(__file__).read_bytes()
        assert set(listed.names) == {"big.bin", Path(__file__).name}
        assert sent.timings.connect_s >= sent.login_s > 0 and got.login_s == 0
        for each in (sent, got):
            assert 0 < each.data_connect_s < each.timings.total_s
            assert each.data_connect_s + each.transfer_s <= each.timings.total_s + 0.05
            assert each.rate == len(big) / each.transfer_s
        assert (server.connections, server.logins) == (1, {"ada": 1})
        assert server.files == {"received": 2, "sent": 1, "listed": 1, "deleted": 1}
        counters = shared.counters_of("ftp")
        assert (counters.sent, counters.answered, counters.connections) == (5, 5, 1)
        assert counters.bytes_received > len(big) < counters.bytes_sent


@pytest.mark.parametrize("scheme", ["ftps", "ftpes"])
@on_uvloop
async def test_control_and_data_connections_are_encrypted(scheme: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    ca, pem, files = tmp_path / "ca.pem", tmp_path / "server.pem", tmp_path / "files"
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    files.mkdir()
    content = bytes(range(256)) * 512
    with running_ftp_server(files, certificate=pem, implicit=scheme == "ftps") as server:
        url = server.url_of(scheme)
        async with swept(HTTPShared(ca_file=str(ca))) as http:
            ftp = make_client("ftp", http)
            assert (await ftp.put(url, "/a.bin", content)).ok
            assert (await ftp.get(url, "/a.bin")).content == content
            assert (await ftp.list(url, "/")).names == ("a.bin",)
            # One control connection, and one for the data of each call.
            assert (server.connections, server.handshakes) == (1, 4)
        async with swept(HTTPShared()) as http:
            with pytest.raises(TransportError, match="TLS: certificate verify failed"):
                await make_client("ftp", http).get(url, "/a.bin")
        if scheme == "ftpes":
            async with swept(HTTPShared()) as http:
                with pytest.raises(TransportError, match="login refused: 550"):
                    await make_client("ftp", http).get(server.url, "/a.bin")
    assert server.logins == {"ada": 1}


@on_uvloop
async def test_a_refusal_is_counted_by_its_code_and_the_session_goes_on(tmp_path: Path) -> None:
    with running_ftp_server(tmp_path) as server:
        async with swept(HTTPShared()) as http:
            ftp = make_client("ftp", http)
            failures = [
                (await ftp.get(server.url, "/nothing.txt")).failure,
                (await ftp.delete(server.url, "/nothing.txt")).failure,
                (await ftp.put(server.anonymous_url, "/new.txt", b"x")).failure,
            ]
            assert failures == ["RETR refused: 550", "DELE refused: 550", "STOR refused: 550"]
            assert (await ftp.put(server.url, "/new.txt", b"x")).ok
        assert server.logins == {"ada": 1, "anonymous": 1}


@on_uvloop
async def test_a_refused_login_is_said_without_the_password(tmp_path: Path) -> None:
    with running_ftp_server(tmp_path) as server:
        async with swept(HTTPShared()) as http:
            wrong = server.url.replace(PASSWORD, "sekret")
            with pytest.raises(TransportError, match="login refused: 530") as caught:
                await make_client("ftp", http).get(wrong, "/x")
        assert "sekret" not in f"{caught.value!r} {caught.value.request}"
        assert server.logins == {"refused": 1}


@pytest.mark.parametrize("path", ["", "/a\r\nDELE /b", None])
@on_uvloop
async def test_a_path_cannot_hold_a_second_command(path: Any, tmp_path: Path) -> None:
    async with swept(HTTPShared()) as http:
        with pytest.raises(CallError, match="the path"):
            await make_client("ftp", http).get("ftp://127.0.0.1:1", path)


@on_uvloop
async def test_a_server_that_hangs_costs_the_limit_and_no_more() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready\r\n")
        for answer in (b"331 password?\r\n", b"230 welcome\r\n", b""):
            await reader.readline()
            writer.write(answer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    url = f"ftp://a:b@127.0.0.1:{server.sockets[0].getsockname()[1]}"
    shared = HTTPShared()
    async with server, swept(shared) as http:
        with pytest.raises(TransportError, match=r"timeout after 0\.2 s"):
            await make_client("ftp", http).get(url, "/x", timeout="200ms")
        assert not shared.live
    counters = shared.counters_of("ftp")
    assert (counters.sent, counters.failed, counters.unsent) == (1, 1, 0)


@on_uvloop
async def test_after_a_restart_of_the_server_transfers_go_on(tmp_path: Path) -> None:
    shared = HTTPShared()
    async with swept(shared) as http:
        ftp = make_client("ftp", http)
        with running_ftp_server(tmp_path) as server:
            assert (await ftp.put(server.url, "/a", b"a")).ok
        for _ in range(2):
            with pytest.raises(TransportError) as caught:
                await ftp.get(server.url, "/a")
        assert str(caught.value).startswith("connection refused")
        with running_ftp_server(tmp_path, port=server.port, server=server):
            assert (await ftp.get(server.url, "/a")).content == b"a"
    assert server.files == {"received": 1, "sent": 1}
    assert not shared.live


@on_uvloop
async def test_ping_logs_in(tmp_path: Path) -> None:
    with running_ftp_server(tmp_path) as server:
        result = await ping(server.url)
    assert result.ok, result.error
    assert result.render().startswith(f"FTP  from 127.0.0.1:{server.port}")
    assert PASSWORD not in result.render() + result.url
    assert server.logins == {"ada": 1}
