"""Who is let in: by the name of the host, by the site that asks, and by the token."""

from __future__ import annotations

import pytest

from squall.web.access import Access, access_for, is_loopback

HERE = access_for("127.0.0.1")
OPEN = access_for("0.0.0.0")
OWN = {"host": "127.0.0.1:8650"}


@pytest.mark.parametrize("host", ["127.0.0.1:8650", "localhost:8650", "[::1]:8650", "10.1.2.3"])
def test_names_of_this_machine_are_served(host: str) -> None:
    assert HERE.refusal("GET", {"host": host}) is None


@pytest.mark.parametrize(
    "host", ["evil.example:8650", "127.0.0.1.evil.example", "", "localhost.evil"]
)
def test_a_name_that_others_can_point_here_is_refused(host: str) -> None:
    for access in (HERE, OPEN):
        refusal = access.refusal("GET", {"host": host})
        assert refusal is not None and refusal.status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    ],
)
def test_a_request_of_another_site_is_refused(headers: dict[str, str]) -> None:
    for method in ("GET", "POST"):
        assert HERE.refusal(method, OWN | headers) is not None


def test_requests_of_the_page_and_of_programs_are_not_refused() -> None:
    same = {"origin": "http://127.0.0.1:8650", "sec-fetch-site": "same-origin"}
    assert HERE.refusal("POST", OWN | same) is None
    assert HERE.refusal("POST", OWN) is None
    # A link in a mail opens the page, which holds no data.
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert HERE.refusal("GET", OWN | link) is None
    assert HERE.refusal("POST", OWN | link) is not None


def test_control_needs_the_control_token_in_the_header() -> None:
    for access in (HERE, OPEN):
        with_token = {"x-squall-token": access.control_token}
        assert access.role(with_token) == "control"
        assert access.role({}, key=access.control_token) != "control"
        assert access.role({"x-squall-token": access.view_token}) == "view"
        assert access.role({"x-squall-token": ""}) != "control"


def test_looking_is_free_on_this_machine_only() -> None:
    assert HERE.role({}) == "view"
    assert OPEN.role({}) == "none"
    assert OPEN.role({}, key=OPEN.view_token) == "view"
    assert OPEN.role({"x-squall-token": "wrong ü"}) == "none"


def test_each_page_has_its_own_tokens_and_hides_them() -> None:
    one, two = access_for("127.0.0.1"), access_for("127.0.0.1")
    tokens = {one.control_token, one.view_token, two.control_token, two.view_token}
    assert len(tokens) == 4 and all(len(token) >= 32 for token in tokens)
    assert one.control_token not in repr(one)


def test_loopback_is_an_address_and_no_prefix() -> None:
    assert is_loopback("127.9.9.9") and is_loopback("::1") and is_loopback("LocalHost")
    assert not is_loopback("127.0.0.1.evil.example") and not is_loopback("0.0.0.0")
    assert Access(is_loopback=True).refusal("GET", {"host": "name:1"}) is not None
