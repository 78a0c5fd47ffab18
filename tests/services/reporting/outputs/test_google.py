"""The real clients of Google Cloud against a server that keeps what they ask for."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.services.reporting.lab.contract import by_table, check_rows, delivered, one_run, shorter
from tests.services.reporting.lab.http_recorder import HTTPAnswer, HTTPRequest, http_server

JSON = {"Content-Type": "application/json"}


def as_json(value: Any) -> HTTPAnswer:
    return HTTPAnswer(body=json.dumps(value).encode(), headers=JSON)


def parts(request: HTTPRequest) -> list[bytes]:
    """The contents of a `multipart/related` upload."""
    found = re.search(r'boundary="?([^";]+)', request.headers["content-type"])
    assert found is not None
    _, *pieces, _ = request.body.split(b"--" + found[1].encode())
    return [piece.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n") for piece in pieces]


class Storage:
    """Buckets: objects by name."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def __call__(self, request: HTTPRequest) -> HTTPAnswer:
        if request.method == "POST":
            assert request.path == "/upload/storage/v1/b/bucket/o"
            about, content = parts(request)
            name = json.loads(about)["name"]
            self.objects[name] = content
            return as_json({"name": name, "bucket": "bucket"})
        return as_json({"name": "bucket"})


def test_cloud_storage_has_the_document_and_its_rows() -> None:
    storage = Storage()
    with http_server(storage) as endpoint:
        for document in (one_run(), shorter(one_run())):
            assert delivered(document, f"gcs=gs://bucket/load,project=p,endpoint={endpoint}") == []
    assert set(storage.objects) == {"load/01J9Z4/results.json", "load/01J9Z4/rows.jsonl"}
    assert json.loads(storage.objects["load/01J9Z4/results.json"]) == shorter(one_run())
    rows = storage.objects["load/01J9Z4/rows.jsonl"].decode().splitlines()
    check_rows(shorter(one_run()), by_table(rows))


class Warehouse:
    """Tables of BigQuery: it runs the deletions and loads that it is asked for, in order."""

    def __init__(self) -> None:
        self.tables: dict[str, list[dict[str, Any]]] = {}
        self.types: dict[str, dict[str, str]] = {}
        self._made: dict[str, dict[str, Any]] = {}
        self._jobs: dict[str, dict[str, Any]] = {}

    def __call__(self, request: HTTPRequest) -> HTTPAnswer:
        path = request.path
        if path.endswith("/tables"):
            return self._create(json.loads(request.body))
        if path.startswith("/upload/") and request.query["uploadType"] == ["multipart"]:
            about, content = parts(request)
            return self._load(json.loads(about), content)
        if path.endswith("/jobs") and request.method == "POST":
            return self._delete(json.loads(request.body))
        found = re.search(r"/(tables|jobs|queries)/([\w-]+)", path)
        assert found is not None, path
        if found[1] == "tables":
            return as_json(self._made[found[2]])
        job = self._jobs[found[2]]
        if found[1] == "queries":
            return as_json({"jobComplete": True, "jobReference": job["jobReference"], "rows": []})
        return as_json(job)

    def _create(self, table: dict[str, Any]) -> HTTPAnswer:
        name = table["tableReference"]["tableId"]
        if name in self.tables:
            error = {"code": 409, "message": f"Already Exists: {name}"}
            return HTTPAnswer(409, json.dumps({"error": error}).encode(), JSON)
        self.tables[name] = []
        self._made[name] = table
        self.types[name] = {each["name"]: each["type"] for each in table["schema"]["fields"]}
        return as_json(table)

    def _done(self, job: dict[str, Any]) -> HTTPAnswer:
        own = {**job, "status": {"state": "DONE"}, "statistics": {"query": {}}}
        self._jobs[job["jobReference"]["jobId"]] = own
        return as_json(own)

    def _delete(self, job: dict[str, Any]) -> HTTPAnswer:
        query = job["configuration"]["query"]
        found = re.fullmatch(r"DELETE FROM `p\.load\.(\w+)` WHERE run_id = @run_id", query["query"])
        assert found is not None
        (parameter,) = query["queryParameters"]
        run = parameter["parameterValue"]["value"]
        self.tables[found[1]] = [row for row in self.tables[found[1]] if row["run_id"] != run]
        return self._done(job)

    def _load(self, job: dict[str, Any], content: bytes) -> HTTPAnswer:
        load = job["configuration"]["load"]
        assert load["writeDisposition"] == "WRITE_APPEND"
        name = load["destinationTable"]["tableId"]
        rows = [json.loads(line) for line in content.splitlines()]
        assert all(set(row) <= set(self.types[name]) for row in rows)
        self.tables[name] += rows
        return self._done(job)


def test_bigquery_has_each_run_once() -> None:
    warehouse = Warehouse()
    with http_server(warehouse) as endpoint:
        for document in (one_run(), one_run("other"), shorter(one_run())):
            assert delivered(document, f"bigquery=load,project=p,endpoint={endpoint}") == []
    for run, document in (("01J9Z4", shorter(one_run())), ("other", one_run("other"))):
        stored = {
            name.removeprefix("squall_"): own
            for name, rows in warehouse.tables.items()
            if (own := [row for row in rows if row["run_id"] == run])
        }
        check_rows(document, stored)
    assert warehouse.types["squall_windows"]["at"] == "TIMESTAMP"
