"""What an author reads who calls the client by another library's names."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from squall.api.protocols.clients import Clients
from squall.clients.http.exchange import call


@pytest.mark.parametrize(
    ("method", "option", "text"),
    [
        (
            "POST",
            "body",
            r"post\(\) takes no body=; did you mean data=\? it takes auth, cookies, data",
        ),
        ("GET", "query", r"get\(\) takes no query=; did you mean params=\?"),
        ("PUT", "jsn", r"put\(\) takes no jsn=; did you mean json=\?"),
        ("GET", "body", r"get\(\) takes no body=; it takes auth, cookies, headers"),
        ("PURGE", "verify", r"request\(\) takes no verify=; it takes auth"),
    ],
)
def test_an_unknown_option_names_the_verb_and_its_options(
    method: str, option: str, text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        asyncio.run(call(cast(Any, None), method, "/", **{option: 1}))


@pytest.mark.parametrize(
    ("name", "hint"), [("get", "write self.client.http.get"), ("gopher", "it has browser, ")]
)
def test_a_verb_on_the_clients_names_where_it_is(name: str, hint: str) -> None:
    with pytest.raises(AttributeError, match=f"self.client has no {name}; {hint}"):
        getattr(Clients(cast(Any, None)), name)
