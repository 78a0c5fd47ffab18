"""Operations, errors, batches, persisted documents and subscriptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from squall.api.errors import CallError, StatusError, TransportError
from squall.clients.graphql import GraphQL2Client, GraphQLClient
from squall.clients.graphql.documents import document_of
from squall.clients.http import HTTPShared
from tests.lab.graphql_server import running_graphql_server
from tests.lab.websocket_server import running_websocket_server
from tests.services.http.lab.servers import on_uvloop, swept

PRODUCT = "query Product($id: ID!) { product(id: $id) { id name price } }"
TWO = f"{PRODUCT} query All {{ products {{ id }} }}"
PARTIAL = '{ product(id: "404") { id } products { id } }'


@dataclass
class Product:
    id: str
    name: str


@dataclass
class Found:
    product: Product


@on_uvloop
@pytest.mark.parametrize("version", ["http", "http2"])
async def test_operations(version: str) -> None:
    with running_graphql_server() as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            client = GraphQLClient(http) if version == "http" else GraphQL2Client(http)
            url = server.url if version == "http" else server.http2_url
            for number in ("1", "2"):
                found = await client.query(url, PRODUCT, {"id": number})
                assert found.ok and found.failure == "" and found.errors == []
                assert found.data["product"]["id"] == number
                assert found.data_as(Found).product.name == f"product {number}"
                assert (found.status_code, found.url) == (200, url)
                assert found.timings.total_s == found.ended - found.started
            order = "mutation Buy { order(id: 7, count: 3) }"
            ordered = await client.mutate(url, order, operation="Buy")
            assert ordered.data == {"order": 3}
            every = await client.query(url, TWO, operation="All", headers={"X-A": "1"})
            assert len(every.data["products"]) == 3
            partial = await client.query(url, PARTIAL)
            assert partial.failure == "NOT_FOUND" and not partial.ok
            assert partial.data["product"] is None and len(partial.data["products"]) == 3
            assert partial.errors[0].path == ["product"]
            with pytest.raises(StatusError, match="NOT_FOUND"):
                partial.raise_for_errors()
            plain = await client.query(url, "{ secret }")
            assert plain.failure == "not for you"
            wrong = await client.query(url, "{ nothing }")
            assert wrong.failure.startswith("Cannot query field 'nothing'")
            assert shared.counters_of(version).sent == server.requests == 7
    assert server.operations == {"Buy": 1, "All": 1, "anonymous": 5}


@on_uvloop
async def test_batches_and_persisted_documents() -> None:
    with running_graphql_server() as server:
        async with swept(HTTPShared()) as http:
            client = GraphQLClient(http)
            batch = await client.batch(server.url, [(PRODUCT, {"id": "1"}), (PARTIAL, None)])
            assert [part.ok for part in batch.parts] == [True, False]
            assert batch.failure == "NOT_FOUND" and batch.exchanges == 1
            first = await client.query(server.url, PRODUCT, {"id": "3"}, persisted=True)
            again = await client.query(server.url, PRODUCT, {"id": "4"}, persisted=True)
            assert (first.exchanges, again.exchanges) == (2, 1)
            assert again.data["product"]["id"] == "4"
            assert "query" not in server.bodies[-1]
    assert server.requests == 4


@on_uvloop
async def test_subscriptions() -> None:
    with running_graphql_server() as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            client = GraphQLClient(http)
            ticks = "subscription($count: Int!) { ticks(count: $count) }"
            init: Any = {"token": "t"}
            url = server.websocket_url
            async with client.subscribe(url, ticks, {"count": 4}, init=init) as events:
                first = await events.receive(timeout="30s")
                assert first is not None and first.data == {"ticks": 0}
                assert [event.data["ticks"] async for event in events] == [1, 2, 3]
                assert await events.receive() is None and events.received == 4
            async with client.subscribe(url, "subscription { other }") as events:
                failed = await events.receive()
                assert failed is not None and "other" in failed.failure
            # One that goes on when it is left.
            async with client.subscribe(url, ticks, {"count": 100_000}) as events:
                assert await events.receive() is not None
            with pytest.raises(CallError, match="needs a document with a subscription"):
                async with client.subscribe(url, "{ secret }"):
                    pass
    assert server.bodies[0] == {"token": "t"}


@on_uvloop
async def test_a_websocket_server_without_graphql() -> None:
    with running_websocket_server() as server:
        async with swept(HTTPShared()) as http:
            client = GraphQLClient(http)
            with pytest.raises(TransportError, match="does not speak graphql-transport-ws"):
                async with client.subscribe(f"{server.url}/echo", "subscription { a }"):
                    pass


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{ product(id: }", "line 1: Syntax Error"),
        ("type A { b: Int }", "has no query"),
        (7, "must be text, not int"),
    ],
)
def test_what_is_no_document(text: Any, reason: str) -> None:
    with pytest.raises(CallError, match=reason):
        document_of(text)


def test_operations_of_a_document() -> None:
    document = document_of(TWO)
    with pytest.raises(CallError, match="has several operations; name one"):
        document.body(None, None)
    with pytest.raises(CallError, match='no operation "Alle" in the document; it has Product, All'):
        document.body(None, "Alle")
