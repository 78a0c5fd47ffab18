"""Users of a broker without an engine: clients that share what the users of a share do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from squall.api.errors import TransportError
from squall.clients.http import HTTPClient, HTTPShared
from squall.clients.registry import make_client
from tests.services.http.lab.servers import swept

# What each protocol calls to send a message whose arrival is acknowledged.
SENDING = {
    "amqp": lambda client, url, place: client.publish(url, b"x" * 64, key=place),
    "kafka": lambda client, url, place: client.send(url, place, b"x" * 64),
    "mqtt": lambda client, url, place: client.publish(url, place, b"x" * 64),
    "nats": lambda client, url, place: client.publish(url, place, b"x" * 64),
}


@asynccontextmanager
async def users(protocol: str, count: int, **options: Any) -> AsyncGenerator[list[Any]]:
    """The clients of so many users. At the end nothing of them may be left."""
    before = asyncio.all_tasks()
    shared = HTTPShared(**{"timeout_s": 60.0, **options})
    async with swept(shared):
        of_http = [HTTPClient(shared, index) for index in range(count)]
        yield [make_client(protocol, http) for http in of_http]
        for http in of_http:
            http.close()
    async with asyncio.timeout(30):
        # Goodbyes, and the tasks of the library.
        while asyncio.all_tasks() - before:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def user(protocol: str, **options: Any) -> AsyncGenerator[Any]:
    async with users(protocol, 1, **options) as (client,):
        yield client


def counters_of(client: Any) -> Any:
    calls = client._producers if hasattr(client, "_producers") else client._calls
    return calls.counters


async def reason_of(call: Any) -> str:
    """Why a call failed that must."""
    with pytest.raises(TransportError) as caught:
        await call
    assert caught.value.request
    return caught.value.reason


async def ends(client: Any, url: str, protocol: str, place: str, count: int) -> dict[str, int]:
    """Sends until so many messages are acknowledged; the reasons of the failures in between."""
    reasons: dict[str, int] = {}
    while count:
        try:
            response = await SENDING[protocol](client, url, place)
            assert response.ok, response.error
            count -= 1
        except TransportError as error:
            reasons[error.reason] = reasons.get(error.reason, 0) + 1
            await asyncio.sleep(0.01)
    return reasons
