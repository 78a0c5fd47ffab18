"""Which client is made, and what a missing package says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from squall.api.errors import ConfigError
from squall.api.protocols.clients import Clients
from squall.clients import registry
from squall.clients.http import HTTPClient, HTTPShared
from squall.clients.http2 import HTTP2Client, NegotiatingClient


def test_a_client_is_made_on_first_use_and_kept() -> None:
    async def body() -> None:
        http = HTTPClient(HTTPShared(), 0)
        clients = Clients(http, registry.make_client)
        assert isinstance(clients.http2, HTTP2Client)
        assert clients.http2 is clients.http2
        assert http.companions == (clients.http2,)

    asyncio.run(body())


def test_the_class_of_http() -> None:
    assert registry.http_client_class(HTTPShared()) is HTTPClient
    assert registry.http_client_class(HTTPShared(negotiates=True)) is NegotiatingClient


def test_a_missing_package_is_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name="hpack")

    monkeypatch.setattr(registry, "import_module", missing)
    with pytest.raises(ConfigError) as caught:
        registry.client_class("http2")
    assert str(caught.value) == (
        "self.client.http2 needs hpack, which is not installed: pip install 'squall[http2]'"
    )
    with pytest.raises(ConfigError, match=r'^http = "auto" needs hpack'):
        registry.http_client_class(HTTPShared(negotiates=True))
