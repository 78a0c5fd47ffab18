"""Every option of every verb, with every kind of wrong value: a failed call that says so.

The table is made from the options of the API. Nothing is sent: the client is closed, so a call
whose arguments are good ends with "client closed".
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from squall.api.errors import CallError, TransportError
from squall.api.http import BodyOptions
from squall.clients.http import HTTPClient, HTTPShared


class Thing:
    """No plain data."""


VALUES: dict[str, Any] = {
    "number": 5,
    "negative": -1,
    "fraction": 0.5,
    "nan": float("nan"),
    "true": True,
    "text": "x",
    "empty text": "",
    "bytes": b"x",
    "class": Thing,
    "instance": Thing(),
    "list": [5],
    "dict": {"a": "b"},
    "dict of objects": {"a": Thing()},
    "keys of numbers": {5: "b"},
    "set": {5},
    "pair": ("x", "y z"),
    "tuple": ("x", 5, "y", "z"),
}
PLAIN = {"number", "negative", "fraction", "nan", "true", "text", "empty text", "bytes", "list"}
TAKEN = {
    "headers": {"dict", "dict of objects"},
    "params": {"dict", "dict of objects", "keys of numbers"},
    "cookies": {"dict", "dict of objects"},
    "auth": {"pair"},
    "path": {"dict", "dict of objects", "keys of numbers"},
    "timeout": {"number", "fraction"},
    "redirects": {"number"},
    "name": {"text"},
    "data": {*PLAIN, "dict", "set", "keys of numbers", "pair", "tuple"},
    "json": {*PLAIN, "dict", "set", "keys of numbers", "pair", "tuple"},
    "form": {"dict", "dict of objects", "keys of numbers"},
    "files": set[str](),
}
WANTED = {
    "headers": "a mapping such as {...}",
    "params": "a mapping such as {...}",
    "cookies": "a mapping such as {...}",
    "auth": '("user", "password") or "Scheme credentials"',
    "path": 'a mapping such as {"id": 7}',
    "timeout": "a number with a unit",
    "redirects": "a number of redirects",
    "name": "text",
    "data": "text, bytes or what JSON can hold",
    "json": "what JSON can hold",
    "form": "a mapping such as {...}",
    "files": 'a mapping such as {"picture": "cat.png"}',
}
OF_AN_ITEM = {"dict", "dict of objects", "keys of numbers"}
"""Kinds of which a mapping has the right kind and an item does not."""


def got(value: Any) -> list[str]:
    """What a reason may show of a wrong value: its kind or itself."""
    return [
        type(value).__name__,
        repr(value),
        f'"{value}"',
        getattr(value, "__name__", repr(value)),
    ]


def ended(method: Any = "POST", url: Any = "http://127.0.0.1:1/{a}", **options: Any) -> str:
    """The reason with which a call ended. Anything but a failed call ends the test."""
    shared = HTTPShared()
    shared.closed = True

    async def send() -> str:
        with pytest.raises(CallError) as caught:
            await HTTPClient(shared, 0).request(method, url, **options)
        is_transport = isinstance(caught.value, TransportError)
        assert is_transport == (caught.value.reason == "client closed")
        return caught.value.reason

    return asyncio.run(send())


def test_every_option_has_its_line_in_the_table() -> None:
    assert set(TAKEN) == BodyOptions.__optional_keys__


@pytest.mark.parametrize("option", TAKEN)
@pytest.mark.parametrize("kind", VALUES)
def test_an_option_of_a_call(option: str, kind: str) -> None:
    given: dict[str, Any] = {"path": {"a": 1}, option: VALUES[kind]}
    if option == "path" and kind == "keys of numbers":
        given["path"] = {5: "b", "a": 1}
    reason = ended(**given)
    if kind in TAKEN[option]:
        assert reason == "client closed"
    else:
        words = {"files": "file", "cookies": "cookie"}
        assert words.get(option, option).rstrip("s") in reason
        assert "\n" not in reason
        if kind not in OF_AN_ITEM or WANTED[option].startswith(("text", "what", "(")):
            assert WANTED[option] in reason
            assert any(shown in reason for shown in got(VALUES[kind])), reason


@pytest.mark.parametrize("option", TAKEN)
def test_none_is_as_if_it_were_not_given(option: str) -> None:
    assert ended(url="http://127.0.0.1:1/", **{option: None}) == "client closed"


@pytest.mark.parametrize("kind", VALUES)
def test_a_method(kind: str) -> None:
    reason = ended(method=VALUES[kind], path={"a": 1})
    if kind != "text":
        assert "is not a method" in reason


@pytest.mark.parametrize("kind", VALUES)
def test_a_url(kind: str) -> None:
    assert "URL" in ended(url=VALUES[kind], path={"a": 1})


@pytest.mark.parametrize("kind", VALUES)
def test_a_file(kind: str) -> None:
    reason = ended(files={"picture": VALUES[kind]}, path={"a": 1})
    if kind == "pair":
        assert reason == "client closed"
    elif kind in ("text", "empty text"):
        assert "cannot read" in reason
    else:
        assert "a file is a path or (name, content" in reason or "(name, content) or" in reason
        assert any(shown in reason for shown in got(VALUES[kind])) or kind == "tuple"
