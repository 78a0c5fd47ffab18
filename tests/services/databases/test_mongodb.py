"""Commands of MongoDB, against a server of its wire protocol, which pymongo's client uses, too."""

from __future__ import annotations

import asyncio
from typing import Any

import pymongo
import pytest

from squall.api.errors import CallError, TransportError
from squall.clients.http import HTTPClient, HTTPShared
from squall.clients.mongodb.documents import document_of
from squall.clients.ping import ping
from squall.clients.registry import make_client
from tests.lab.mongodb_server import MongoDBServer, running_mongodb_server
from tests.services.http.lab.servers import on_uvloop, swept

SHOES = [{"_id": number, "kind": "shoe", "price": number} for number in range(5)]


def client_of(http: HTTPClient) -> Any:
    return make_client("mongodb", http)


def test_the_server_of_these_tests_answers_pymongo(mongodb: MongoDBServer) -> None:
    with pymongo.MongoClient(mongodb.url, directConnection=True) as client:
        shop = client.shop
        assert shop.items.insert_many([dict(shoe) for shoe in SHOES]).inserted_ids == [*range(5)]
        assert shop.items.find_one({"_id": 3}) == SHOES[3]
        assert len(list(shop.items.find({"kind": "shoe"}))) == 5


@on_uvloop
async def test_the_verbs_do_what_the_server_counts(mongodb: MongoDBServer) -> None:
    shared = HTTPShared()
    async with swept(shared) as http:
        client, url = client_of(http), mongodb.url
        made = await client.insert(url, "items", document_of(SHOES))
        assert (made.ok, made.row_count, made.code) == (True, 5, "")
        assert (await client.insert(url, "items", {"_id": 9})).row_count == 1
        found = await client.find(url, "items", document_of({"kind": "shoe"}))
        # The server gives two documents at a time.
        assert (list(found.rows), found.exchanges) == (SHOES, 2)
        assert found.documents == found.rows and found.bytes_received > 0
        assert 0 < found.timings.first_byte_s <= found.timings.total_s
        assert (await client.find(url, "items", limit=1)).row_count == 1
        changed = await client.update(url, "items", {"kind": "shoe"}, {"$inc": {"price": 10}})
        assert changed.row_count == 1
        all_of_them = {"$set": {"kind": "hat"}}
        changed = await client.update(url, "items", {"kind": "shoe"}, all_of_them, many=True)
        assert (changed.row_count, changed.reply["nModified"]) == (5, 5)
        pipeline = [{"$match": {"kind": "hat"}}, {"$group": {"_id": None, "n": {"$sum": 1}}}]
        for stages in (pipeline, document_of(pipeline)):
            assert (await client.aggregate(url, "items", stages)).rows == [{"_id": None, "n": 5}]
        assert (await client.delete(url, "items", {"kind": "hat"})).row_count == 1
        assert (await client.delete(url, "items", {}, many=True)).row_count == 5
        assert (await client.command(url, {"ping": 1})).reply["ok"] == 1
        http.close()
    assert mongodb.documents["items"] == []
    calls = {"insert": 2, "find": 2, "getMore": 1, "update": 2, "aggregate": 2, "delete": 2}
    assert mongodb.calls == calls | {"ping": 1}
    assert shared.counters_of("mongodb").sent == mongodb.calls.total()
    assert mongodb.connections == shared.counters_of("mongodb").connections == 1


@on_uvloop
async def test_a_refused_command_is_a_response_with_its_reason(mongodb: MongoDBServer) -> None:
    shared = HTTPShared()
    async with swept(shared) as http:
        client = client_of(http)
        refused = await client.command(mongodb.url, {"fail": 1})
        assert (refused.failure, refused.code) == ("write conflict (112)", "112")
        assert refused.message == "the documents changed meanwhile"
        await client.insert(mongodb.url, "items", {"_id": 1})
        again = await client.insert(mongodb.url, "items", {"_id": 1})
        assert (again.failure, again.code) == ("duplicate key (11000)", "11000")
        with pytest.raises(CallError, match="cannot be sent as BSON"):
            await client.insert(mongodb.url, "items", {"_id": {1, 2}})
        with pytest.raises(CallError, match="a command is a dict"):
            await client.command(mongodb.url, {})


@on_uvloop
async def test_a_server_that_hangs_or_vanishes_holds_no_user(mongodb: MongoDBServer) -> None:
    shared = HTTPShared()
    async with swept(shared) as http:
        client, url = client_of(http), mongodb.url
        with pytest.raises(TransportError, match=r"^timeout after 0.1 s$"):
            await client.command(url, {"hang": 1}, timeout="100ms")
        call = asyncio.ensure_future(client.command(url, {"hang": 1}))
        while mongodb.commands["hang"] < 2:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(mongodb.kill)
        with pytest.raises(TransportError, match=r"^connection (closed before a response|reset)$"):
            await call
        with pytest.raises(TransportError, match=r"^connection refused: 127.0.0.1:"):
            await client.command(url, {"ping": 1})
        await asyncio.to_thread(mongodb.start)
        assert (await client.command(url, {"ping": 1})).ok
        counters = shared.counters_of("mongodb")
        assert (counters.failed, counters.unsent, counters.replies) == (3, 1, 1)


@on_uvloop
async def test_a_login_is_scram_and_a_refused_one_hides_the_password() -> None:
    with running_mongodb_server("ada", "geheim") as server:
        shared = HTTPShared()
        async with swept(shared) as http:
            client = client_of(http)
            right = server.url.replace("//", "//ada:geheim@")
            assert (await client.command(right, {"ping": 1})).ok
            with pytest.raises(TransportError, match=r"^authentication failed \(18\): 127") as no:
                await client.command(server.url.replace("//", "//ada:falsch@"), {"ping": 1})
            assert "falsch" not in f"{no.value} {no.value.request}"
            refused = await client.command(server.url, {"ping": 1})
            assert refused.failure == "unauthorized (13)"


@on_uvloop
async def test_a_thousand_users_share_a_pool_within_its_limit(mongodb: MongoDBServer) -> None:
    shared = HTTPShared(connections="shared", pool_size=12)
    async with swept(shared) as http:
        url = shared.address(mongodb.url)
        await shared.resolve(url.origin)
        clients = [client_of(HTTPClient(shared, number)) for number in range(1000)]
        await asyncio.gather(*(each.insert(url, "items", {}) for each in clients))
        http.close()
    assert (len(mongodb.documents["items"]), mongodb.most_open) == (1000, 12)


@on_uvloop
async def test_ping_names_the_server(mongodb: MongoDBServer) -> None:
    found = await ping(mongodb.url)
    assert found.ok and found.render().startswith("MongoDB 7.0.0  from 127.0.0.1:")
