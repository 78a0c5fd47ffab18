"""Mails to a real server: what it counted, what it refused, and what happens when it goes away."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from squall.api.errors import StatusError, TransportError
from squall.clients.http import Exchange, HTTPShared
from squall.clients.ping import ping
from squall.clients.registry import make_client
from tests.lab.mail_server import PASSWORD, running_mail_server
from tests.services.http.lab.servers import on_uvloop, swept

PARTS: Any = {"sender": "ada@shop.test", "to": "bob@shop.test", "subject": "Hi", "text": ".\nhi"}


@pytest.mark.parametrize("pipelining", [False, True])
@on_uvloop
async def test_mails_arrive_as_sent_over_one_connection(pipelining: bool) -> None:
    with running_mail_server(pipelining=pipelining) as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            smtp = make_client("smtp", http)
            results = [await smtp.send(server.url, PARTS) for _ in range(3)]
            both = await smtp.send(server.url, PARTS | {"to": ["eve@shop.test", "joe@shop.test"]})
        assert [result.code for result in results] == [250] * 3
        assert all(result.ok and result.bytes_sent > 100 for result in (*results, both))
        first, second, _ = results
        assert first.timings.connect_s >= first.login_s > 0 and second.login_s == 0
        assert first.started < first.first_byte <= first.ended
        assert (server.connections, len(server.mails)) == (1, 4)
        content = server.mails[0].content
        assert isinstance(content, bytes) and content.endswith(b"\r\n\r\n.\r\nhi\r\n")
        assert server.mails[3].rcpt_tos == ["eve@shop.test", "joe@shop.test"]
        counters = shared.counters_of("smtp")
        assert (counters.sent, counters.answered, counters.connections) == (4, 4, 1)
        assert counters.bytes_sent == sum(each.bytes_sent for each in (*results, both))


@pytest.mark.parametrize("pipelining", [False, True])
@pytest.mark.parametrize(
    ("to", "error", "taken"),
    [
        ("nobody@shop.test", "RCPT TO refused: 550 5.1.1", 0),
        (["nobody@shop.test", "busy@shop.test"], "RCPT TO refused: 451 4.3.0", 0),
        (["nobody@shop.test", "bob@shop.test"], "RCPT TO refused: 550 5.1.1", 1),
        ("reject@shop.test", "DATA refused: 554 5.7.1", 0),
    ],
)
@on_uvloop
async def test_a_refusal_is_counted_by_its_code_and_the_session_goes_on(
    to: Any, error: str, taken: int, pipelining: bool
) -> None:
    with running_mail_server(pipelining=pipelining) as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            smtp = make_client("smtp", http)
            refused = await smtp.send(server.url, PARTS | {"to": to})
            assert (refused.failure, refused.ok) == (error, False)
            assert len(server.mails) == taken
            good = await smtp.send(server.url, PARTS)
        assert good.ok and server.connections == 1 and len(server.mails) == taken + 1
        assert shared.counters_of("smtp").answered == 2


@on_uvloop
async def test_login_and_starttls_are_part_of_connecting(tmp_path: Path) -> None:
    authority = trustme.CA()
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with running_mail_server(starttls=tls, login=True) as server:
        shared = HTTPShared(ca_file=str(ca))
        shown: list[Exchange] = []
        shared.on_exchange = shown.append
        async with swept(shared) as http:
            smtp = make_client("smtp", http)
            first = await smtp.send(server.login_url, PARTS)
            second = await smtp.send(server.login_url, PARTS)
            assert first.tls_s > 0 and second.tls_s == 0
            assert first.timings.connect_s >= first.tls_s + first.login_s
            with pytest.raises(TransportError, match=r"login refused: 535 5\.7\.8"):
                await smtp.send(server.login_url.replace(PASSWORD, "wrong"), PARTS)
            refused = await smtp.send(server.url, PARTS)
            assert refused.failure == "MAIL FROM refused: 530 5.7.0"
            with pytest.raises(StatusError):
                refused.raise_for_status()
        assert (server.logins, server.encrypted) == (1, 2)
        assert PASSWORD not in repr([first, first.request, [vars_of(each) for each in shown]])


@on_uvloop
async def test_a_server_may_want_tls_from_the_first_byte(tmp_path: Path) -> None:
    authority = trustme.CA()
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with running_mail_server(tls=tls, pipelining=True) as server:
        url = f"smtps://127.0.0.1:{server.port}"
        async with swept(HTTPShared(ca_file=str(ca))) as http:
            smtp = make_client("smtp", http)
            sent = [await smtp.send(url, PARTS) for _ in range(2)]
            assert all(each.ok for each in sent)
        async with swept(HTTPShared()) as http:
            with pytest.raises(TransportError, match="TLS: certificate verify failed"):
                await make_client("smtp", http).send(url, PARTS)
        assert (server.encrypted, len(server.mails)) == (2, 2)


def vars_of(exchange: Exchange) -> list[Any]:
    return [getattr(exchange, name) for name in Exchange.__slots__]


@on_uvloop
async def test_starttls_can_be_demanded() -> None:
    with running_mail_server() as server:
        async with swept(HTTPShared()) as http:
            with pytest.raises(TransportError, match="does not offer STARTTLS"):
                await make_client("smtp", http).send(f"{server.url}?starttls=required", PARTS)


@on_uvloop
async def test_a_server_that_hangs_costs_the_limit_and_no_more() -> None:
    with running_mail_server() as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            smtp = make_client("smtp", http)
            with pytest.raises(TransportError, match=r"timeout after 0\.2 s"):
                await smtp.send(server.url, **PARTS | {"to": "late@shop.test"}, timeout="200ms")
            assert (await smtp.send(server.url, PARTS)).ok
        assert (server.connections, len(server.mails)) == (2, 1)
        counters = shared.counters_of("smtp")
        assert (counters.sent, counters.answered, counters.failed) == (2, 1, 1)


@on_uvloop
async def test_after_a_restart_of_the_server_mails_go_on() -> None:
    shared = HTTPShared()
    async with swept(shared) as http:
        smtp = make_client("smtp", http)
        with running_mail_server() as server:
            assert (await smtp.send(server.url, PARTS)).ok
        for _ in range(2):
            # The first may meet the end of its connection.
            with pytest.raises(TransportError) as caught:
                await smtp.send(server.url, PARTS)
        assert str(caught.value).startswith("connection refused")
        with running_mail_server(port=server.port, server=server):
            assert (await smtp.send(server.url, PARTS)).ok
    assert len(server.mails) == shared.counters_of("smtp").answered == 2
    assert not shared.live


@on_uvloop
async def test_ping_shows_what_the_server_offers() -> None:
    with running_mail_server(pipelining=True) as server:
        result = await ping(server.url)
    assert result.ok, result.error
    text = result.render()
    assert text.startswith(f"SMTP  from 127.0.0.1:{server.port}")
    assert "pipelining" in text and not server.mails


@on_uvloop
async def test_what_is_no_mail_server_is_said() -> None:
    async def greet(reader: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    other = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    async with other, swept(HTTPShared()) as http:
        with pytest.raises(TransportError) as caught:
            await make_client("smtp", http).send(f"smtp://127.0.0.1:{port}", PARTS)
    assert len(str(caught.value)) < 80
