"""One exchange as text."""

from __future__ import annotations

from squall.reporting.text.exchange import render_exchange
from squall.stats.reports import ExchangeReport


def exchange(**more: object) -> ExchangeReport:
    fields: dict[str, object] = {
        "workflow": "Shop",
        "row": "pay",
        "method": "POST",
        "url": "http://127.0.0.1:8080/pay",
        "peer": "127.0.0.1:8080",
        "request": b'POST /pay HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n{"n":1}',
        "response_head": b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n",
        "body": b'{"paid":true}',
        "body_size": 13,
        "dns_s": 0.0002,
        "connect_s": 0.0001,
        "first_byte_s": 0.0006,
        "total_s": 0.0007,
    }
    return ExchangeReport(**(fields | more))  # type: ignore[arg-type]


def test_an_answered_exchange_shows_both_sides_and_the_times() -> None:
    assert render_exchange(exchange()) == (
        """\
── Shop.pay  POST http://127.0.0.1:8080/pay  to 127.0.0.1:8080
> POST /pay HTTP/1.1
> Host: 127.0.0.1:8080
>
> {"n":1}
< HTTP/1.1 200 OK
< Content-Length: 13
<
< {"paid":true}
  dns 0.2 ms  connect 0.1 ms  first byte 0.6 ms  whole 0.7 ms"""
    )


def test_a_reused_connection_has_no_set_up_times() -> None:
    last = render_exchange(exchange(dns_s=0.0, connect_s=0.0)).splitlines()[-1]
    assert last == "  connection reused  first byte 0.6 ms  whole 0.7 ms"


def test_no_answer_shows_the_reason() -> None:
    text = render_exchange(
        exchange(
            error="timeout after 5 s",
            response_head=b"",
            body=b"",
            dns_s=0.0,
            connect_s=0.0,
            first_byte_s=0.0,
            total_s=5.0,
        )
    )
    assert text.splitlines()[-2:] == ["! timeout after 5 s after 5 s", "  whole 5 s"]


def test_a_long_body_is_cut_and_its_size_shown() -> None:
    text = render_exchange(exchange(body=b"x" * 2000, body_size=70_500))
    assert "x" * 1000 in text
    assert "x" * 1001 not in text
    assert "< ... (70.5 kB in total)" in text


def test_binary_data_never_reaches_the_terminal() -> None:
    text = render_exchange(exchange(body=b"\x89PNG\x00\xff" + b"\x1b[2J" * 5, body_size=26))
    assert "< (26 B of binary data)" in text
    assert "\x1b" not in render_exchange(exchange(body=b"\x1b[2Jgone", body_size=8))


def test_a_body_cut_inside_a_character_is_still_text() -> None:
    text = render_exchange(exchange(body="größe".encode()[:3], body_size=7))
    assert "< gr" in text


def test_the_exchange_of_a_url_is_headed_by_method_and_address() -> None:
    head = render_exchange(exchange(workflow="", row="")).splitlines()[0]
    assert head == "── POST http://127.0.0.1:8080/pay  to 127.0.0.1:8080"
