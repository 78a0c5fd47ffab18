"""The real client of Cosmos DB against a server that keeps items as the service does."""

from __future__ import annotations

import json
from typing import Any

from tests.services.reporting.lab.contract import check_rows, delivered, one_run, shorter
from tests.services.reporting.lab.http_recorder import HTTPAnswer, HTTPRequest, http_server

JSON = {"Content-Type": "application/json"}


class Account:
    """One database with one container; a batch is done whole."""

    def __init__(self) -> None:
        self.url = ""
        self.made: dict[str, dict[str, Any]] = {}
        self.items: dict[tuple[str, str], dict[str, Any]] = {}

    def __call__(self, request: HTTPRequest) -> HTTPAnswer:
        path = request.path.rstrip("/")
        if not path:
            place = [{"name": "here", "databaseAccountEndpoint": self.url}]
            policy = {"defaultConsistencyLevel": "Session"}
            return self._found(
                {
                    **{"writableLocations": place, "readableLocations": place},
                    "userConsistencyPolicy": policy,
                }
            )
        assert request.headers["authorization"].startswith("type%3Dmaster")
        if path == "/dbs/squall/colls/rows/docs":
            return self._of_items(request)
        if request.method == "POST":
            body = json.loads(request.body) | {"_rid": "r", "_self": "s"}
            self.made[f"{path}/{body['id']}"] = body
            return HTTPAnswer(201, json.dumps(body).encode(), JSON)
        if path in self.made:
            return self._found(self.made[path])
        return HTTPAnswer(404, b'{"code": "NotFound", "message": "none"}', JSON)

    def _found(self, value: Any) -> HTTPAnswer:
        return HTTPAnswer(body=json.dumps(value).encode(), headers=JSON)

    def _of_items(self, request: HTTPRequest) -> HTTPAnswer:
        (run,) = json.loads(request.headers["x-ms-documentdb-partitionkey"])
        body = json.loads(request.body)
        if "x-ms-cosmos-is-batch-request" not in request.headers:
            assert body["query"] == "SELECT c.id FROM c"
            ids = [{"id": item} for partition, item in self.items if partition == run]
            return self._found({"_rid": "r", "Documents": ids, "_count": len(ids)})
        assert len(body) <= 100
        for each in body:
            if each["operationType"] == "Upsert":
                item = each["resourceBody"]
                assert item["run_id"] == run
                self.items[run, item["id"]] = item
            else:
                assert each["operationType"] == "Delete"
                del self.items[run, each["id"]]
        return self._found([{"statusCode": 200, "requestCharge": 1.0} for _ in body])


def test_each_run_is_there_once() -> None:
    account = Account()
    with http_server(account) as account.url:
        for document in (one_run(), one_run("other"), shorter(one_run())):
            assert delivered(document, f"cosmosdb={account.url}/,key=Z2VoZWltLXNlY3JldA==") == []
    assert set(account.made) == {"/dbs/squall", "/dbs/squall/colls/rows"}
    for run, document in (("01J9Z4", shorter(one_run())), ("other", one_run("other"))):
        stored: dict[str, list[dict[str, Any]]] = {}
        for (partition, _), item in account.items.items():
            if partition == run:
                stored.setdefault(item["table"], []).append(item)
        check_rows(document, stored)
