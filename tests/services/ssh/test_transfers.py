"""Files over SSH, with the server of asyncssh and with OpenSSH's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from squall.api.errors import CallError, TransportError
from squall.clients.http import HTTPShared
from squall.clients.ping import ping
from squall.clients.registry import make_client
from tests.lab.ssh_server import PASSWORD, SSHServer, running_openssh, running_ssh_server
from tests.services.http.lab.servers import on_uvloop, swept

BIG = bytes(range(256)) * 2048


@on_uvloop
async def test_sftp_files_arrive_as_sent_over_one_connection(tmp_path: Path) -> None:
    with running_ssh_server(tmp_path) as server:
        shared = HTTPShared(verify=False)
        async with swept(shared) as http:
            sftp, url = make_client("sftp", http), server.url()
            sent = await sftp.put(url, "/big.bin", BIG)
            got = await sftp.get(url, "/big.bin")
            empty = [await sftp.put(url, "/e", b""), await sftp.get(url, "/e")]
            found = await sftp.stat(url, "/big.bin")
            listed = await sftp.list(url, "/")
            gone = await sftp.remove(url, "/big.bin")
            missing = await sftp.get(url, "/big.bin")
        assert all(each.ok for each in (sent, got, *empty, found, listed, gone))
        assert (got.content, got.size, empty[1].content) == (BIG, len(BIG), b"")
        assert (found.size, found.mode & 0o777 > 0, found.modified > 0) == (len(BIG), True, True)
        assert listed.names == ("big.bin", "e")
        assert (missing.failure, missing.code) == ("refused: no such file", 2)
        assert sent.timings.connect_s >= sent.login_s > 0 and got.login_s == 0
        assert got.rate == len(BIG) / got.transfer_s
        assert (server.connections, server.logins["all"]) == (1, 1)
        assert server.files == {"written": 2, "read": 2, "removed": 1}
        counters = shared.counters_of("sftp")
        assert (counters.sent, counters.answered, counters.connections) == (8, 8, 1)


@on_uvloop
async def test_scp_files_arrive_as_sent(tmp_path: Path) -> None:
    with running_ssh_server(tmp_path) as server:
        shared = HTTPShared(verify=False)
        async with swept(shared) as http:
            scp, url = make_client("scp", http), server.url("scp")
            sent = await scp.put(url, "/a b.bin", BIG)
            got = await scp.get(url, "/a b.bin")
            missing = await scp.get(url, "/nothing")
        assert (sent.ok, got.content, missing.ok) == (True, BIG, False)
        assert missing.failure == "refused: no such file or directory"
        assert (tmp_path / "a b.bin").read_bytes() == BIG
        assert server.connections == 1
        assert shared.counters_of("scp").answered == 3


@on_uvloop
async def test_a_host_key_must_be_known_unless_insecure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with running_ssh_server(tmp_path) as server:
        known = server.write_known_hosts(tmp_path / "known")
        other = SSHServer(tmp_path)
        other.port = server.port
        wrong = other.write_known_hosts(tmp_path / "wrong")
        async with swept(HTTPShared()) as http:
            sftp = make_client("sftp", http)
            for options in ({}, {"known_hosts": str(wrong)}):
                with pytest.raises(TransportError, match=r"host key of 127\.0\.0\.1 is not known"):
                    await sftp.list(server.url(), "/", **options)
            assert (await sftp.list(server.url(), "/", known_hosts=str(known))).ok
            (tmp_path / ".ssh").mkdir()
            known.rename(tmp_path / ".ssh" / "known_hosts")
            assert (await sftp.list(server.url(), "/")).ok
        assert server.logins["all"] == 2


@on_uvloop
async def test_a_key_logs_in_and_is_never_shown(tmp_path: Path) -> None:
    with running_ssh_server(tmp_path) as server:
        plain = server.url().replace(f":{PASSWORD}", "")
        async with swept(HTTPShared(verify=False)) as http:
            sftp = make_client("sftp", http)
            result = await sftp.list(plain, "/", key=server.key_text)
            assert result.ok and "BEGIN" not in repr(result) + result.request
            with pytest.raises(TransportError, match="login refused"):
                await sftp.list(plain, "/")
            with pytest.raises(CallError, match="the private key is not valid") as caught:
                await sftp.list(plain, "/", key="-----BEGIN NONSENSE-----\nsekret")
            assert "sekret" not in str(caught.value)
            with pytest.raises(CallError, match="needs a user"):
                await sftp.list(f"sftp://127.0.0.1:{server.port}", "/")
            with pytest.raises(TransportError, match="login refused"):
                await sftp.list(server.url().replace(PASSWORD, "wrong"), "/")
        assert (server.logins["all"], server.logins["refused"]) == (1, 1)


@pytest.mark.parametrize("protocol", ["sftp", "scp"])
@on_uvloop
async def test_after_a_restart_of_the_server_transfers_go_on(protocol: str, tmp_path: Path) -> None:
    shared = HTTPShared(verify=False)
    async with swept(shared) as http:
        client: Any = make_client(protocol, http)
        with running_ssh_server(tmp_path) as server:
            url = server.url(protocol)
            assert (await client.put(url, "/a", b"a")).ok
        for _ in range(2):
            with pytest.raises(TransportError) as caught:
                await client.get(url, "/a")
        assert str(caught.value).startswith("connection refused")
        with running_ssh_server(tmp_path, port=server.port, server=server):
            assert (await client.get(url, "/a")).content == b"a"
    assert server.logins["all"] == 2
    assert not shared.live


@on_uvloop
async def test_files_go_to_openssh_and_back(tmp_path: Path) -> None:
    with running_openssh(tmp_path) as (server, user):
        hosts = str(server.write_known_hosts(tmp_path / "known"))
        options: Any = {"key": server.key_text, "known_hosts": hosts}
        place = tmp_path / "a b.bin"
        async with swept(HTTPShared()) as http:
            for protocol in ("sftp", "scp"):
                client: Any = make_client(protocol, http)
                url = f"{protocol}://{user}@127.0.0.1:{server.port}"
                assert (await client.put(url, str(place), BIG, **options)).ok
                assert place.read_bytes() == BIG
                assert (await client.get(url, str(place), **options)).content == BIG
                missing = await client.get(url, str(tmp_path / "no"), **options)
                assert missing.failure.startswith("refused: no such file")
                place.unlink()
        log = (tmp_path / "sshd.log").read_text()
        assert log.count("Accepted publickey") == 2


@on_uvloop
async def test_ping_shows_the_server(tmp_path: Path) -> None:
    with running_ssh_server(tmp_path) as server:
        result = await ping(server.url(), insecure=True)
        assert result.ok, result.error
        assert result.render().startswith("SFTP SSH-2.0-AsyncSSH")
        assert PASSWORD not in result.render() + result.url
        again = await ping(server.url("scp"), insecure=True)
        assert again.ok, again.error
