"""The real client of Bigtable against a server that keeps rows as the service does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from google.cloud.bigtable_v2.types import bigtable as messages

from tests.services.reporting.lab.contract import check_rows, delivered, one_run, shorter

TABLE = "projects/shop/instances/load/tables/squall"


class Rows(grpc.GenericRpcHandler):
    """One table: cells of one family by key and column."""

    def __init__(self) -> None:
        self.rows: dict[bytes, dict[bytes, bytes]] = {}
        self._lock = threading.Lock()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        name = handler_call_details.method.rpartition("/")[2]
        request, method = {
            "MutateRows": (messages.MutateRowsRequest, self._mutate),
            "ReadRows": (messages.ReadRowsRequest, self._read),
        }[name]
        return grpc.unary_stream_rpc_method_handler(
            method,
            request_deserializer=request.deserialize,
            response_serializer=lambda answer: type(answer).serialize(answer),
        )

    def _mutate(self, request: messages.MutateRowsRequest, _: Any) -> Iterator[Any]:
        assert request.table_name == TABLE
        with self._lock:
            for entry in request.entries:
                for mutation in entry.mutations:
                    if "delete_from_row" in mutation:
                        self.rows.pop(entry.row_key, None)
                    else:
                        cell = mutation.set_cell
                        assert cell.family_name == "squall"
                        row = self.rows.setdefault(entry.row_key, {})
                        row[cell.column_qualifier] = cell.value
        yield messages.MutateRowsResponse(
            entries=[{"index": place, "status": {}} for place in range(len(request.entries))]
        )

    def _read(self, request: messages.ReadRowsRequest, _: Any) -> Iterator[Any]:
        (wanted,) = request.rows.row_ranges
        found = [
            key for key in sorted(self.rows) if wanted.start_key_closed <= key < wanted.end_key_open
        ]
        yield messages.ReadRowsResponse(
            chunks=[
                {
                    "row_key": key,
                    "family_name": "squall",
                    "qualifier": b"run_id",
                    "value": b"",
                    "commit_row": True,
                }
                for key in found
            ]
        )


@contextmanager
def bigtable_server() -> Iterator[tuple[Rows, str]]:
    rows = Rows()
    with ThreadPoolExecutor(2) as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((rows,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield rows, f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


def test_each_run_is_there_once() -> None:
    with bigtable_server() as (server, endpoint):
        for document in (one_run(), one_run("other"), shorter(one_run())):
            assert delivered(document, f"bigtable=load,project=shop,endpoint={endpoint}") == []
    for run, document in (("01J9Z4", shorter(one_run())), ("other", one_run("other"))):
        stored: dict[str, list[dict[str, Any]]] = {}
        for key, cells in server.rows.items():
            owner, table, *_ = key.decode().split("#")
            if owner == run:
                row = {name.decode(): json.loads(value) for name, value in cells.items()}
                stored.setdefault(table, []).append(row)
        check_rows(document, stored)
