"""RFC 6265: what a jar stores and sends."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squall.clients.http.cookies import (
    MOST_COOKIES,
    Jar,
    default_path,
    domain_matches,
    path_matches,
    read_date,
    stored,
)
from squall.clients.http.origin import Origin

NOW = 1_700_000_000.0
SHOP = Origin("http", "www.shop.example", 80)
SECURE = Origin("https", "www.shop.example", 443)


def jar_of(*lines: str, origin: Origin = SHOP, path: str = "/", jar: Jar | None = None) -> Jar:
    after = stored(jar, lines, origin, path, NOW)
    assert after is not None
    return after


def header(jar: Jar, host: str = "www.shop.example", path: str = "/", now: float = NOW) -> str:
    return jar.header(Origin("http", host, 80), path, now).decode()


def test_a_cookie_goes_back_to_its_host_only() -> None:
    jar = jar_of("sid=1")
    assert header(jar) == "sid=1"
    assert header(jar, "shop.example") == header(jar, "x.www.shop.example") == ""


def test_a_domain_cookie_goes_to_all_hosts_below() -> None:
    jar = jar_of("sid=1; Domain=.Shop.Example")
    for host in ("shop.example", "www.shop.example", "a.b.shop.example"):
        assert header(jar, host) == "sid=1"
    assert header(jar, "notshop.example") == ""


def test_a_foreign_domain_is_refused() -> None:
    assert stored(None, ["a=1; Domain=other.example"], SHOP, "/", NOW) is None
    assert stored(None, ["a=1; Domain=x.www.shop.example"], SHOP, "/", NOW) is None
    ip = Origin("http", "10.0.0.1", 80)
    assert stored(None, ["a=1; Domain=0.0.1"], ip, "/", NOW) is None
    assert header(jar_of("a=1", origin=ip), "10.0.0.1") == "a=1"


def test_paths_select_and_longer_ones_come_first() -> None:
    jar = jar_of("a=1", "b=2; Path=/shop", "c=3; Path=/shop/cart", "d=4; Path=relative")
    assert header(jar, path="/") == "a=1; d=4"
    assert header(jar, path="/shop") == "b=2; a=1; d=4"
    assert header(jar, path="/shop/cart/9") == "c=3; b=2; a=1; d=4"
    assert header(jar, path="/shopping") == "a=1; d=4"


def test_the_default_path_is_the_folder_of_the_request() -> None:
    jar = jar_of("a=1", path="/shop/login")
    assert header(jar, path="/shop/x") == "a=1" and header(jar, path="/") == ""


def test_secure_cookies_travel_over_tls_only() -> None:
    jar = jar_of("a=1; Secure; HttpOnly", "b=2", origin=SECURE)
    assert jar.header(SECURE, "/", NOW) == b"a=1; b=2"
    assert header(jar) == "b=2"


def test_expiry_by_age_and_by_date() -> None:
    jar = jar_of("a=1; Max-Age=10", "b=2; Expires=Tue, 14 Nov 2023 22:13:40 GMT", "c=3")
    assert header(jar) == "a=1; b=2; c=3"
    assert header(jar, now=NOW + 11) == "b=2; c=3"
    assert header(jar, now=NOW + 21) == "c=3"
    assert header(jar, now=NOW) == "c=3"


def test_max_age_wins_over_expires_and_nonsense_is_ignored() -> None:
    jar = jar_of(
        "a=1; Expires=Thu, 01 Jan 1970 00:00:00 GMT; Max-Age=5", "b=2; Max-Age=x", "c=3; Expires=x"
    )
    assert header(jar) == "a=1; b=2; c=3"


def test_an_expired_cookie_deletes_and_an_empty_jar_is_none() -> None:
    jar = jar_of("a=1", "b=2")
    less = stored(jar, ["a=; Max-Age=0"], SHOP, "/", NOW)
    assert less is not None and header(less) == "b=2" and header(jar) == "a=1; b=2"
    assert stored(less, ["b=x; Expires=Thu, 01 Jan 1970 00:00:00 GMT"], SHOP, "/", NOW) is None


def test_nothing_new_is_the_same_jar() -> None:
    jar = jar_of("a=1; Path=/; HttpOnly")
    assert stored(jar, ["a=1; Path=/; HttpOnly"], SHOP, "/", NOW) is jar
    assert stored(jar, ["c=; Max-Age=0", "no pair", "=x", "a=\x01"], SHOP, "/", NOW) is jar


def test_a_changed_cookie_keeps_its_place() -> None:
    jar = jar_of("a=3", jar=jar_of("a=1", "b=2"))
    assert header(jar) == "a=3; b=2" and len(jar) == 2


def test_a_jar_does_not_grow_without_end() -> None:
    jar = jar_of(*[f"n{index}=1" for index in range(MOST_COOKIES + 50)])
    assert len(jar) == MOST_COOKIES


@pytest.mark.parametrize(
    "text",
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "6 nov 1994 8:49:37",
    ],
)
def test_dates_in_every_dialect(text: str) -> None:
    assert read_date(text) == 784111777.0


@pytest.mark.parametrize(
    "text", ["", "x", "32 Nov 1994 00:00:00", "1 Nov 1500 1:1:1", "30 feb 99 1:1:1"]
)
def test_dates_that_are_none(text: str) -> None:
    assert read_date(text) is None


@given(st.datetimes(datetime(1970, 1, 1), datetime(2069, 12, 31)))
def test_a_date_is_read_back(moment: datetime) -> None:
    names = [datetime(2000, month, 1).strftime("%b") for month in range(1, 13)]
    text = f"X, {moment.day:02} {names[moment.month - 1]} {moment.year} {moment:%H:%M:%S} GMT"
    assert read_date(text) == math.floor(moment.replace(tzinfo=UTC).timestamp())


@given(st.text(st.characters(min_codepoint=32, max_codepoint=255)))
def test_no_set_cookie_line_breaks_the_jar(line: str) -> None:
    jar = stored(None, [line], SHOP, "/a/b", NOW)
    if jar is not None:
        sent = jar.header(SHOP, "/a/b", NOW)
        assert b"\r" not in sent and b"\n" not in sent


def test_matching_rules() -> None:
    assert domain_matches("a.b", "b") and not domain_matches("ab", "b")
    assert not domain_matches("1.2.3.4", "3.4")
    assert path_matches("/a/b", "/a/") and not path_matches("/ab", "/a")
    assert [default_path(p) for p in ("/", "/a", "/a/b", "x", "")] == ["/", "/", "/a", "/", "/"]
